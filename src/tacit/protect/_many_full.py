"""Gaussian noise for many classes of any covariance: equal covariances first, then the means.

Glossary, beside that of ``_many_solver``::

    S_c         sample covariances, one for each class with rows in the batch;  q_c  their fractions
    W           an upper bound of all S_c: their sum, or what adding each one's surplus makes
    H_c         W - S_c, the noise that makes class c's covariance W;  surplus  sum of q_c tr H_c
    theta       the share of H_c that is drawn: 1 unless the power does not allow it
    B           sum of q_c (S_c + theta H_c), every class's covariance when theta = 1
    V           B across the mean differences: B with the directions Q projected out on both sides
    c, f        covering noise c V and floor f I
    N_c         theta H_c + c V + f I + Q n Q', with n from the water-filling

For two classes this is ``_full_solver``, but that the noise for the means lies in their own span.
"""

# ruff: noqa: N803, N806 - maths symbols, as in the glossary
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.protect._full_solver import Shares
from tacit.protect._many_solver import Between, fill, reach, worst_pair

__all__ = ["ManyFull", "pair_divergences", "solve_many_full"]

_RESOLVED = 1e-12  # smallest over largest variance below which rounding decides what an inverse is


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ManyFull:
    """Noise covariances ``[m, r, r]`` in the directions seen, and the floor outside of them."""

    noise: Tensor
    outside: float  # variance of isotropic noise on top, for all rows; 0 when all is seen
    power: float  # expected squared norm of the noise of one row
    sum_kl: float  # of the worst pair of these classes
    pair: tuple[int, int]


def solve_many_full(
    *,
    gap: Between,
    means: Tensor,
    covs: Tensor,
    fractions: Tensor,
    width: int,
    power: float | None = None,
    sum_kl: float | None = None,
    shares: Shares | None = None,
) -> ManyFull:
    """Make all covariances equal, cover what is not Gaussian, and hide the means by the rest.

    Give ``power``, all of which is spent, or ``sum_kl``, which no pair is to exceed; then cover and
    floor are sized for the power ``gap / sum_kl``. ``means`` are those of the classes of ``covs``.

    Guarantee: the returned ``sum_kl`` is that of Gaussian classes with these covariances, infinite
    where rounding cannot tell.
    """
    shares = shares or Shares()
    W, surplus = _bound(covs, fractions, None if power is None else shares.surplus * power)
    theta = 1.0
    if power is not None and shares.surplus * power < surplus:
        theta = shares.surplus * power / surplus
    R = power - theta * surplus if power is not None else gap.gap / min(sum_kl or 1.0, 1.0)
    B = (1.0 - theta) * torch.einsum("c,cij->ij", fractions, covs) + theta * W
    common, outside = _common(B, gap.basis, R, width, shares)
    spent = common.trace().item() + width * outside
    T = _shifted(B + common, outside)
    there = _seen_from(T, gap.basis)
    if power is not None:
        core = fill(gap.roots, there, power=R - spent)
    else:
        core = reach(gap.roots, there, gap.coordinates(means), sum_kl=sum_kl or 1.0)
    C = common + gap.basis.T @ core @ gap.basis
    noise = C + theta * (W - covs)
    if theta == 1.0:
        found, a, b = worst_pair(means, _shifted(B + C, outside))
    else:
        found, a, b = _worst(pair_divergences(_shifted(covs + noise, outside), means))
    total = theta * surplus + spent + core.trace().item()
    return ManyFull(noise=noise, outside=outside, power=total, sum_kl=found, pair=(a, b))


def pair_divergences(covs: Tensor, means: Tensor) -> Tensor:
    """Return the sumKL of every pair of Gaussians, ``[m, m]``; infinite where rounding decides.

    ``tr(A^-1 B + B^-1 A) / 2 - r + D'(A^-1 + B^-1) D / 2``.
    """
    factors, failed = torch.linalg.cholesky_ex(covs)
    smallest = factors.diagonal(dim1=1, dim2=2).square().amin(dim=1)
    sound = (failed == 0) & (smallest > _RESOLVED * covs.diagonal(dim1=1, dim2=2).sum(dim=1))
    if not bool(sound.all()):
        return torch.full((len(covs), len(covs)), math.inf, dtype=torch.float64)
    inverse = torch.cholesky_inverse(factors)
    cross = inverse.flatten(1) @ covs.flatten(1).T
    apart = means.unsqueeze(1) - means.unsqueeze(0)
    shift = torch.einsum("abi,aij,abj->ab", apart, inverse, apart)
    both = 0.5 * (cross + cross.T + shift + shift.T) - covs.shape[1]
    return both.fill_diagonal_(0.0).clamp_(min=0.0)


def _worst(table: Tensor) -> tuple[float, int, int]:
    place = int(table.argmax())
    a, b = sorted(divmod(place, len(table)))
    return float(table.flatten()[place]), a, b


def _bound(covs: Tensor, fractions: Tensor, most: float | None) -> tuple[Tensor, float]:
    """Return W and the surplus: the sum of all if ``most`` allows it, or one of less trace.

    From the widest class on, ``W + (S - W)_+`` is at least W and at least S; for two classes it is
    the bound of least trace.
    """
    traces = covs.diagonal(dim1=1, dim2=2).sum(dim=1)
    own = float(fractions @ traces)
    W = covs.sum(dim=0)
    if most is None or float(traces.sum()) - own > most:
        order = traces.argsort(descending=True, stable=True).tolist()
        W = covs[order[0]]
        for place in order[1:]:
            values, vectors = torch.linalg.eigh(covs[place] - W)
            vectors = vectors[:, values > 0.0]
            W = W + (vectors * values[values > 0.0]) @ vectors.T
    return W, max(W.trace().item() - own, 0.0)


def _common(B: Tensor, basis: Tensor, R: float, width: int, shares: Shares) -> tuple[Tensor, float]:
    """Share R out to cover and floor: the floor once inside and, if there is an outside, twice."""
    across = B - basis.T @ (basis @ B)
    V = across - (across @ basis.T) @ basis
    V = 0.5 * (V + V.T)
    spread = max(V.trace().item(), 0.0)
    cover = min(shares.cover * spread, shares.most * R)
    noise = (cover / spread) * V if cover > 0.0 else torch.zeros_like(V)
    r = len(B)
    f = shares.floor * R / (r + (width if width > r else 0))
    return _shifted(noise, f), f if width > r else 0.0


def _seen_from(T: Tensor, basis: Tensor) -> Tensor:
    """Return ``(Q' T^-1 Q)^-1``, or ``Q' T Q``, which is no less, where rounding decides."""
    factor, failed = torch.linalg.cholesky_ex(T)
    if failed.item():
        return basis @ T @ basis.T
    half = torch.linalg.solve_triangular(factor, basis.T, upper=False)
    inner, failed = torch.linalg.cholesky_ex(half.T @ half)
    return basis @ T @ basis.T if failed.item() else torch.cholesky_inverse(inner)


def _shifted(matrix: Tensor, amount: float) -> Tensor:
    """Return a copy with ``amount`` added on the diagonal."""
    out = matrix.clone()
    out.diagonal(dim1=-2, dim2=-1).add_(amount)
    return out
