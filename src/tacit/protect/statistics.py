"""Class statistics of one batch of gradients, in float64 and free of scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from tacit.kernels import class_sums
from tacit.protect.base import Batch
from tacit.rows import GRID

__all__ = ["FLAT", "ClassStatistics", "shows", "sums_by_class"]

# No numpy matrix products: its thread pool and torch's would wait for each other's cores.
Vector = npt.NDArray[np.float64]

# Squared mean difference, at a largest value near one, that a release cannot show.
FLAT = (GRID / 2) ** 2


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassStatistics:
    """Mean difference and variances of two classes, in units of ``2 ** exponent``.

    Attributes:
        negatives: how many rows of class 0 there were; ``positives`` of class 1.
        difference: mean of the positives minus mean of the negatives, float64.
        u: variance per coordinate of the negatives; ``v`` that of the positives.
        exponent: the power of two that all of the above are divided by.
    """

    negatives: int
    positives: int
    difference: Vector
    u: float
    v: float
    exponent: int

    @cached_property
    def gap(self) -> float:
        """Squared norm of the mean difference."""
        return float(np.square(self.difference).sum())

    def usable(self, *, s: float | None, resolution: float) -> bool:
        """Whether noise in proportion to the mean difference survives a release's rounding."""
        return shows(self.gap, s=s, resolution=resolution)

    @staticmethod
    def average(several: Sequence[ClassStatistics]) -> ClassStatistics:
        """Return the average of several batches' statistics, in the units of the last one.

        Squared gaps are averaged, and the direction is the last batch's: mean differences of
        opposite signs would cancel, and with them the noise.
        """
        last, share = several[-1], 1 / len(several)
        units = [4.0 ** max(-400, min(400, one.exponent - last.exponent)) for one in several]
        pairs = list(zip(several, units, strict=True))
        gap = sum(one.gap * unit for one, unit in pairs) * share
        return replace(
            last,
            negatives=sum(one.negatives for one in several),
            positives=sum(one.positives for one in several),
            difference=last.difference * math.sqrt(gap / last.gap),
            u=sum(one.u * unit for one, unit in pairs) * share,
            v=sum(one.v * unit for one, unit in pairs) * share,
        )

    @classmethod
    def of(cls, batch: Batch) -> ClassStatistics | None:
        """Return the statistics of a batch, or None unless each class has two rows or more."""
        k = batch.exponent or 0
        counts, sums, squares = sums_by_class(batch, classes=2, unit=2.0**-k)
        means = sums / np.maximum(counts, 1)[:, None]
        spreads = squares / np.maximum(counts, 1) - np.square(means).sum(axis=1)
        if counts.min() < 2 or batch.exponent is None:
            return None
        return cls(
            negatives=int(counts[0]),
            positives=int(counts[1]),
            difference=means[1] - means[0],
            u=max(float(spreads[0]), 0.0) / batch.rows.shape[1],
            v=max(float(spreads[1]), 0.0) / batch.rows.shape[1],
            exponent=k,
        )


def shows(gap: float, *, s: float | None, resolution: float) -> bool:
    """Whether a squared mean difference, and ``s`` times it, is more than a release can lose."""
    return min(1.0, s or 1.0) * gap > max(FLAT, resolution**2)


def sums_by_class(
    batch: Batch, *, classes: int, unit: float
) -> tuple[npt.NDArray[np.int64], Vector, Vector]:
    """Return per class how many rows it has, their sum and the sum of their squared norms.

    All rows times ``unit``, so that no square overflows or vanishes.
    """
    width = batch.rows.shape[1]
    sums, squares = np.zeros((classes, width)), np.zeros((classes, width))
    class_sums(batch.rows.numpy(), batch.owner, unit, sums, squares)
    return np.bincount(batch.owner, minlength=classes), sums, squares.sum(axis=1)
