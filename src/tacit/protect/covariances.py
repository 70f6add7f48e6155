"""Class covariances of one batch of gradients, free of scale, in few coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.machine import Moments, fits_matrices, moments
from tacit.protect.base import Batch
from tacit.protect.statistics import FLAT
from tacit.rows import on_host, to_place

__all__ = ["ClassCovariances"]

Vector = npt.NDArray[np.float64]

# Relative energy below which a direction of the Gram matrix has lost half of its digits.
_THIN = 1e-10
# Units that sums of squares can be taken in before they are divided out, and that float32 has.
_NEAR, _FAR = 24, 120
# Least squared mean difference, in units of the rows' own squares, that float32 is trusted with.
_CLEAR = 2.0**-10


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassCovariances:
    """Mean difference and covariances of two classes, on the host, in units of ``2 ** exponent``.

    Attributes:
        negatives: how many rows of class 0 there were; ``positives`` of class 1.
        difference: ``[r]``, mean of the positives minus mean of the negatives, float64.
        covs: ``[2, r, r]``, covariances of negatives and positives, divided by their numbers.
        basis: ``[r, d]``, orthonormal rows that span the batch; None when ``r = d`` and it is the
            identity. The batch says nothing about directions outside of it.
        exponent: the power of two that lengths are divided by.
        narrow: all of this, if it was found in float32.
    """

    negatives: int
    positives: int
    difference: Vector
    covs: Tensor
    basis: Tensor | None
    exponent: int
    narrow: Moments | None = None

    @cached_property
    def gap(self) -> float:
        """Squared norm of the mean difference."""
        return self.narrow.gap if self.narrow else float(np.square(self.difference).sum())

    @property
    def p(self) -> float:
        """The fraction of positives."""
        return self.positives / (self.negatives + self.positives)

    @property
    def size(self) -> float:
        """Mean squared length of a row; only of what was found in float32."""
        if self.narrow is None:
            return 0.0
        square0, square1 = map(sum, zip(self.narrow.traces, self.narrow.centres, strict=True))
        return (1.0 - self.p) * square0 + self.p * square1

    @property
    def rounding(self) -> float:
        """What float32 has lost at most, zero in float64.

        Of the difference, in units of the root of ``size``, and of the covariances in Frobenius
        norm, in units of ``size``.
        """
        if self.narrow is None:
            return 0.0
        count = self.negatives + self.positives
        return torch.finfo(torch.float32).eps * max(8.0, math.sqrt(count) / 4.0)

    def usable(self) -> bool:
        """Whether the means differ by more than rounding."""
        return self.gap > FLAT

    @classmethod
    def of(cls, batch: Batch, *, narrow: bool = False) -> ClassCovariances | None:
        """Return the statistics of a batch, or None unless each class has two rows or more.

        In float64; ``narrow`` takes float32 for rows that the machine code takes, where the mean
        difference is clear enough. With fewer rows than dimensions the coordinates are those of the
        rows' own span, found from their products with each other: exact, and ``O(B^2 d)`` instead
        of ``O(d^3)``.
        """
        k, (count, width) = batch.exponent, batch.rows.shape
        if min(map(len, batch.sides)) < 2 or k is None:
            return None
        thin = count + 1 < width
        if narrow and fits_matrices(batch.rows) and abs(k) < _FAR and not thin:
            found = cls._narrow(batch, k)
            if found.gap > _CLEAR * found.size:
                return found
        (rows0, mean0), (rows1, mean1) = _centred(batch, 2.0**-k)
        difference, basis = mean1 - mean0, None
        if thin:
            rows0, rows1, difference, basis = _thin(rows0, rows1, difference)
        return cls(
            negatives=len(batch.sides[0]),
            positives=len(batch.sides[1]),
            difference=on_host(difference),
            covs=torch.stack([(own.T @ own).div_(len(own)) for own in (rows0, rows1)]).cpu(),
            basis=basis,
            exponent=k,
        )

    @classmethod
    def _narrow(cls, batch: Batch, k: int) -> ClassCovariances:
        """Return the statistics in float32; rows near one in size are divided at the end."""
        rows, unit = (batch.rows * 2.0**-k, 1.0) if abs(k) > _NEAR else (batch.rows, 2.0**-k)
        found = moments(rows, batch.sides, unit)
        return cls(
            negatives=len(batch.sides[0]),
            positives=len(batch.sides[1]),
            difference=found.difference,
            covs=found.covs,
            basis=None,
            exponent=k,
            narrow=found,
        )


def _centred(batch: Batch, unit: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows of each class times ``unit`` in float64, without their mean, and it."""
    for side in batch.sides:
        own = batch.rows.index_select(0, to_place(side, batch.rows)).double().mul_(unit)
        mean = own.mean(dim=0)
        yield own.sub_(mean), mean


def _thin(rows0: Tensor, rows1: Tensor, difference: Tensor) -> tuple[Tensor, ...]:
    """Return both classes and the mean difference along an orthonormal basis of all of them.

    The eigenvectors of the products ``span span' = U L U'`` give the basis ``L^-1/2 U' span`` and,
    without another pass over the rows, the coordinates ``U L^1/2``.
    """
    # The difference as long as all the rest: its direction must not get lost among theirs.
    rest = torch.linalg.vector_norm(torch.cat([rows0, rows1]))
    ratio = float(rest / torch.linalg.vector_norm(difference))
    ratio = ratio if 0.0 < ratio < math.inf else 1.0
    span = torch.cat([rows0, rows1, ratio * difference.unsqueeze(0)])
    values, vectors = torch.linalg.eigh(span @ span.T)
    keep = values > _THIN * values[-1]
    vectors, lengths = vectors[:, keep], values[keep].sqrt()
    along = vectors * lengths
    basis = (vectors / lengths).T @ span
    return along[: len(rows0)], along[len(rows0) : -1], along[-1] / ratio, basis
