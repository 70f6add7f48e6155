"""Where the classes of a batch lie: from its own rows, or from when a class was last seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.protect.base import Batch
from tacit.rows import blocks, on_host, piece, to_place

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
        names, place = np.unique(batch.labels.astype(np.int64), return_inverse=True)
        member = (place == np.arange(len(names))[:, None]).astype(np.float64)
        sums, squares = _sums(batch.rows, member, 2.0 ** -(batch.exponent or 0))
        sizes = member.sum(axis=1)
        own = sums / sizes[:, None]
        several = sizes >= 2
        spread = squares[several] - sizes[several] * np.square(own[several]).sum(axis=1)
        total = max(1.0, float(sizes[several].sum())) * batch.rows.shape[1]
        counts, means = np.zeros(classes, dtype=np.int64), np.zeros((classes, own.shape[1]))
        counts[names], means[names] = sizes.astype(np.int64), own
        return cls(
            counts=counts,
            means=means,
            u=float(np.maximum(spread, 0.0).sum()) / total,
            exponent=batch.exponent or 0,
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


def _sums(rows: Tensor, member: Vector, unit: float) -> tuple[Vector, Vector]:
    """Return per class the sum of the rows and of their squared norms, all rows times ``unit``."""
    weights = to_place(member, rows)
    sums, squares = np.zeros((len(member), rows.shape[1])), np.zeros(len(member))
    for block in blocks(*rows.shape):
        part = piece(rows, block).double() * unit
        sums += on_host(weights[:, block] @ part)
        lengths = on_host(torch.linalg.vector_norm(part, dim=1))
        squares += (member[:, block] * (lengths * lengths)).sum(axis=1)
    return sums, squares
