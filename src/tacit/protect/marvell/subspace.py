"""Class covariances of one batch of gradients, in float64, free of scale, in few coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.protect.base import Batch
from tacit.protect.class_blocks import ClassBlocks
from tacit.protect.marvell.class_stats import ClassStatistics, shows, sums_by_class

# Relative energy below which a direction of the Gram matrix has lost half of its digits.
_THIN = 1e-10


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """What a batch shows of its classes, along the directions in which anything differs.

    Attributes:
        means: ``[n, r]``, the means that were given.
        covs: ``[m, r, r]``, covariances of the classes asked for, divided by their rows. A class of
            one row has the average one of the others: nothing is known of its own.
        basis: ``[r, d]``, orthonormal rows; None when ``r = d`` and it is the identity.
    """

    means: Tensor
    covs: Tensor
    basis: Tensor | None

    @classmethod
    def of(
        cls, batch: Batch, classes: npt.NDArray[np.int64], *, means: Tensor, exponent: int
    ) -> Span:
        """Return the span of a batch and of some means, all in units of ``2 ** exponent``.

        With fewer rows than dimensions the coordinates are those of the rows' own span, found
        from their products with each other: exact, and ``O(B^2 d)`` instead of ``O(d^3)``.
        """
        unit, owner = 2.0**-exponent, torch.from_numpy(batch.owner)
        counts, sums, _ = sums_by_class(batch, classes=int(classes.max()) + 1, unit=unit)
        own = torch.from_numpy(sums / np.maximum(counts, 1)[:, None])
        rows, basis = batch.rows * unit - own[owner], None
        if len(rows) + len(means) < rows.shape[1]:
            rows, means, basis = _thin(rows, means)
        sizes = torch.from_numpy(counts[classes])
        place = np.searchsorted(classes, batch.owner)
        covs = ClassBlocks.of(place, classes=len(classes)).squares(rows)
        covs /= sizes.clamp_min(1)[:, None, None]
        return cls(means=means, covs=_filled(covs, sizes), basis=basis)


def _filled(covs: Tensor, sizes: Tensor) -> Tensor:
    """Give classes of one row the average covariance of the others."""
    several = sizes >= 2
    if not several.all() and several.any():
        weights = sizes[several].double()
        average = torch.einsum("c,cij->ij", weights / weights.sum(), covs[several])
        covs[~several] = average
    return covs


def _thin(rows: Tensor, means: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and means along an orthonormal basis of all of them, and that basis.

    The eigenvectors of the products ``span span' = U L U'`` give the basis ``L^-1/2 U' span`` and,
    without another pass over the rows, the coordinates ``U L^1/2``.
    """
    centre = means.mean(dim=0)
    # The means as long as all the rest: their directions must not get lost among the rows'.
    ratio = float(torch.linalg.vector_norm(rows) / torch.linalg.vector_norm(means - centre))
    ratio = ratio if 0.0 < ratio < math.inf else 1.0
    span = torch.cat([rows, ratio * (means - centre)])
    values, vectors = torch.linalg.eigh(span @ span.T)
    keep = values > _THIN * values[-1]
    vectors, lengths = vectors[:, keep], values[keep].sqrt()
    along = vectors * lengths
    basis = (vectors / lengths).T @ span
    return along[: len(rows)], along[len(rows) :] / ratio, basis.contiguous()


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
