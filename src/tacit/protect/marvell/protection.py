"""Marvell: the Gaussian noise that leaves two classes hardest to tell apart for its power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import numpy as np
import torch

from tacit.errors import ParameterError
from tacit.measure.bounds import sum_kl_for_error
from tacit.protect.base import (
    BATCH,
    EMPIRICAL,
    PROTECTIONS,
    RUNNING,
    Batch,
    Plan,
    Protection,
    noise_only,
)
from tacit.protect.marvell.class_stats import ClassMeans, ClassStatistics
from tacit.protect.marvell.full import FullNoise, plan_full
from tacit.protect.marvell.isotropic_solver import MarvellSolution, solve_marvell
from tacit.protect.marvell.multiclass import plan_many
from tacit.protect.noise_terms import Along, Isotropic
from tacit.spec import require

Statistics = tuple[ClassStatistics, ...]
Memory = Statistics | FullNoise | ClassMeans

_REMEMBERED = 8  # batches whose statistics stand in for those of a batch that has none
_ASSUMPTION = (
    "for honest batches: the feature party follows the protocol; "
    "the gradients of each class are Gaussian with covariance uI (negatives) and vI (positives); "
    "population level, one release, no side information about single examples; u, v and the means "
    "are those of {0.negatives} negatives and {0.positives} positives"
)


@final
@PROTECTIONS.register("marvell")
@dataclass(frozen=True)
class Marvell(Protection[Memory]):
    """Add the class-wise Gaussian noise that minimises the sum of KL divergences.

    Negatives get ``N(0, S0)``, positives ``N(0, S1)`` with
    ``S = lam2 I + (lam1 - lam2) D D' / ||D||^2``, ``D`` the difference of the class means, and the
    four variances that minimise ``KL(P1 || P0) + KL(P0 || P1)``. Exactly one of: ``s``, the noise
    power in units of ``||D||^2``; ``sum_kl``, the target to reach with the least power; ``error``,
    a lower bound ``L`` of the detection error, which is ``sum_kl = (2 - 4L)^2``. With ``share`` it
    is of the error that weighs missed positives by that share and false alarms by the rest, at
    most ``m = min(share, 1 - share)``: ``sum_kl = 4 (1 - L / m)^2``. ``share`` is a number that is
    set beforehand, such as the share of positives; the noise does not follow a batch's.

    ``covariance=full`` takes the classes' sample covariances for ``uI`` and ``vI``: each class gets
    noise shaped like the other's, so that both covariances agree in every direction, and the rest
    of the power covers what is not Gaussian and hides the means (``full_solver``).

    More than two classes share one noise shape that minimises the mean sumKL over pairs of examples
    of different classes (``multiclass_solver``); ``s`` is in units of the mean ``||D||^2`` over
    these pairs, and ``sum_kl`` and ``error`` hold for every pair.

    Guarantee: for honest batches, no score of one release has an AUC above ``auc_bound(sum_kl)``,
    if the gradients of each class are Gaussian with covariance ``uI`` and ``vI``, or with the
    batch's sample covariances if ``full``. A feature party that chooses its embeddings beats it
    (docs/threat-model.md). Real gradients lie near a few directions, where the energy attack
    separates isotropic noise on one class from none on the other all the same. Of many classes, it
    holds for any pair and for any class against the rest, if ``uI`` is common to all classes.

    References:
        Li et al., ICLR 2022, Theorems 1 and 2, Algorithm 1 (its line 1 divides by ``d`` and means
        the batch size); technical report, "Approximate Theoretical Guarantees" for ``error``, its
        ``M_p`` for ``share``, and its problem with general ``Sigma_+``, ``Sigma_-`` before they
        are approximated for ``full``.

    Departures: the problem is solved exactly; the target needs no search over powers, and one that
    is met without noise still gets the noise of ``s = 1``. A batch with fewer than two rows of a
    class, or with equal means, takes the running statistics of earlier batches, without a claim;
    before there are any, noise without signal is released. As published, the wider class may get
    no noise at all: its rows then leave as they are; not so if ``full``, where every row gets
    noise in every direction; it equalises and covers by fixed shares, which is not the optimum.
    Of many classes, one that is absent or has one row takes its running mean; a class of one row
    that has none, noise without signal.

    >>> str(PROTECTIONS.get("marvell(4)"))
    'marvell(s=4)'
    """

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})
    memory_types: ClassVar[tuple[type, ...]] = (ClassStatistics, ClassMeans, FullNoise)
    s: float | None = None
    sum_kl: float | None = None
    error: float | None = None
    covariance: Literal["isotropic", "full"] = "isotropic"
    share: float = 0.5

    def __post_init__(self) -> None:
        given = {k: getattr(self, k) for k in ("s", "sum_kl", "error")}
        chosen = [f"{k}={v}" for k, v in given.items() if v is not None]
        if len(chosen) != 1:
            got = " and ".join(chosen) or "none"
            raise ParameterError(f"marvell takes exactly one of s, sum_kl, error, got {got}")
        require(self.s is None or 0 < self.s < math.inf, "marvell: s must be positive", self.s)
        require(
            self.sum_kl is None or 0 < self.sum_kl < math.inf,
            "marvell: sum_kl must be positive",
            self.sum_kl,
        )
        require(0 < self.share < 1, "marvell: share must be above 0 and below 1", self.share)
        most = min(self.share, 1 - self.share)
        require(
            self.error is None or 0 <= self.error < most,
            f"marvell: error must be at least 0 and below {most:g}",
            self.error,
        )
        require(
            self.error is not None or self.share == 0.5,
            "marvell: share weighs the errors of error=, which must be given",
            self.share,
        )

    def plan(self, batch: Batch, memory: Memory | None) -> Plan[Memory]:
        """Return the optimal noise for this batch's statistics, or the running ones."""
        if batch.classes > 2:
            known = memory if isinstance(memory, ClassMeans) else None
            full = self.covariance == "full"
            return plan_many(batch, known, s=self.s, target=self.target, full=full)
        if self.covariance == "full":
            last = memory if isinstance(memory, FullNoise) else None
            return plan_full(batch, last, s=self.s, target=self.target)
        earlier = memory if isinstance(memory, tuple) else ()
        found = ClassStatistics.of(batch)
        if found is not None and found.usable(s=self.s, resolution=batch.resolution):
            return self._solved(batch, found, (*earlier, found)[-_REMEMBERED:], BATCH)
        if earlier:
            return self._solved(batch, ClassStatistics.average(earlier), earlier, RUNNING)
        return noise_only(batch, None)

    def largest_sum_kl(self) -> float | None:
        """Return the target where every batch reaches it: with full covariances."""
        return self.target if self.covariance == "full" else None

    def why_unplanned(self) -> str:
        """Return why a budget cannot be planned."""
        if self.s is not None:
            return (
                "has a cost per release that depends on the labels of its batch, so that where the "
                "budget ends would tell something of them"
            )
        if self.covariance != "full":
            return (
                "claims nothing where gradients lie near a few directions, and whether they do "
                "depends on the labels of each batch"
            )
        return super().why_unplanned()

    def classes_seen(self, memory: Memory | None) -> int:
        """Return how many classes have a mean in memory."""
        return len(memory.counts) if isinstance(memory, ClassMeans) else 2

    @property
    def target(self) -> float | None:
        """The divergence that is asked for; None where a power is."""
        return self.sum_kl if self.error is None else sum_kl_for_error(self.error, self.share)

    def _solved(
        self, batch: Batch, stats: ClassStatistics, keep: Statistics, how: str
    ) -> Plan[Memory]:
        d, gap = batch.rows.shape[1], stats.gap
        used = _stds(self._solve(d, stats, gap))
        used = used if how == BATCH else used.for_all()
        scale = batch.scale(stats.exponent)
        measured = how == BATCH
        own, line = batch.owner, torch.from_numpy(stats.difference / math.sqrt(gap))
        across, along = (
            torch.from_numpy(scale * np.array(stds)[own])
            for stds in ((used.across0, used.across1), (used.along0, used.along1))
        )
        return Plan(
            noise=(Isotropic(std=across), Along(std=along, direction=line)),
            memory=keep,
            how=how,
            assumption=_ASSUMPTION.format(stats) if measured else EMPIRICAL,
            sum_kl=_released_sum_kl(d, stats, gap, used) if measured else None,
            limit=math.sqrt(self.s * gap) * scale if measured and self.s is not None else None,
        )

    def _solve(self, d: int, stats: ClassStatistics, gap: float) -> MarvellSolution:
        power = None if self.s is None else self.s * gap
        total = stats.negatives + stats.positives
        solve = partial(
            solve_marvell,
            d=d,
            p=stats.positives / total,
            q=stats.negatives / total,
            u=stats.u,
            v=stats.v,
            gap=gap,
        )
        found = solve(power=power, sum_kl=self.target)
        # A target that is met without noise would release the gradients as they are.
        return found if found.power > 0 else solve(power=gap)


