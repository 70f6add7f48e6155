"""Class statistics of one batch of gradients, in float64 and free of scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from tacit.protect.base import Batch
from tacit.rows import blocks

__all__ = ["ClassStatistics", "split"]

_FLAT = 2.0**-66  # squared mean difference, at a largest value near one, that is only rounding


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassStatistics:
    """Mean difference and variances of two classes, in units of ``2 ** exponent``.

    Attributes:
        positive: fraction of positives; ``negative`` the fraction of negatives, kept apart
            because ``1 - p`` loses digits.
        difference: mean of the positives minus mean of the negatives, float64.
        u: variance per coordinate of the negatives; ``v`` that of the positives.
        exponent: the power of two that all of the above are divided by.
    """

    positive: float
    negative: float
    difference: Tensor
    u: float
    v: float
    exponent: int

    @property
    def gap(self) -> float:
        """Squared norm of the mean difference."""
        return float(self.difference @ self.difference)

    def usable(self) -> bool:
        """Whether the means differ by more than rounding."""
        return self.gap > _FLAT

    def direction(self) -> Tensor:
        """Unit vector along the mean difference."""
        return self.difference / math.sqrt(self.gap)

    def blend(self, newer: ClassStatistics, *, keep: float = 0.9) -> ClassStatistics:
        """Return the exponential average of these and a newer batch's, in the newer's units."""
        factor = 2.0 ** max(-500, min(500, self.exponent - newer.exponent))

        def mix(old: float, new: float) -> float:
            return keep * old + (1 - keep) * new

        return replace(
            newer,
            positive=mix(self.positive, newer.positive),
            negative=mix(self.negative, newer.negative),
            difference=keep * factor * self.difference + (1 - keep) * newer.difference,
            u=mix(self.u * factor**2, newer.u),
            v=mix(self.v * factor**2, newer.v),
        )

    @classmethod
    def of(cls, batch: Batch, negatives: Tensor, positives: Tensor) -> ClassStatistics | None:
        """Return the statistics of a batch, or None unless each class has two rows or more."""
        if min(len(negatives), len(positives)) < 2 or batch.exponent is None:
            return None
        sums, squares = _sums(batch)
        counts = (len(negatives), len(positives))
        mean0, mean1 = sums[0] / counts[0], sums[1] / counts[1]
        u, v = (
            max(0.0, total / count - float(mean @ mean)) / batch.rows.shape[1]
            for total, count, mean in zip(squares.tolist(), counts, (mean0, mean1), strict=True)
        )
        return cls(
            positive=counts[1] / len(batch.rows),
            negative=counts[0] / len(batch.rows),
            difference=mean1 - mean0,
            u=u,
            v=v,
            exponent=batch.exponent,
        )


def split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row numbers of the negatives and of the positives."""
    return (labels == 0).nonzero().squeeze(1), (labels == 1).nonzero().squeeze(1)


def _sums(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return per class, negatives first, the sum of the rows and of their squared norms.

    In float64 and in units of ``2 ** exponent``, so that no square overflows or vanishes. A
    float32 needs no help before it is squared in float64: there the units come last.
    """
    rows, unit = batch.rows, 2.0 ** -(batch.exponent or 0)
    early = rows.dtype == torch.float64
    positive = batch.labels.double()
    member = torch.stack((1 - positive, positive))
    sums, squares = member.new_zeros(2, rows.shape[1]), member.new_zeros(2)
    for block in blocks(*rows.shape):
        part = rows[block] * unit if early else rows[block].double()
        sums.addmm_(member[:, block], part)
        squares.addmv_(member[:, block], torch.linalg.vector_norm(part, dim=1).square_())
    return (sums, squares) if early else (sums * unit, squares * unit**2)
