"""The ledger: what was released about each example, and whether more may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from tacit.accounting._id_columns import ExampleColumns, id_numbers
from tacit.accounting.budget import MOST_RELEASES, Budget, way_out
from tacit.accounting.composition import LabelCharge, Spent, compose, planned_cost, release_cost
from tacit.errors import BudgetError, InputError, ParameterError
from tacit.measure._arrays import Ints, Values
from tacit.measure.bounds import gaussian_auc

if TYPE_CHECKING:  # the records hold tensors, and measures load without torch
    from tacit.types import Certificate, LabelCertificate


Floats = npt.NDArray[np.float64]
SavedState = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]

_FORMAT = 2
_FORMAT_WITHOUT_SECRETS = 1
"""The format before, which is the same for a ledger without label mechanisms."""

_FILLS: dict[str, np.generic] = {
    "sum_kl": np.float64(0),
    "releases": np.uint16(0),  # up to MOST_RELEASES
    "secrets": np.uint8(0),  # one bit per label secret
}


@final
@dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """The total of a ledger: counts, and the most that was released about any example.

    ``gaussian_auc`` is a reference value for ``sum_kl``, not a bound. ``measure_bits`` is the most
    that measures of the model, shared with a peer ``measures`` times, told about all labels in
    total; no bound per example covers them.
    """

    examples: int
    releases: int
    sum_kl: float
    mean_sum_kl: float
    epsilon: float
    auc_bound: float
    gaussian_auc: float
    budget: str | None
    measures: int = 0
    measure_bits: float = 0.0


@final
class Ledger:
    """Counts what was released about each example, and refuses a release before it is made.

    A release of gradients costs every example in it the certificate's ``sum_kl`` (the larger of
    modelled and measured), infinity where none is claimed. A label mechanism costs its epsilon
    once per secret, however often its labels are used. An example twice in a batch pays twice.

    Guarantee: ``auc_bound`` after T releases holds if each certificate holds and the noise of each
    release is independent of the others; the divergence of independent releases adds up. What
    gradients cost is for honest batches; what randomised labels cost holds for all.
    ``gaussian_auc`` beside it is a reference value, what averaging over epochs was measured to
    reach, not a bound.

    With ``per_release`` a budget is judged by the number of releases, which does not depend on
    labels; what they cost is still counted, and none may cost more (:meth:`over_plan`). Without it
    a budget is judged by what was spent, and which release it refuses depends on the labels.

    Args:
        run: names what is counted; the state of one run is refused by another.
        budget: such as ``"auc=0.70"``; without, everything is counted and nothing refused.
        per_release: the most ``sum_kl`` that a release may cost, planned before the first.
        examples: how many there will be, where ids count from 0; only saves time and memory.
        measured: also charge by the divergence that is measured in each batch, where it is larger
            than the modelled one. It takes a decomposition per release.

    >>> from types import SimpleNamespace
    >>> ledger = Ledger(run="demo", budget="sum_kl=0.5")
    >>> cost = SimpleNamespace(spec="marvell(sum_kl=0.25)", sum_kl=0.25, measured_sum_kl=None)
    >>> for _ in range(2):
    ...     ledger.charge([0, 1, 2], cost)
    >>> ledger.would_exceed([2, 3], cost), ledger.would_exceed([3], cost)
    (True, False)
    """

    def __init__(
        self,
        *,
        run: str,
        budget: str | Budget | None = None,
        per_release: float | None = None,
        examples: int | None = None,
        measured: bool = True,
    ) -> None:
        if not run:
            raise ParameterError("a ledger needs the name of its run, got an empty one")
        self.run = run
        self.measured = measured
        self.budget = Budget.parse(budget) if isinstance(budget, str) else budget
        self.per_release = per_release
        if per_release is not None and (self.budget is None or not 0 < per_release < math.inf):
            raise ParameterError(
                "per_release is the positive sum_kl that a budget is planned with, got "
                f"{per_release} and budget {self.budget}: give both"
            )
        self.releases = 0
        self.measures, self.measure_bits = 0, 0.0
        self._columns = ExampleColumns(_FILLS, expected=examples or 0)
        self._charges: list[LabelCharge] = []

    @property
    def nbytes(self) -> int:
        """How many bytes the counts of all examples take."""
        return self._columns.nbytes

    def register(self, ids: Values) -> None:
        """Allocate entries for these examples at once; saves time where ids are not positions."""
        self._columns.find_or_add(id_numbers(ids))

    def would_exceed(self, ids: Values, certificate: Certificate) -> bool:
        """Whether the budget does not allow this release."""
        try:
            self.check(ids, certificate)
        except BudgetError:
            return True
        return False

    def check(self, ids: Values, certificate: Certificate) -> None:
        """Raise ``BudgetError`` if this release would overrun the budget of one of its examples."""
        positions, counts = self._counted(id_numbers(ids))
        self._check(
            ids, positions, certificate.spec, self._spent_after(positions, counts, certificate)
        )

    def over_plan(self, certificate: Certificate) -> bool:
        """Whether a release costs more than was planned: it must go out without signal then."""
        each = self.per_release
        return each is not None and planned_cost(certificate, each) > each

    def charge(self, ids: Values, certificate: Certificate, *, covered: bool = False) -> None:
        """Count a release that is about to be made, or raise and count nothing.

        ``covered`` says that the release was computed from randomised labels only, so that the
        label mechanism's charge is all it costs; these examples must have been charged for it.
        """
        numbers = id_numbers(ids)
        if covered:
            self._require_covered(numbers)
        positions, counts = self._counted(numbers)
        if not covered:
            after = self._spent_after(positions, counts, certificate)
            self._check(ids, positions, certificate.spec, after)
            self._columns["sum_kl"][positions] += counts * self._cost(certificate)
        releases = self._columns["releases"]
        releases[positions] = np.minimum(releases[positions] + counts, MOST_RELEASES)
        self.releases += 1

    def charge_labels(
        self, ids: Values, certificate: LabelCertificate, *, tag: str, secret: str | None = None
    ) -> None:
        """Count randomised labels under a secret, once per example, or raise and count nothing.

        ``tag`` identifies the secret, the mechanism and its plan, ``secret`` the secret alone;
        without it every tag has its own. Neither is the secret itself. Another mechanism, epsilon
        or sigma under a secret that is counted already is refused.
        """
        charge = LabelCharge.of(certificate, tag=tag, secret=secret or tag)
        bit = _charge_bit(charge, self._charges)
        positions = np.unique(self._columns.find_or_add(id_numbers(ids)))
        held = self._columns["secrets"][positions]
        positions = positions[(held & bit) == 0]
        if len(positions):
            self._check(ids, positions, charge.spec, self._spent_at(positions), label=charge)
            if charge not in self._charges:
                self._charges.append(charge)
            self._columns["secrets"][positions] |= bit

    def charge_measures(self, bits: float) -> None:
        """Count measures of the model that are shared with a peer, worth at most ``bits``.

        They come from true labels and no certificate covers them, so a budget refuses them.
        """
        if not 0 <= bits < float("inf"):
            raise ParameterError(f"bits must be a finite number from 0 on, got {bits}")
        if self.budget is not None:
            raise BudgetError(
                f"budget {self.budget}: measures of the model tell up to {bits:.4g} bits about the "
                "labels that no certificate covers; nothing was shared; set share_metrics = false"
            )
        self.measures += 1
        self.measure_bits += bits

    def spent(self, ids: Values) -> Spent:
        """Return what was released about these examples so far; 0 for those never seen."""
        positions = self._columns.find(id_numbers(ids))
        known = np.flatnonzero(positions >= 0)
        found = self._at(positions[known])
        spent = Spent.nothing(len(positions))
        for name in ("sum_kl", "epsilon", "auc_bound", "releases"):
            getattr(spent, name)[known] = getattr(found, name)
        return spent

    def summary(self) -> LedgerSummary:
        """Return the total, with the numbers of the example about which most was released."""
        seen = np.flatnonzero((self._columns["releases"] > 0) | (self._columns["secrets"] > 0))
        parts = [self._at(seen[at : at + 65536]) for at in range(0, len(seen), 65536)]
        worst = max((float(part.sum_kl.max()) for part in parts), default=0.0)
        return LedgerSummary(
            examples=len(seen),
            releases=self.releases,
            sum_kl=worst,
            mean_sum_kl=sum(float(part.sum_kl.sum()) for part in parts) / max(1, len(seen)),
            epsilon=max((float(part.epsilon.max()) for part in parts), default=0.0),
            auc_bound=max((float(part.auc_bound.max()) for part in parts), default=0.5),
            gaussian_auc=gaussian_auc(worst),
            budget=None if self.budget is None else str(self.budget),
            measures=self.measures,
            measure_bits=self.measure_bits,
        )

    def to_state(self) -> SavedState:
        """Return the whole ledger as arrays and a dictionary of JSON values, to be stored."""
        keys = self._columns.keys()
        arrays = {name: self._columns[name].copy() for name in _FILLS}
        if keys is not None:
            arrays["keys"] = keys.copy()
        each = self.per_release
        packed = _packed(self.run, self.budget, self.releases, self._charges, per_release=each)
        return arrays, {**packed, "measures": self.measures, "measure_bits": self.measure_bits}

    @classmethod
    def from_state(
        cls,
        arrays: dict[str, npt.NDArray[Any]],
        values: dict[str, Any],
        *,
        run: str,
        budget: str | Budget | None = None,
        per_release: float | None = None,
        measured: bool = True,
    ) -> Ledger:
        """Return the ledger of a stored state; that of another run or another plan is refused.

        ``budget`` replaces the stored one.
        """
        names = tuple(_FILLS)
        charges = _unpacked(arrays, values, run=run, names=names, per_release=per_release)
        budget, each = budget or values["budget"], per_release or values.get("per_release")
        made = cls(run=run, budget=budget, per_release=each, measured=measured)
        made._columns = ExampleColumns.restore(_FILLS, arrays, arrays.get("keys"))
        made._charges = charges
        made.releases = int(values["releases"])
        made.measures = int(values.get("measures", 0))
        made.measure_bits = float(values.get("measure_bits", 0.0))
        return made

    def _counted(self, numbers: Ints) -> tuple[Ints, Floats]:
        """Return the positions of the examples and how often each is in the batch."""
        positions, counts = np.unique(self._columns.find_or_add(numbers), return_counts=True)
        return positions, counts.astype(np.float64)

    def _at(self, positions: Ints) -> Spent:
        """Return what is spent at these positions."""
        columns = self._columns
        return compose(
            columns["sum_kl"][positions],
            columns["secrets"][positions],
            self._charges,
            releases=columns["releases"][positions].astype(np.int64),
        )

    def _cost(self, certificate: Certificate) -> float:
        """Return what a release costs each of its examples."""
        each = self.per_release
        return release_cost(certificate) if each is None else planned_cost(certificate, each)

    def _spent_at(self, positions: Ints) -> Floats:
        """Return what releases of gradients count for against a budget, as planned or as spent."""
        if self.per_release is None:
            return np.asarray(self._columns["sum_kl"][positions])
        return self._columns["releases"][positions].astype(np.float64) * self.per_release

    def _spent_after(self, positions: Ints, counts: Floats, certificate: Certificate) -> Floats:
        """Return the same after one more release, in which each example occurs so many times."""
        if self.per_release is None:
            return self._spent_at(positions) + counts * self._cost(certificate)
        if self.over_plan(certificate):
            return np.full(len(positions), math.inf)
        times = self._columns["releases"][positions] + counts
        return np.where(times > MOST_RELEASES, math.inf, times * self.per_release)

    def _check(
        self,
        ids: Values,
        positions: Ints,
        spec: str,
        after: Floats,
        *,
        label: LabelCharge | None = None,
    ) -> None:
        """Refuse what would be spent at these positions if the budget of one does not allow it."""
        if self.budget is None:
            return
        columns, charges = self._columns, list(self._charges)
        if not charges and label is None:  # the most spent has the highest bound
            most = after.argmax(axis=0, keepdims=True)
            after, positions = after[most], positions[most]
        held = columns["secrets"][positions]
        if label is not None:
            held = held | _charge_bit(label, self._charges)
            charges += [] if label in charges else [label]
        values = compose(after, held, charges).limited_by(self.budget.kind)
        worst = int(values.argmax())
        if self.budget.allows(float(values[worst])):
            return
        numbers = id_numbers(ids)
        row = int(np.flatnonzero(columns.find(numbers) == positions[worst])[0])
        own = positions[worst : worst + 1]
        before = compose(self._spent_at(own), columns["secrets"][own], self._charges)
        raise BudgetError(
            _refusal(
                self.budget,
                spec=spec,
                example=np.asarray(ids)[row],
                before=float(before.limited_by(self.budget.kind)[0]),
                after=float(values[worst]),
                certified=bool(np.isfinite(after[worst])),
            )
        )

    def _require_covered(self, numbers: Ints) -> None:
        if int(self._columns.read("secrets", numbers).min()) == 0:
            raise InputError(
                "a release of randomised labels has an example whose labels were not charged: call "
                "charge_labels for it first"
            )


def _charge_bit(charge: LabelCharge, known: list[LabelCharge]) -> np.uint8:
    """Return the bit of a charge in the column of secrets: that of its tag, or the next free."""
    tags = [one.tag for one in known]
    if charge.tag not in tags and len(tags) == 8:
        raise InputError(
            "a ledger counts 8 label secrets, got a ninth: keep one secret per data set"
        )
    position = tags.index(charge.tag) if charge.tag in tags else len(tags)
    if position == len(tags):
        for one in known:
            one.check_second(charge)
    if position < len(tags) and known[position] != charge:
        raise InputError(
            f"{charge.spec} comes with the tag of {known[position].spec}: a tag is for one "
            "mechanism under one secret"
        )
    return np.uint8(1 << position)


def _refusal(
    budget: Budget, *, spec: str, example: object, before: float, after: float, certified: bool
) -> str:
    """Return what is spent, what the release would cost and the way out, in one line."""
    if not certified:
        return (
            f"budget {budget}: {spec} has no certificate that holds for this batch, so its cost "
            "counts as infinite and nothing was released; use one that has, such as "
            f"covariance=full, or {way_out(budget)}"
        )
    if budget.kind == "epsilon" and after == math.inf:
        return (
            f"budget {budget}: {spec} has no epsilon, so nothing was released; set the budget as "
            f"auc= or sum_kl=, or {way_out(budget)}"
        )
    name = {"auc": "an AUC bound of", "sum_kl": "sumKL", "epsilon": "epsilon"}[budget.kind]
    return (
        f"budget {budget}: example {example} stands at {name} {before:.4g}, and this release of "
        f"{spec} would take it to {after:.4g}; nothing was released; {way_out(budget)}"
    )


def _packed(
    run: str,
    budget: Budget | None,
    releases: int,
    charges: list[LabelCharge],
    *,
    per_release: float | None,
) -> dict[str, Any]:
    """Return the plain values of a ledger's state; infinity is written as None."""
    return {
        "format": _FORMAT,
        "run": run,
        "budget": None if budget is None else str(budget),
        "per_release": per_release,
        "releases": releases,
        "secrets": [
            {**vars(charge), "epsilon": None if charge.epsilon == math.inf else charge.epsilon}
            for charge in charges
        ],
    }


