"""How releases add up: the cost of one release, and what several reveal together.

Pure functions of certificates and arrays; the ledger keeps the counts. Divergences of independent
releases add up, and so do epsilons of independent label mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError, ParameterError
from tacit.measure._arrays import Ints
from tacit.measure.bounds import gaussian_auc

if TYPE_CHECKING:  # the records hold tensors, and measures load without torch
    from tacit.types import Certificate, LabelCertificate

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]

_RUNNING = "from the running statistics of earlier batches"
"""How a certificate says that its batch had too few rows of a class for a claim of its own."""
_ROUNDING = 1e-4  # relative: how far off a divergence may be that a decomposition measured


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

    def limited_by(self, kind: Literal["auc", "sum_kl", "epsilon"]) -> Floats:
        """Return the values that a budget of this kind limits."""
        return {"auc": self.auc_bound, "sum_kl": self.sum_kl, "epsilon": self.epsilon}[kind]


@final
@dataclass(frozen=True, kw_only=True)
class LabelCharge:
    """What a label mechanism costs each example, once; ``epsilon`` is infinite for Gaussian noise.

    ``secret`` is a tag of the label secret alone, ``tag`` one of the secret, the mechanism and its
    plan; neither is the secret itself.
    """

    tag: str
    secret: str
    spec: str
    classes: int
    epsilon: float
    sum_kl: float

    @classmethod
    def of(cls, certificate: LabelCertificate, *, tag: str, secret: str) -> LabelCharge:
        """Return the charge of a certificate."""
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

    def check_second(self, other: LabelCharge) -> None:
        """Refuse another mechanism under the secret of this one."""
        if self.secret != other.secret:
            return
        if (self.spec, self.classes) != (other.spec, other.classes):
            raise InputError(
                f"{other.spec} for {other.classes} classes would be a second release of labels "
                f"that this secret has randomised by {self.spec} for {self.classes}: use "
                f"{self.spec}, or a new label secret, whose epsilon adds to the first"
            )


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
    """Return what a release costs where each was planned to cost at most ``per_release``.

    Infinity where it costs more than planned. A release by the statistics of earlier batches claims
    nothing of its own and costs what was planned: it has noise for classes like theirs.
    """
    if certificate.sum_kl is None:
        return per_release if _RUNNING in certificate.how else math.inf
    cost = release_cost(certificate)
    return min(cost, per_release) if cost <= per_release * (1 + _ROUNDING) else math.inf


def compose(
    gradient_kl: Floats, held: Bits, charges: Sequence[LabelCharge], *, releases: Ints | None = None
) -> Spent:
    """Return what gradients and label mechanisms together have released about each example.

    ``gradient_kl`` [n] is the sum over releases of gradients; bit k of ``held`` [n] says that
    ``charges[k]`` counts for the example.
    """
    label_kl, epsilon = np.zeros(len(gradient_kl)), np.zeros(len(gradient_kl))
    gaussian = np.zeros(len(gradient_kl), dtype=bool)
    for number, charge in enumerate(charges):
        own = (held & np.uint8(1 << number)) != 0
        label_kl[own] += charge.sum_kl
        epsilon[own] += charge.epsilon
        gaussian |= own & (charge.epsilon == math.inf)
    bound = composed_auc_bound(gradient_kl, label_kl, epsilon)
    if gaussian.any():
        _tighten_gaussian(bound, gradient_kl, held, charges, label_kl)
    return Spent(
        sum_kl=gradient_kl + label_kl,
        epsilon=np.where(gradient_kl > 0, math.inf, epsilon),
        auc_bound=bound,
        releases=np.zeros(len(gradient_kl), dtype=np.int64) if releases is None else releases,
    )


def composed_auc_bound(gradient_kl: Floats, label_kl: Floats, epsilon: Floats) -> Floats:
    """Return the AUC that no score of all releases exceeds, per example.

    ``gradient_kl`` was spent by releases of gradients, ``label_kl`` by label mechanisms,
    ``epsilon`` by these too, infinite where one of them has none. Theorem 1 holds for the sum of
    all divergences of independent releases; where only randomised labels count,
    ``e^epsilon / (1 + e^epsilon)`` holds as well, and the smaller of both is returned.

    >>> composed_auc_bound(np.zeros(1), np.full(1, 0.33), np.log([64 / 36])).round(2).tolist()
    [0.64]
    """
    total = gradient_kl + label_kl
    root = np.sqrt(np.minimum(total, 4.0))
    bound: Floats = 0.5 + root / 2 - root * root / 8
    with np.errstate(over="ignore"):
        labels_only = 1 / (1 + np.exp(-epsilon))
    return np.where(gradient_kl > 0, bound, np.minimum(bound, labels_only))


def _tighten_gaussian(
    bound: Floats,
    gradient_kl: Floats,
    held: Bits,
    charges: Sequence[LabelCharge],
    label_kl: Floats,
) -> None:
    """Write the exact AUC, ``gaussian_auc``, where only labels under Gaussian noise were released.

    Their sum is one Gaussian observation, whose best score has that AUC.
    """
    others = sum(1 << number for number, one in enumerate(charges) if one.epsilon < math.inf)
    only = (gradient_kl == 0) & (held != 0) & ((held & np.uint8(others)) == 0)
    for value in np.unique(label_kl[only]):
        bound[only & (label_kl == value)] = gaussian_auc(float(value))