@final
@dataclass(frozen=True)
class _Stds:
    """Standard deviations to draw: across the mean difference, and what is added along it."""

    across0: float
    along0: float
    across1: float
    along1: float

    def for_all(self) -> _Stds:
        """Return the larger of each for both classes: the optimum may leave one as it is."""
        across, along = max(self.across0, self.across1), max(self.along0, self.along1)
        return _Stds(across0=across, along0=along, across1=across, along1=along)


def _stds(found: MarvellSolution) -> _Stds:
    return _Stds(
        across0=math.sqrt(found.lam20),
        along0=math.sqrt(found.lam10 - found.lam20),
        across1=math.sqrt(found.lam21),
        along1=math.sqrt(found.lam11 - found.lam21),
    )


def _released_sum_kl(d: int, stats: ClassStatistics, gap: float, used: _Stds) -> float:
    """Return the divergence of the perturbed classes, from the noise that is drawn.

    ``2 sumKL = (d-1)(A-B)^2/(AB) + (a-b)^2/(ab) + gap/a + gap/b`` with the variances ``a, b`` of
    negatives and positives along the mean difference and ``A, B`` across it.
    """
    across0, across1 = used.across0**2 + stats.u, used.across1**2 + stats.v
    a, b = across0 + used.along0**2, across1 + used.along1**2
    if min(a, b) <= 0:
        return math.inf
    twice = (a - b) ** 2 / (a * b) + gap / a + gap / b
    if d > 1 and across0 != across1:
        if min(across0, across1) <= 0:
            return math.inf
        twice += (d - 1) * (across0 - across1) ** 2 / (across0 * across1)
    return twice / 2
