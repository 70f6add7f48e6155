"""The ledger: what was released about each example, and whether more may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from tacit.accounting._costs import (
    LedgerSummary,
    Secret,
    Spent,
    add_up,
    check_plan,
    pack,
    planned_cost,
    refusal,
    release_cost,
    secret_bit,
    unpack,
)
from tacit.accounting._id_columns import ExampleColumns, id_numbers
from tacit.accounting.budget import MOST_RELEASES, Budget
from tacit.errors import BudgetError, InputError, ParameterError
from tacit.measure._arrays import Ints, Values
from tacit.measure.bounds import gaussian_auc

if TYPE_CHECKING:  # the records hold tensors, and measures load without torch
    from tacit.types import Certificate, LabelCertificate


Floats = npt.NDArray[np.float64]
SavedState = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]

_FILLS: dict[str, np.generic] = {
    "sum_kl": np.float64(0),
    "releases": np.uint16(0),  # up to MOST_RELEASES
    "secrets": np.uint8(0),  # one bit per label secret
}


@final
class Ledger:
    """Adds up what was released about each example, and refuses a release before it is made.

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
    a budget is judged by what was spent, and where it refuses tells something of the labels.

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
        check_plan(self.budget, per_release)
        self.releases = 0
        self.measures, self.measure_bits = 0, 0.0
        self._columns = ExampleColumns(_FILLS, expected=examples or 0)
        self._secrets: list[Secret] = []

    @property
    def nbytes(self) -> int:
        """How many bytes the counts of all examples take."""
        return self._columns.nbytes

    def register(self, ids: Values) -> None:
        """Make room for these examples at once; where ids are not positions, this saves time."""
        self._columns.place(id_numbers(ids))

    def would_exceed(self, ids: Values, certificate: Certificate) -> bool:
        """Whether the budget does not allow this release."""
        try:
            self.check(ids, certificate)
        except BudgetError:
            return True
        return False

    def check(self, ids: Values, certificate: Certificate) -> None:
        """Raise ``BudgetError`` if this release would overrun the budget of one of its examples."""
        places, counts = self._counted(id_numbers(ids))
        self._check(ids, places, certificate.spec, self._spent_after(places, counts, certificate))

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
        places, counts = self._counted(numbers)
        if not covered:
            after = self._spent_after(places, counts, certificate)
            self._check(ids, places, certificate.spec, after)
            self._columns["sum_kl"][places] += counts * self._cost(certificate)
        releases = self._columns["releases"]
        releases[places] = np.minimum(releases[places] + counts, MOST_RELEASES)
        self.releases += 1

    def charge_labels(
        self, ids: Values, certificate: LabelCertificate, *, tag: str, secret: str | None = None
    ) -> None:
        """Count randomised labels under a secret, once per example, or raise and count nothing.

        ``tag`` stands for the secret, the mechanism and its plan, ``secret`` for the secret alone
        (without, every tag has one of its own); neither is the secret itself. Another mechanism,
        epsilon or sigma under a secret that is counted already is refused.
        """
        entry = Secret.of(certificate, tag=tag, secret=secret or tag)
        bit = secret_bit(entry, self._secrets)
        places = np.unique(self._columns.place(id_numbers(ids)))
        held = self._columns["secrets"][places]
        places = places[(held & bit) == 0]
        if len(places):
            self._check(ids, places, entry.spec, self._spent_at(places), label=entry)
            if entry not in self._secrets:
                self._secrets.append(entry)
            self._columns["secrets"][places] |= bit

    def charge_measures(self, bits: float) -> None:
        """Count measures of the model that are told to a peer, at most so many bits.

        They come from true labels and no certificate covers them, so a budget refuses them.
        """
        if not 0 <= bits < float("inf"):
            raise ParameterError(f"bits must be a finite number from 0 on, got {bits}")
        if self.budget is not None:
            raise BudgetError(
                f"budget {self.budget}: measures of the model tell up to {bits:.4g} bits about the "
                "labels that no certificate covers; nothing was told; set share_metrics = false"
            )
        self.measures += 1
        self.measure_bits += bits

    def spent(self, ids: Values) -> Spent:
        """Return what was released about these examples so far; 0 for those never seen."""
        places = self._columns.find(id_numbers(ids))
        known = np.flatnonzero(places >= 0)
        found = self._at(places[known])
        spent = Spent.nothing(len(places))
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
        """Return everything as plain arrays and a dictionary of plain values, to be stored."""
        keys = self._columns.keys()
        arrays = {name: self._columns[name].copy() for name in _FILLS}
        if keys is not None:
            arrays["keys"] = keys.copy()
        each = self.per_release
        packed = pack(self.run, self.budget, self.releases, self._secrets, per_release=each)
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
        secrets = unpack(arrays, values, run=run, names=names, per_release=per_release)
        budget, each = budget or values["budget"], per_release or values.get("per_release")
        made = cls(run=run, budget=budget, per_release=each, measured=measured)
        made._columns = ExampleColumns.restore(_FILLS, arrays, arrays.get("keys"))
        made._secrets = secrets
        made.releases = int(values["releases"])
        made.measures = int(values.get("measures", 0))
        made.measure_bits = float(values.get("measure_bits", 0.0))
        return made

    def _counted(self, numbers: Ints) -> tuple[Ints, Floats]:
        """Return the places of the examples and how often each is in the batch."""
        places, counts = np.unique(self._columns.place(numbers), return_counts=True)
        return places, counts.astype(np.float64)

    def _at(self, places: Ints) -> Spent:
        """Return what is spent at these places."""
        columns = self._columns
        return add_up(
            columns["sum_kl"][places],
            columns["secrets"][places],
            self._secrets,
            releases=columns["releases"][places].astype(np.int64),
        )

    def _cost(self, certificate: Certificate) -> float:
        """Return what a release costs each of its examples."""
        each = self.per_release
        return release_cost(certificate) if each is None else planned_cost(certificate, each)

    def _spent_at(self, places: Ints) -> Floats:
        """Return what releases of gradients count for against a budget, as planned or as spent."""
        if self.per_release is None:
            return np.asarray(self._columns["sum_kl"][places])
        return self._columns["releases"][places].astype(np.float64) * self.per_release

    def _spent_after(self, places: Ints, counts: Floats, certificate: Certificate) -> Floats:
        """Return the same after one more release, in which each place is so many times."""
        if self.per_release is None:
            return self._spent_at(places) + counts * self._cost(certificate)
        if self.over_plan(certificate):
            return np.full(len(places), math.inf)
        times = self._columns["releases"][places] + counts
        return np.where(times > MOST_RELEASES, math.inf, times * self.per_release)

    def _check(
        self, ids: Values, places: Ints, spec: str, after: Floats, *, label: Secret | None = None
    ) -> None:
        """Refuse what would be spent at these places if the budget of one does not allow it."""
        if self.budget is None:
            return
        columns, secrets = self._columns, list(self._secrets)
        if not secrets and label is None:  # the most spent has the highest bound
            most = after.argmax(axis=0, keepdims=True)
            after, places = after[most], places[most]
        held = columns["secrets"][places]
        if label is not None:
            held = held | secret_bit(label, self._secrets)
            secrets += [] if label in secrets else [label]
        values = add_up(after, held, secrets).of(self.budget.kind)
        worst = int(values.argmax())
        if self.budget.allows(float(values[worst])):
            return
        numbers = id_numbers(ids)
        row = int(np.flatnonzero(columns.find(numbers) == places[worst])[0])
        own = places[worst : worst + 1]
        before = add_up(self._spent_at(own), columns["secrets"][own], self._secrets)
        raise BudgetError(
            refusal(
                self.budget,
                spec=spec,
                example=np.asarray(ids)[row],
                before=float(before.of(self.budget.kind)[0]),
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
