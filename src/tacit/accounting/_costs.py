"""What the ledger counts: the cost of a release, the sum of costs, and how they are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import numpy.typing as npt

from tacit.accounting.budget import Budget, bounds_after, way_out
from tacit.errors import InputError, ParameterError
from tacit.measure._arrays import Ints
from tacit.measure.bounds import gaussian_auc

if TYPE_CHECKING:  # the records hold tensors, and measures load without torch
    from tacit.types import Certificate, LabelCertificate


Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]

_FORMAT = 2
_WITHOUT_SECRETS = 1
"""The format before: the same where no label mechanism was counted."""
_STAND_IN = "from the running statistics of earlier batches"
"""How the certificate of a release says that its batch had too little of a class for a claim."""
_ROUNDING = 1e-4  # relative: how far a divergence may be off that is measured by a decomposition


@final
@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was released about some examples, one entry each.

    ``sum_kl`` counts releases of gradients and label mechanisms together; ``epsilon`` is infinite
    where something was released that has none. ``releases`` stops at 65535.
    """

    sum_kl: Floats
    epsilon: Floats
    auc_bound: Floats
    releases: Ints

    @classmethod
    def nothing(cls, count: int) -> Spent:
        """Return the entries of examples that were never released."""
        return cls(
            sum_kl=np.zeros(count),
            epsilon=np.zeros(count),
            auc_bound=np.full(count, 0.5),
            releases=np.zeros(count, dtype=np.int64),
        )

    def of(self, kind: Literal["auc", "sum_kl", "epsilon"]) -> Floats:
        """Return what a budget of this kind limits."""
        return {"auc": self.auc_bound, "sum_kl": self.sum_kl, "epsilon": self.epsilon}[kind]


