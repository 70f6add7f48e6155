"""The divergence of a release's classes by their own covariances, whatever was assumed of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.protect.base import Batch, Plan
from tacit.protect.marvell.class_stats import Moments
from tacit.protect.marvell.full_solver import sum_kl_of
from tacit.protect.marvell.multiclass_solver import pair_divergences
from tacit.protect.marvell.subspace import ClassCovariances, Span
from tacit.protect.noise_terms import Along, Isotropic, Part, Shaped


def measured_sum_kl(batch: Batch, plan: Plan[Any]) -> float | None:
    """Return the sumKL of Gaussian classes with this batch's covariances plus the planned noise.

    Infinite where one class has noise in a direction in which the other has nothing, as with
    isotropic noise for one class of gradients that lie near a few directions. Of more than two
    classes, that of the pair that is easiest to tell apart. None where the batch
    has no covariances, or noise that follows each row and is not Gaussian for a class.

    >>> from tacit import protect, testing
    >>> batch = Batch.of(testing.low_rank_cut(512, 16))
    >>> plan = protect.get("marvell(s=4)").stages[0].plan(batch, None)
    >>> measured_sum_kl(batch, plan) > 100 * plan.sum_kl
    True
    """
    if not plan.signal:
        return 0.0
    if batch.classes > 2:
        return _worst_pair(batch, plan)
    found = ClassCovariances.of(batch)
    if found is None or not found.usable(s=None, resolution=batch.resolution):
        return None
    covariances: list[Tensor] = []
    outside: list[float] = []
    for label, own in enumerate(found.covs):
        row = int((batch.labels == label).argmax())
        added = [_added(part, row, found.basis, own, found.exponent) for part in plan.noise]
        if any(cov is None for cov, _ in added):
            return None
        covariances.append(own + sum(cov for cov, _ in added if cov is not None))
        outside.append(sum(variance for _, variance in added))
    if found.basis is not None and not math.isclose(outside[0], outside[1], rel_tol=1e-9):
        return math.inf
    return sum_kl_of(covariances[0], covariances[1], found.difference)


def _worst_pair(batch: Batch, plan: Plan[Any]) -> float | None:
    """Return the largest sumKL of two of many classes; None if one of them has a single row."""
    found = Moments.of(batch, classes=batch.classes)
    names = np.flatnonzero(found.counts)
    if len(names) < 2 or found.counts[names].min() < 2 or batch.exponent is None:
        return None
    means = torch.from_numpy(found.means[names])
    span = Span.of(batch, names, means=means, exponent=found.exponent)
    outside: list[float] = []
    for own, name in zip(span.covs, names, strict=True):
        row = int((batch.labels == name).argmax())
        added = [_added(part, row, span.basis, own, found.exponent) for part in plan.noise]
        if any(cov is None for cov, _ in added):
            return None
        own.add_(sum(cov for cov, _ in added if cov is not None))
        outside.append(sum(variance for _, variance in added))
    if span.basis is not None and not math.isclose(min(outside), max(outside), rel_tol=1e-9):
        return math.inf
    return float(pair_divergences(span.covs, span.means).max())


def _added(
    part: Part, row: int, basis: Tensor | None, like: Tensor, exponent: int
) -> tuple[Tensor | None, float]:
    """Return the covariance that a part adds to a class, one of whose rows is given.

    In the coordinates of the covariances; and its variance in each direction outside of them.
    """
    unit = 2.0**exponent
    match part:
        case Along() if part.direction.dim() == 2:
            return None, 0.0
        case Along():
            line = part.direction if basis is None else basis @ part.direction
            return torch.outer(line, line) * (float(part.std[row]) / unit) ** 2, 0.0
        case Isotropic():
            std = part.std if isinstance(part.std, float) else float(part.std[row])
            variance = (std / unit) ** 2
            return torch.eye(len(like), dtype=torch.float64) * variance, variance
        case Shaped():
            core = part.cores[int(part.owner[row])] * (part.scale / unit)
            if part.basis is not None:
                core = core @ part.basis
                core = core if basis is None else core @ basis.T
            return core.T @ core, 0.0
