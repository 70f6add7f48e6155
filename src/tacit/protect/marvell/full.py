"""Marvell's noise for classes of any covariance: from a batch to a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from tacit.protect.base import BATCH, RUNNING, Batch, Plan, noise_only
from tacit.protect.marvell.full_solver import FullSolution, solve_full
from tacit.protect.marvell.subspace import ClassCovariances
from tacit.protect.noise_terms import Isotropic, Part, Shaped

_ASSUMPTION = (
    "for honest batches: the feature party follows the protocol; "
    "the gradients of each class are Gaussian with the sample covariance of the very rows that it "
    "protects, {0.negatives} negatives and {0.positives} positives; population level, one release, "
    "no side information about single examples"
)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FullNoise:
    """The noise of one batch by class, in units of ``2 ** exponent``; kept for batches without.

    Attributes:
        cores: ``[2, r, r]``, negatives first: normals times this have the noise covariance.
        basis: what the coordinates mean, as in ``ClassCovariances``.
        outside: standard deviation of the noise that every row gets besides, in all directions.
        exponent: the power of two that the above are divided by.
        sizes: ``[2, 2]``, trace and Frobenius norm of each noise covariance.
    """

    cores: Tensor
    basis: Tensor | None
    outside: float
    exponent: int
    sizes: Tensor

    @classmethod
    def of(cls, found: ClassCovariances, solved: FullSolution) -> FullNoise | None:
        """Return the noise that has the solved covariances, in the memory layout of a restored one.

        None where rounding has left one of them without a square root.
        """
        factors, failed = torch.linalg.cholesky_ex(solved.noise)
        if failed.any():
            return None
        return cls(
            cores=factors.mT.contiguous(),
            basis=found.basis,
            outside=math.sqrt(solved.outside),
            exponent=found.exponent,
            sizes=solved.sizes,
        )

    def parts(self, batch: Batch) -> tuple[Part, ...]:
        """Return this noise for the rows of a batch, never too small for their size."""
        scale = batch.scale(self.exponent)
        owner = torch.from_numpy(batch.owner)
        shaped = Shaped(
            scale=scale, cores=self.cores, owner=owner, basis=self.basis, sizes=self.sizes
        )
        return (Isotropic(std=self.outside * scale), shaped) if self.outside > 0 else (shaped,)


def plan_full(
    batch: Batch, memory: FullNoise | None, *, s: float | None, target: float | None
) -> Plan[Any]:
    """Return the noise for this batch's class covariances, or that of the last batch that had any.

    ``s`` is the power in units of the squared mean difference, ``target`` a sumKL; one is given.
    """
    found = ClassCovariances.of(batch)
    usable = found is not None and found.usable(s=s, resolution=batch.resolution)
    plan = _solved(batch, found, s, target) if found is not None and usable else None
    if plan is not None:
        return plan
    if memory is not None:
        return Plan(noise=memory.parts(batch), memory=memory, how=RUNNING)
    return noise_only(batch, None)


def _solved(
    batch: Batch, found: ClassCovariances, s: float | None, target: float | None
) -> Plan[Any] | None:
    """Return the plan by these statistics, or None where rounding leaves it no noise to draw."""
    gap = found.gap
    solved = solve_full(
        difference=found.difference,
        covs=found.covs,
        p=found.p,
        width=batch.rows.shape[1],
        power=None if s is None else s * gap,
        sum_kl=target,
    )
    noise = FullNoise.of(found, solved)
    if noise is None:
        return None
    return Plan(
        noise=noise.parts(batch),
        memory=noise,
        how=BATCH,
        assumption=_ASSUMPTION.format(found),
        sum_kl=solved.sum_kl,
        any_covariance=True,
        limit=None if s is None else math.sqrt(s * gap) * 2.0**found.exponent,
    )
