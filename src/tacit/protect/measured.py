"""The divergence of a release's classes by their own covariances, whatever was assumed of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tacit.protect._full_solver import sum_kl_of
from tacit.protect.base import Batch, Plan
from tacit.protect.covariances import ClassCovariances
from tacit.protect.parts import Along, Isotropic, Part
from tacit.rows import on_host

__all__ = ["measured_sum_kl"]


def measured_sum_kl(batch: Batch, plan: Plan[Any]) -> float | None:
    """Return the sumKL of Gaussian classes with this batch's covariances plus the planned noise.

    Infinite where one class has noise in a direction in which the other has nothing, as with
    isotropic noise for one class of gradients that lie near a few directions. None where the batch
    has no covariances, or noise that follows each row and is not Gaussian for a class.

    >>> from tacit import protect, testing
    >>> batch = Batch.of(testing.low_rank_cut(512, 16))
    >>> plan = protect.get("marvell(s=4)").stages[0].plan(batch, None)
    >>> measured_sum_kl(batch, plan) > 100 * plan.sum_kl
    True
    """
    if not plan.signal:
        return 0.0
    found = ClassCovariances.of(batch)
    if found is None or not found.usable():
        return None
    covariances: list[Tensor] = []
    outside: list[float] = []
    for label, own in enumerate((found.cov0, found.cov1)):
        row = int((batch.labels == label).argmax())
        added = [_added(part, row, found) for part in plan.noise]
        if any(cov is None for cov, _ in added):
            return None
        covariances.append(own + sum(cov for cov, _ in added if cov is not None))
        outside.append(sum(variance for _, variance in added))
    if found.basis is not None and not math.isclose(outside[0], outside[1], rel_tol=1e-9):
        return math.inf
    return sum_kl_of(covariances[0], covariances[1], found.difference)


def _added(part: Part, row: int, found: ClassCovariances) -> tuple[Tensor | None, float]:
    """Return the covariance that a part adds to a class, one of whose rows is given.

    In the coordinates of the covariances; and its variance in each direction outside of them.
    """
    unit, size = 2.0**found.exponent, len(found.difference)
    zero = torch.zeros(size, size, dtype=torch.float64)
    if isinstance(part, Along):
        if part.direction.dim() == 2:
            return None, 0.0
        line = part.direction.cpu().double()
        line = line if found.basis is None else found.basis.cpu() @ line
        return torch.outer(line, line) * (float(on_host(part.std)[row]) / unit) ** 2, 0.0
    if part.rows is not None and row not in part.rows.tolist():
        return zero, 0.0
    if isinstance(part, Isotropic):
        variance = (part.std / unit) ** 2
        return torch.eye(size, dtype=torch.float64) * variance, variance
    core = part.core.cpu().double() * (part.scale / unit)
    if part.basis is not None:
        core = core @ part.basis.cpu().double()
        core = core if found.basis is None else core @ found.basis.cpu().T
    return core.T @ core, 0.0