def _unpacked(
    arrays: dict[str, npt.NDArray[Any]],
    values: dict[str, Any],
    *,
    run: str,
    names: tuple[str, ...],
    per_release: float | None,
) -> list[LabelCharge]:
    """Check a stored state and return its label charges."""
    without = values.get("format") == _FORMAT_WITHOUT_SECRETS and not values.get("secrets")
    if values.get("format") != _FORMAT and not without:
        raise InputError(
            f"a ledger's state has format {_FORMAT}, got {values.get('format')!r}: it was written "
            "by another version, which counts label secrets in another way; end the run with that "
            "version, or begin a new one"
        )
    if values.get("run") != run:
        raise InputError(
            f"this ledger belongs to run {values.get('run')!r}, not to {run!r}: what was released "
            "there does not count here; begin a new ledger"
        )
    planned = values.get("per_release")
    if per_release is not None and planned not in (None, per_release):
        raise InputError(
            f"this ledger was planned with sum_kl {planned} per release, not {per_release}: go on "
            "with the same protection, or begin a new ledger"
        )
    missing = set(names) - set(arrays)
    lengths = {len(array) for array in arrays.values()}
    if missing or len(lengths) != 1 or not (np.asarray(arrays["sum_kl"]) >= 0).all():
        raise InputError(
            f"a ledger's state needs {', '.join(names)} of equal length and no negative sum_kl, "
            f"got {', '.join(f'{k}[{len(v)}]' for k, v in arrays.items()) or 'nothing'}"
        )
    return [
        LabelCharge(**{**one, "epsilon": math.inf if one["epsilon"] is None else one["epsilon"]})
        for one in values["secrets"]
    ]
