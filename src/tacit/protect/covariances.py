"""Class covariances of one batch of gradients, free of scale, in few coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.protect.base import Batch
from tacit.protect.statistics import FLAT
from tacit.rows import to_place

__all__ = ["ClassCovariances"]

# Relative energy below which a direction of the Gram matrix has lost half of its digits.
_THIN = 1e-10
# Units that sums of squares can be taken in before they are divided out, and that float32 has.
_NEAR, _FAR = 24, 120
# Least squared mean difference, in units of the rows' own squares, that float32 is trusted with.
_CLEAR = 2.0**-10


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassCovariances:
    """Mean difference and covariances of two classes, in units of ``2 ** exponent``.

    Attributes:
        negatives: how many rows of class 0 there were; ``positives`` of class 1.
        difference: ``[r]``, mean of the positives minus mean of the negatives.
        cov0: ``[r, r]``, covariance of the negatives, divided by their number; ``cov1`` likewise.
        basis: ``[r, d]``, orthonormal rows that span the batch; None when ``r = d`` and it is the
            identity. The batch says nothing about directions outside of it.
        exponent: the power of two that lengths are divided by.
        size: mean squared length of a row.
        rounding: bounds what float32 has lost: of the difference, in units of the root of
            ``size``, and of the covariances in Frobenius norm, in units of ``size``. Zero when
            everything is float64.
    """

    negatives: int
    positives: int
    difference: Tensor
    cov0: Tensor
    cov1: Tensor
    basis: Tensor | None
    exponent: int
    size: float = 0.0
    rounding: float = 0.0

    @cached_property
    def gap(self) -> float:
        """Squared norm of the mean difference."""
        return float(self.difference @ self.difference)

    def usable(self) -> bool:
        """Whether the means differ by more than rounding."""
        return self.gap > FLAT

    @classmethod
    def of(cls, batch: Batch, *, narrow: bool = False) -> ClassCovariances | None:
        """Return the statistics of a batch, or None unless each class has two rows or more.

        In float64; ``narrow`` takes float32 for rows that are, where the mean difference is clear
        enough. With fewer rows than dimensions the coordinates are those of the rows' own span,
        found from their products with each other: exact, and ``O(B^2 d)`` instead of ``O(d^3)``.
        """
        positive = batch.positive
        total, positives = len(positive), int(np.count_nonzero(positive))
        if min(total - positives, positives) < 2 or batch.exponent is None:
            return None
        order = np.concatenate([np.flatnonzero(~positive), np.flatnonzero(positive)])
        rows = batch.rows.index_select(0, to_place(order, batch.rows))
        thin = total + 1 < rows.shape[1]
        if narrow and rows.dtype == torch.float32 and not thin and abs(batch.exponent) < _FAR:
            found = cls._narrow(rows, total - positives, positives, batch.exponent)
            if found.gap > _CLEAR * found.size:
                return found
            rows = batch.rows.index_select(0, to_place(order, batch.rows))
        rows = rows.double().mul_(2.0**-batch.exponent)
        rows0, rows1, difference = _centred(rows, total - positives)
        basis = None
        if thin:
            rows0, rows1, difference, basis = _thin(rows0, rows1, difference)
        return cls(
            negatives=total - positives,
            positives=positives,
            difference=difference.cpu(),
            cov0=(rows0.T @ rows0).div_(total - positives).cpu(),
            cov1=(rows1.T @ rows1).div_(positives).cpu(),
            basis=basis,
            exponent=batch.exponent,
        )

    @classmethod
    def _narrow(cls, rows: Tensor, negatives: int, positives: int, k: int) -> ClassCovariances:
        """Return the statistics in float32; rows near one in size are divided at the end."""
        unit = 2.0**-k
        if abs(k) > _NEAR:
            rows, unit = rows.mul_(unit), 1.0
        total = negatives + positives
        length = torch.linalg.vector_norm(rows).item() * unit
        rows0, rows1, difference = _centred(rows, negatives)
        return cls(
            negatives=negatives,
            positives=positives,
            difference=difference.mul_(unit).cpu(),
            cov0=(rows0.T @ rows0).mul_(unit * unit / negatives).cpu(),
            cov1=(rows1.T @ rows1).mul_(unit * unit / positives).cpu(),
            basis=None,
            exponent=k,
            size=length * length / total,
            rounding=torch.finfo(torch.float32).eps * max(8.0, math.sqrt(total) / 4.0),
        )


def _centred(rows: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return negatives and positives without their means, in place, and the means' difference."""
    rows0, rows1 = rows[:first], rows[first:]
    mean0, mean1 = rows0.mean(dim=0), rows1.mean(dim=0)
    return rows0.sub_(mean0), rows1.sub_(mean1), mean1 - mean0


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
