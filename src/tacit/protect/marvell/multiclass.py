"""Marvell's noise for more than two classes: from a batch to a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.protect.base import BATCH, EMPIRICAL, RUNNING, Batch, Plan, noise_only
from tacit.protect.marvell.class_stats import FLAT, ClassMeans, Moments
from tacit.protect.marvell.multiclass_solver import (
    Between,
    between,
    fill,
    reach,
    solve_many_full,
    worst_pair,
)
from tacit.protect.marvell.subspace import Span
from tacit.protect.noise_terms import Isotropic, Part, Shaped

_CLAIM = (
    "for honest batches: the feature party follows the protocol; "
    "the gradients of each of the {count} classes in this batch are Gaussian with {shape}; "
    "population level, one release, no side information about single examples; the means are those "
    "of {rows} rows; sum_kl is that of classes {a} and {b}: no pair of classes, and no class "
    "against others, has more"
)
_SHARED = "one covariance uI that they share"
_OWN = "the sample covariance of the very rows that it protects"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _ClassGeometry:
    """The classes that a batch's noise is for, in units of ``2 ** exponent``.

    Attributes:
        classes: ``[m]``, their indices; ``weights`` ``[m]``, how many rows each counts for.
        means: ``[m, d]``, of this batch or, for fewer than two rows, of an earlier one.
        gap: how the means differ.
        u: variance per coordinate around the means.
        inside: which of ``classes`` have rows in this batch.
        sure: whether every class in the batch has two rows or more, so that claims can be made.
    """

    classes: npt.NDArray[np.int64]
    weights: Tensor
    means: Tensor
    gap: Between
    u: float
    exponent: int
    inside: npt.NDArray[np.bool_]
    sure: bool

    @classmethod
    def of(cls, batch: Batch, found: Moments, memory: ClassMeans) -> _ClassGeometry | None:
        """Return the geometry of a batch; None if a class is unknown or all means are equal."""
        fresh = (found.counts >= 2) & (batch.exponent is not None)
        geometry = cls._made(found, memory, fresh) if fresh.any() else None
        if geometry is None or geometry.gap.gap <= FLAT:
            geometry = cls._made(found, memory, np.zeros_like(fresh))
        return None if geometry is None or geometry.gap.gap <= FLAT else geometry

    @classmethod
    def _made(
        cls, found: Moments, memory: ClassMeans, fresh: npt.NDArray[np.bool_]
    ) -> _ClassGeometry | None:
        known = fresh | (memory.counts > 0)
        if not known[found.counts > 0].all() or known.sum() < 2:
            return None
        # What is remembered of other batches must not be too small for this one.
        own = np.where(fresh, found.exponent, np.maximum(memory.exponents, found.exponent))
        exponent = int(own[known].max())
        means = (
            np.where(fresh[:, None], found.means, memory.means) * 2.0 ** (own - exponent)[:, None]
        )
        weights = torch.from_numpy(np.where(found.counts > 0, found.counts, memory.counts)[known])
        rows = torch.from_numpy(means[known])
        return cls(
            classes=np.flatnonzero(known),
            weights=weights,
            means=rows,
            gap=between(rows, weights),
            u=found.u * 4.0 ** (found.exponent - exponent),
            exponent=exponent,
            inside=found.counts[known] > 0,
            sure=bool(fresh[found.counts > 0].all()) and int(fresh.sum()) >= 2,
        )


def plan_many(
    batch: Batch, memory: ClassMeans | None, *, s: float | None, target: float | None, full: bool
) -> Plan[Any]:
    """Return the noise for this batch's class means; absent classes count by when they were seen.

    ``s`` is the power in units of the mean squared distance of two classes, ``target`` a sumKL that
    no pair is to exceed; one is given.
    """
    width = batch.rows.shape[1]
    memory = memory or ClassMeans.nothing(batch.classes, width)
    memory = memory.grown(batch.classes)
    found = Moments.of(batch, classes=len(memory.counts))
    geometry = _ClassGeometry.of(batch, found, memory)
    if batch.exponent is not None:
        memory = memory.after(found, only_new=geometry is None)
    if geometry is None:
        return noise_only(batch, memory)
    return (_full if full else _shared)(batch, geometry, memory, s, target)


def _shared(
    batch: Batch,
    geometry: _ClassGeometry,
    memory: ClassMeans,
    s: float | None,
    target: float | None,
) -> Plan[Any]:
    """Plan noise in the span of the class means only, the same for all rows."""
    gap, means = geometry.gap, geometry.gap.coordinates(geometry.means)
    there = torch.full_like(gap.roots, geometry.u)
    if s is not None:
        variance = fill(gap.roots, there, power=s * gap.gap)
    else:
        variance = reach(gap.roots, there, means, sum_kl=target or 1.0)
    if float(variance.sum()) <= 0.0:  # a target met without noise would release what it protects
        variance = fill(gap.roots, there, power=gap.gap)
    stds = variance.sqrt()
    worst, a, b = worst_pair(means[torch.from_numpy(geometry.inside)], stds.square() + geometry.u)
    part = Shaped(
        scale=2.0**geometry.exponent,
        cores=torch.diag(stds).unsqueeze(0),
        owner=torch.zeros(len(batch.rows), dtype=torch.int64),
        basis=gap.basis,
    )
    return _plan((part,), geometry, memory, s, _SHARED, (worst, a, b))


def _full(
    batch: Batch,
    geometry: _ClassGeometry,
    memory: ClassMeans,
    s: float | None,
    target: float | None,
) -> Plan[Any]:
    """Plan noise that makes the class covariances equal, and covers, besides hiding the means."""
    inside = torch.from_numpy(geometry.inside)
    names = geometry.classes[geometry.inside]
    span = Span.of(batch, names, means=geometry.means, exponent=geometry.exponent)
    gap = between(span.means, geometry.weights)
    fractions = geometry.weights[inside] / geometry.weights[inside].sum()
    solved = solve_many_full(
        gap=gap,
        means=span.means[inside],
        covs=span.covs,
        fractions=fractions,
        width=batch.rows.shape[1],
        power=None if s is None else s * geometry.gap.gap,
        sum_kl=target,
    )
    scale = 2.0**geometry.exponent
    outside = math.sqrt(solved.outside)
    parts: list[Part] = [Isotropic(std=outside * scale)] if outside > 0 else []
    owner = torch.from_numpy(np.searchsorted(names, batch.owner))
    cores = torch.stack([_core(noise) for noise in solved.noise])
    parts.append(Shaped(scale=scale, cores=cores, owner=owner, basis=span.basis))
    return _plan(tuple(parts), geometry, memory, s, _OWN, (solved.sum_kl, *solved.pair))


def _core(noise: Tensor) -> Tensor:
    """Return a matrix that turns normals into this noise."""
    factor, failed = torch.linalg.cholesky_ex(noise)
    if not failed.item():
        return torch.transpose(factor, 0, 1)
    values, vectors = torch.linalg.eigh(noise)  # rounding has made a variance negative
    return torch.transpose(vectors * values.clamp(min=0.0).sqrt(), 0, 1)


def _plan(
    parts: tuple[Part, ...],
    geometry: _ClassGeometry,
    memory: ClassMeans,
    s: float | None,
    shape: str,
    worst: tuple[float, int, int],
) -> Plan[Any]:
    value, a, b = worst
    present = geometry.classes[geometry.inside]
    rows = int(geometry.weights[torch.from_numpy(geometry.inside)].sum())
    claim = _CLAIM.format(count=len(present), shape=shape, rows=rows, a=present[a], b=present[b])
    return Plan(
        noise=parts,
        memory=memory,
        how=BATCH if geometry.sure else RUNNING,
        assumption=claim if geometry.sure else EMPIRICAL,
        sum_kl=value if geometry.sure else None,
        any_covariance=shape == _OWN,
        limit=None if s is None else math.sqrt(s * geometry.gap.gap) * 2.0**geometry.exponent,
    )
