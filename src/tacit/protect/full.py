"""Marvell's noise for classes of any covariance: from a batch to a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from tacit.errors import ReleaseError
from tacit.machine import factor
from tacit.protect._full_solver import FullSolution, solve_full, solve_narrow
from tacit.protect.base import BATCH, RUNNING, Batch, Plan, noise_only
from tacit.protect.covariances import ClassCovariances
from tacit.protect.parts import Isotropic, Part, Shaped
from tacit.rows import to_place

__all__ = ["FullNoise", "plan_full"]

_ASSUMPTION = (
    "the gradients of each class are Gaussian with the sample covariance of the very rows that it "
    "protects, {0.negatives} negatives and {0.positives} positives; population level, one release, "
    "no side information about single examples"
)

_SPARE = 2.0**-18  # share of the power that is left unspent in float32
_COARSE = 2.0**-7  # share of the claim that float32's rounding may add to it


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FullNoise:
    """The noise of one batch by class, in units of ``2 ** exponent``; kept for batches without.

    Attributes:
        cores: ``[r, r]`` each, negatives first: normals times this have the noise covariance;
            float32 where the statistics were. Zero below the diagonal.
        basis: what the coordinates mean, as in ``ClassCovariances``.
        outside: standard deviation of the noise that every row gets besides, in all directions.
        exponent: the power of two that the above are divided by.
        sizes: traces, then Frobenius norms, of both noise covariances before they were factored.
    """

    cores: tuple[Tensor, Tensor]
    basis: Tensor | None
    outside: float
    exponent: int
    sizes: tuple[float, float, float, float] | None = None

    @classmethod
    def of(cls, found: ClassCovariances, solved: FullSolution) -> FullNoise | None:
        """Return the noise that has the solved covariances, laid out as it is after a restart.

        None where rounding has left one of them without a square root.
        """
        cores = _factored(solved.noise)
        if cores is None:
            return None
        return cls(
            cores=(cores[0], cores[1]),
            basis=None if found.basis is None else found.basis.contiguous(),
            outside=math.sqrt(solved.outside),
            exponent=found.exponent,
            sizes=(*solved.traces, *solved.spreads),
        )

    def parts(self, batch: Batch) -> tuple[Part, ...]:
        """Return this noise for the rows of a batch, never too small for their size."""
        scale = 2.0 ** max(self.exponent, batch.exponent or self.exponent)
        basis = None if self.basis is None else self.basis.to(batch.rows)
        parts: list[Part] = [Isotropic(std=self.outside * scale)] if self.outside > 0 else []
        for label, (core, rows) in enumerate(zip(self.cores, batch.sides, strict=True)):
            if len(rows):
                place, own = to_place(rows, batch.rows), core.to(batch.rows.device)
                known = None if self.sizes is None else (self.sizes[label], self.sizes[2 + label])
                shaped = Shaped(
                    scale=scale, core=own, basis=basis, rows=place, upper=True, known=known
                )
                parts.append(shaped)
        return tuple(parts)


def plan_full(
    batch: Batch, memory: FullNoise | None, *, s: float | None, target: float | None
) -> Plan[Any]:
    """Return the noise for this batch's class covariances, or that of the last batch that had any.

    ``s`` is the power in units of the squared mean difference, ``target`` a sumKL; one is given.
    """
    for narrow in (True, False):
        found = ClassCovariances.of(batch, narrow=narrow and s is not None)
        if found is None or not found.usable():
            break
        plan = _solved(batch, found, s, target)
        if plan is not None:
            return plan
    if memory is not None:
        return Plan(noise=memory.parts(batch), memory=memory, how=RUNNING)
    return noise_only(batch, None)


def _solved(
    batch: Batch, found: ClassCovariances, s: float | None, target: float | None
) -> Plan[Any] | None:
    """Return the plan by these statistics, or None where float32 is too coarse for it."""
    gap = found.gap
    if found.narrow is not None:
        # What rounding does to the factors of the noise must not overrun the budget.
        power = (s or 0.0) * gap * (1.0 - _SPARE)
        narrow = solve_narrow(found.narrow, p=found.p, power=power)
        claim = math.inf if narrow is None else _claim(found, narrow)
        if narrow is None or claim - narrow.sum_kl > _COARSE * claim:
            return None
        solved = narrow
    else:
        solved = solve_full(
            difference=found.difference,
            covs=found.covs,
            p=found.p,
            width=batch.rows.shape[1],
            power=None if s is None else s * gap,
            sum_kl=target,
        )
        claim = solved.sum_kl
    noise = FullNoise.of(found, solved)
    if noise is None and found.narrow is not None:
        return None
    if noise is None:
        raise ReleaseError(
            "the planned noise has no square root in float64: nothing was released; raise s"
        )
    return Plan(
        noise=noise.parts(batch),
        memory=noise,
        how=BATCH,
        assumption=_ASSUMPTION.format(found),
        sum_kl=claim,
        any_covariance=True,
        limit=None if s is None else math.sqrt(s * gap) * 2.0**found.exponent,
    )


def _factored(noise: Tensor) -> Tensor | None:
    """Return U with ``U'U`` the noise for both classes, or None where rounding has left it none.

    In float32 in its place.
    """
    if noise.dtype == torch.float32:
        return noise if factor(noise) else None
    cores, failed = torch.linalg.cholesky_ex(noise)
    return None if failed.any() else cores.mT.contiguous()


def _claim(found: ClassCovariances, solved: FullSolution) -> float:
    """Return the sumKL solved in float32 and all that rounding may have added to it.

    ``(sqrt(sumKL) + e sqrt(k))^2 + (e k)^2 / 2``, ``e`` the rounding and ``k`` the largest power
    of a row before and after over the least variance of its noise: a mean difference that is off
    by ``e sqrt(t)`` and covariances off by ``e t``, both where there is the least noise.
    """
    most = (found.size + max(solved.traces)) / solved.floor
    apart = math.sqrt(solved.sum_kl) + found.rounding * math.sqrt(most)
    return apart * apart + 0.5 * (found.rounding * most) ** 2