@final
@dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """The total of a ledger: counts, and the most that was released about any example.

    ``gaussian_auc`` is a reference value for ``sum_kl``, not a bound. ``measure_bits`` is the most
    that measures of the model told in ``measures`` answers, in bits about all labels together; no
    bound per example covers them.
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
@dataclass(frozen=True, kw_only=True)
class Secret:
    """A label mechanism under one secret; ``epsilon`` is infinite for Gaussian noise.

    ``secret`` stands for the label secret alone, ``tag`` for it, the mechanism and its plan.
    """

    tag: str
    secret: str
    spec: str
    classes: int
    epsilon: float
    sum_kl: float

    @classmethod
    def of(cls, certificate: LabelCertificate, *, tag: str, secret: str) -> Secret:
        """Return the entry of a certificate."""
        epsilon = math.inf if certificate.epsilon is None else float(certificate.epsilon)
        if not (tag and epsilon > 0 and 0 <= certificate.sum_kl < math.inf):
            raise ParameterError(
                f"a label mechanism has a tag, a positive epsilon and a finite sum_kl, got {tag!r},"
                f" {certificate.epsilon} and {certificate.sum_kl}: pass guard.label_certificate()"
            )
        return cls(
            tag=tag,
            secret=secret,
            spec=certificate.spec,
            classes=certificate.classes,
            epsilon=epsilon,
            sum_kl=certificate.sum_kl,
        )

    def check_second(self, other: Secret) -> None:
        """Refuse another mechanism under the secret of this one."""
        if self.secret != other.secret:
            return
        if (self.spec, self.classes) != (other.spec, other.classes):
            raise InputError(
                f"{other.spec} for {other.classes} classes would be a second release of labels "
                f"that this secret has randomised by {self.spec} for {self.classes}: use "
                f"{self.spec}, or a new label secret, whose epsilon adds to the first"
            )


def secret_bit(entry: Secret, known: list[Secret]) -> np.uint8:
    """Return the bit that stands for a label secret among those known, or after them."""
    tags = [secret.tag for secret in known]
    if entry.tag not in tags and len(tags) == 8:
        raise InputError(
            "a ledger counts 8 label secrets, got a ninth: keep one secret per data set"
        )
    place = tags.index(entry.tag) if entry.tag in tags else len(tags)
    if place == len(tags):
        for held in known:
            held.check_second(entry)
    if place < len(tags) and known[place] != entry:
        raise InputError(
            f"{entry.spec} comes with the tag of {known[place].spec}: a tag stands for one "
            "mechanism under one secret"
        )
    return np.uint8(1 << place)


def release_cost(certificate: Certificate) -> float:
    """Return the larger of modelled and measured ``sum_kl``; infinity where nothing is claimed."""
    if certificate.sum_kl is None:
        return math.inf
    measured = certificate.measured_sum_kl
    costs = [certificate.sum_kl, 0.0 if measured is None else measured]
    if not all(cost >= 0 for cost in costs):
        raise ParameterError(
            f"sum_kl must be at least 0, got {certificate.sum_kl} and {measured} measured: a "
            "divergence is never negative or NaN"
        )
    return float(max(costs))


def planned_cost(certificate: Certificate, per_release: float) -> float:
    """Return what a release costs where each was planned to cost at most so much.

    Infinity where it does not keep to the plan. A release by the statistics of earlier batches
    claims nothing of its own and costs what was planned: it has noise for classes like theirs.
    """
    if certificate.sum_kl is None:
        return per_release if _STAND_IN in certificate.how else math.inf
    cost = release_cost(certificate)
    return min(cost, per_release) if cost <= per_release * (1 + _ROUNDING) else math.inf


def check_plan(budget: Budget | None, per_release: float | None) -> None:
    """Refuse a plan without a budget, or one in which releases cost nothing or everything."""
    if per_release is not None and not (budget is not None and 0 < per_release < math.inf):
        raise ParameterError(
            f"per_release is the positive sum_kl that a budget is planned with, got {per_release} "
            f"and budget {budget}: give both"
        )


def add_up(
    released: Floats, held: Bits, secrets: list[Secret], *, releases: Ints | None = None
) -> Spent:
    """Return the sums over releases of gradients and over the label secrets that are held."""
    label_kl, epsilon = np.zeros(len(released)), np.zeros(len(released))
    noisy = np.zeros(len(released), dtype=bool)
    for number, secret in enumerate(secrets):
        own = (held & np.uint8(1 << number)) != 0
        label_kl[own] += secret.sum_kl
        epsilon[own] += secret.epsilon
        noisy |= own & (secret.epsilon == math.inf)
    bound = bounds_after(released, label_kl, epsilon)
    if noisy.any():
        _sharpen(bound, released, held, secrets, label_kl)
    return Spent(
        sum_kl=released + label_kl,
        epsilon=np.where(released > 0, math.inf, epsilon),
        auc_bound=bound,
        releases=np.zeros(len(released), dtype=np.int64) if releases is None else releases,
    )


def _sharpen(
    bound: Floats, released: Floats, held: Bits, secrets: list[Secret], label_kl: Floats
) -> None:
    """Where nothing but Gaussian labels was released, the Gaussian AUC is exact."""
    others = sum(1 << number for number, one in enumerate(secrets) if one.epsilon < math.inf)
    only = (released == 0) & (held != 0) & ((held & np.uint8(others)) == 0)
    for value in np.unique(label_kl[only]):
        bound[only & (label_kl == value)] = gaussian_auc(float(value))


def refusal(
    budget: Budget, *, spec: str, example: object, before: float, after: float, certified: bool
) -> str:
    """Return the line that says what is spent, what the release would cost and the way out."""
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


def pack(
    run: str,
    budget: Budget | None,
    releases: int,
    secrets: list[Secret],
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
            {**vars(secret), "epsilon": None if secret.epsilon == math.inf else secret.epsilon}
            for secret in secrets
        ],
    }


def unpack(
    arrays: dict[str, npt.NDArray[Any]],
    values: dict[str, Any],
    *,
    run: str,
    names: tuple[str, ...],
    per_release: float | None,
) -> list[Secret]:
    """Check a stored state and return its label secrets."""
    without = values.get("format") == _WITHOUT_SECRETS and not values.get("secrets")
    if values.get("format") != _FORMAT and not without:
        raise InputError(
            f"a ledger's state has format {_FORMAT}, got {values.get('format')!r}: it was written "
            "by another version, which counts label secrets in another way; end the run with that "
            "version, or begin a new one"
        )
    if values.get("run") != run:
        raise InputError(
            f"this ledger belongs to run {values.get('run')!r}, not to {run!r}: what was released "
            "there says nothing of here; begin a new ledger"
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
        Secret(**{**one, "epsilon": math.inf if one["epsilon"] is None else one["epsilon"]})
        for one in values["secrets"]
    ]
