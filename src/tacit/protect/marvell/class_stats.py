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
    """Whether a squared mean difference, and ``s`` times it, is above what rounding removes."""
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


Ints = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Counts, means and variance of a batch's classes, in units of ``2 ** exponent``.

    Attributes:
        counts: ``[K]``, rows of each class.
        means: ``[K, d]``, zero for a class without rows.
        u: variance per coordinate around the class means, over classes of two rows or more.
        exponent: the power of two that all of the above are divided by.
    """

    counts: Ints
    means: Vector
    u: float
    exponent: int

    @classmethod
    def of(cls, batch: Batch, *, classes: int) -> Moments:
        """Return the moments of a batch; one of zeros only has the unit one."""
        # A batch of zeros has no size: what is remembered keeps its own.
        k = -1000 if batch.exponent is None else batch.exponent
        width = batch.rows.shape[1]
        counts, sums, squares = sums_by_class(batch, classes=classes, unit=2.0**-k)
        means = sums / np.maximum(counts, 1)[:, None]
        spread = np.maximum(squares - counts * np.square(means).sum(axis=1), 0.0)
        several = counts >= 2
        total = max(1.0, float(counts[several].sum())) * width
        return cls(
            counts=counts,
            means=means,
            u=float(spread[several].sum()) / total,
            exponent=k,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMeans:
    """Each class's mean when it last had two rows or more: what a guard remembers.

    Attributes:
        counts: ``[K]``, rows of each class then; 0 for a class that was never seen so.
        means: ``[K, d]``, in units of ``2 ** exponents``.
        exponents: ``[K]``.
    """

    counts: Vector
    means: Vector
    exponents: Ints

    @classmethod
    def nothing(cls, classes: int, width: int) -> ClassMeans:
        """Return the memory of a guard that has seen no class yet."""
        return cls(
            counts=np.zeros(classes),
            means=np.zeros((classes, width)),
            exponents=np.zeros(classes, dtype=np.int64),
        )

    def grown(self, classes: int) -> ClassMeans:
        """Return the same for more classes, of which nothing was seen."""
        if (more := classes - len(self.counts)) <= 0:
            return self
        width = self.means.shape[1]
        return ClassMeans(
            counts=np.concatenate([self.counts, np.zeros(more)]),
            means=np.concatenate([self.means, np.zeros((more, width))]),
            exponents=np.concatenate([self.exponents, np.zeros(more, dtype=np.int64)]),
        )

    def after(self, found: Moments, *, only_new: bool) -> ClassMeans:
        """Return what is remembered after a batch: its classes of two rows or more."""
        take = found.counts >= 2
        take &= ~(self.counts > 0) if only_new else True
        return ClassMeans(
            counts=np.where(take, found.counts, self.counts),
            means=np.where(take[:, None], found.means, self.means),
            exponents=np.where(take, found.exponent, self.exponents),
        )
