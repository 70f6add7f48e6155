"""Covariances of two classes of one batch of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.protect.base import Batch
from tacit.protect.spans import Span
from tacit.protect.statistics import ClassStatistics, shows

__all__ = ["ClassCovariances"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassCovariances:
    """Mean difference and covariances of two classes, in units of ``2 ** exponent``.

    Attributes:
        negatives: how many rows of class 0 there were; ``positives`` of class 1.
        difference: ``[r]``, mean of the positives minus mean of the negatives.
        covs: ``[2, r, r]``, covariances of negatives and positives, divided by their numbers.
        basis: ``[r, d]``, orthonormal rows that span the batch; None when ``r = d`` and it is the
            identity. The batch says nothing about directions outside of it.
        exponent: the power of two that lengths are divided by.
    """

    negatives: int
    positives: int
    difference: npt.NDArray[np.float64]
    covs: Tensor
    basis: Tensor | None
    exponent: int

    @cached_property
    def gap(self) -> float:
        """Squared norm of the mean difference."""
        return float(np.square(self.difference).sum())

    @property
    def p(self) -> float:
        """The fraction of positives."""
        return self.positives / (self.negatives + self.positives)

    def usable(self, *, s: float | None, resolution: float) -> bool:
        """Whether noise in proportion to the mean difference survives a release's rounding."""
        return shows(self.gap, s=s, resolution=resolution)

    @classmethod
    def of(cls, batch: Batch) -> ClassCovariances | None:
        """Return the statistics of a batch, or None unless each class has two rows or more."""
        found = ClassStatistics.of(batch)
        if found is None:
            return None
        ends = torch.from_numpy(np.stack([np.zeros_like(found.difference), found.difference]))
        span = Span.of(batch, np.arange(2), means=ends, exponent=found.exponent)
        return cls(
            negatives=found.negatives,
            positives=found.positives,
            difference=(span.means[1] - span.means[0]).numpy(),
            covs=span.covs,
            basis=span.basis,
            exponent=found.exponent,
        )
