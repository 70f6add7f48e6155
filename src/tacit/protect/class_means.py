"""Where the classes of a batch lie: from its own rows, or from when a class was last seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tacit.protect.base import Batch
from tacit.protect.statistics import sums_by_class

__all__ = ["ClassMeans", "Moments"]

Vector = npt.NDArray[np.float64]
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
        """Return the same with room for more classes."""
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
