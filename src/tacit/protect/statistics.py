"""Class statistics of one batch of gradients, in float64 and free of scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.machine import class_sums, fits
from tacit.protect.base import Batch
from tacit.rows import blocks, on_host, piece, to_place

__all__ = ["FLAT", "ClassStatistics"]

# Sums over the batch are torch's; what is left afterwards is small, where numpy's calls are cheap.
# No numpy matrix products: its thread pool and torch's would wait for each other's cores.
Vector = npt.NDArray[np.float64]

FLAT = 2.0**-66  # squared mean difference, at a largest value near one, that is only rounding


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

    def usable(self) -> bool:
        """Whether the means differ by more than rounding."""
        return self.gap > FLAT

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
        positive = batch.positive
        total, positives = len(positive), int(np.count_nonzero(positive))
        negatives = total - positives
        if min(negatives, positives) < 2 or batch.exponent is None:
            return None
        sums, squares = _sums(batch.rows, positive, 2.0**-batch.exponent)
        mean0, mean1 = sums[0] / negatives, sums[1] / positives
        spread0 = float(squares[0]) / negatives - float((mean0 * mean0).sum())
        spread1 = float(squares[1]) / positives - float((mean1 * mean1).sum())
        return cls(
            negatives=negatives,
            positives=positives,
            difference=mean1 - mean0,
            u=max(spread0, 0.0) / batch.rows.shape[1],
            v=max(spread1, 0.0) / batch.rows.shape[1],
            exponent=batch.exponent,
        )


def _sums(rows: Tensor, positive: npt.NDArray[np.bool_], unit: float) -> tuple[Vector, Vector]:
    """Return per class, negatives first, the sum of the rows and of their squared norms.

    In float64, all rows times ``unit`` so that no square overflows or vanishes. A float32 needs no
    help before it is squared in float64: there the units come last.
    """
    if fits(rows):
        sums, squares = class_sums(rows, positive)
        return sums * unit, squares.sum(axis=1) * unit**2
    early = unit if rows.dtype == torch.float64 else 1.0
    member = np.empty((2, len(positive)))
    member[0], member[1] = ~positive, positive
    sums, squares = np.zeros((2, rows.shape[1])), np.zeros(2)
    for block in blocks(*rows.shape):
        part, own = piece(rows, block), member[:, block]
        part = part.double() if early == 1.0 else part * early
        sums += on_host(to_place(own, rows) @ part)
        norms = on_host(torch.linalg.vector_norm(part, dim=1))
        squares += (own * (norms * norms)).sum(axis=1)
    return sums * (unit / early), squares * (unit / early) ** 2
