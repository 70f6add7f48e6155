"""Gaussian noise of one shape for any number of classes: water-filling between the class means.

Glossary (all float64, in any orthonormal coordinates)::

    K, w, m     number of classes, their weights (sum 1) and their means, the rows of m [K, r]
    h           sum over pairs a < b of w_a w_b, which is (1 - w'w) / 2
    C           between-class variance, sum over pairs of w_a w_b (m_a - m_b)(m_a - m_b)' / h, which
                is sum over classes of w_c m_c m_c' / h when the weighted mean of m is zero
    gap         tr C, the mean of ||m_a - m_b||^2 over pairs of examples of different classes; for
                two classes the squared mean difference, whatever the weights
    Q, R        C = Q R^2 Q' with k <= K - 1 orthonormal columns and a positive diagonal
    T, t        what the classes vary by already, the same for all; seen from Q:  (Q' T^-1 Q)^-1
    N, n        the noise Q n Q' and its k x k core
    P           power, tr n
    kappa       the water level:  n = (kappa R - t)_+, the positive part
    M           t + n;  sumKL of a pair is D' Q M^-1 Q' D with D = m_a - m_b

The mean sumKL over pairs of examples of different classes is ``tr (T + N)^-1 C``. The derivation
is in ``docs/many_classes.md``; in short, ``-M^-1 R^2 M^-1 + nu I`` is a positive semi-definite
matrix that is zero on n (Karush, Kuhn and Tucker), so ``M = R / sqrt(nu)`` where there is noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.protect.marvell.full_solver import Shares

_RANK = 1e-10  # root of a between-class variance, relative to the largest, that is only rounding
_RESOLVED = 1e-12  # smallest over largest variance below which rounding decides what an inverse is
_STEPS = 100


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Between:
    """How the classes' means differ: ``C = basis' diag(roots^2) basis``."""

    basis: Tensor  # [k, r], Q'
    roots: Tensor  # [k], R, largest first
    gap: float

    def coordinates(self, means: Tensor) -> Tensor:
        """Return the means ``[K, r]`` in the k directions in which they differ."""
        return means @ self.basis.T


def between(means: Tensor, weights: Tensor) -> Between:
    """Return the between-class variance of weighted means, as directions and roots.

    >>> found = between(torch.tensor([[0.0, 0.0], [3.0, 4.0]]).double(), torch.tensor([0.9, 0.1]))
    >>> round(found.gap, 9), found.roots.round(decimals=9).tolist()
    (25.0, [5.0])
    """
    w = weights.double() / weights.double().sum()
    centred = means - w @ means
    # 1 - w'w without the difference of two numbers near one, for a class with nearly all rows
    h = 0.5 * float((w * (w.sum() - w)).sum())
    scaled = centred * (w / h).sqrt().unsqueeze(1) if h > 0 else torch.zeros_like(centred)
    _, roots, basis = torch.linalg.svd(scaled, full_matrices=False)
    keep = roots > max(_RANK * float(roots[0]), 0.0)
    return Between(
        basis=basis[keep].contiguous(),
        roots=roots[keep].contiguous(),
        gap=float(scaled.square().sum()),
    )


def fill(roots: Tensor, there: Tensor, *, power: float) -> Tensor:
    """Return the noise core of trace ``power`` with the least mean sumKL over pairs.

    ``n = (kappa R - t)_+``; ``there`` is ``t``, as a vector for a diagonal one. The trace is convex
    and increasing in kappa, so Newton's method from above goes down to the root.

    Guarantee: the optimum where t and R commute (t is diagonal), and where ``kappa R - t`` is
    positive semi-definite, which it is for large power. Else feasible, of exactly this trace.

    >>> fill(torch.tensor([4.0, 1.0]).double(), torch.tensor([1.0, 1.0]).double(), power=3.0)
    tensor([3., 0.], dtype=torch.float64)
    """
    trace = there.sum() if there.dim() == 1 else there.trace()
    kappa = (power + float(trace)) / float(roots.sum())
    for _ in range(_STEPS):
        noise, slope = _above(roots, there, kappa)
        found = float(noise.sum() if noise.dim() == 1 else noise.trace())
        if not found > power * (1 + 1e-14) or slope <= 0.0:
            break
        kappa -= (found - power) / slope
    return noise * (power / found) if found > 0.0 else noise


def reach(roots: Tensor, there: Tensor, means: Tensor, *, sum_kl: float) -> Tensor:
    """Return the noise core of this shape with the least power at which no pair has more sumKL.

    ``means`` in the coordinates of ``roots``. ``M >= kappa R`` gives a level that is enough;
    halving the interval keeps one that is.

    >>> one = torch.ones(1).double()
    >>> found = reach(one, 0 * one, torch.tensor([[0.0], [1.0]]).double(), sum_kl=0.25)
    >>> round(found.item(), 9)
    4.0
    """
    low, high = 0.0, worst_pair(means, roots)[0] / sum_kl
    if worst_pair(means, there)[0] <= sum_kl:
        return torch.zeros_like(there)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        noise, _ = _above(roots, there, middle)
        enough = worst_pair(means, there + noise)[0] <= sum_kl
        low, high = (low, middle) if enough else (middle, high)
    return _above(roots, there, high)[0]


def worst_pair(means: Tensor, variance: Tensor) -> tuple[float, int, int]:
    """Return the largest ``D' M^-1 D`` over pairs of means, and the pair; infinite if unresolved.

    ``variance`` is ``M``, as a vector for a diagonal one.
    """
    if variance.dim() == 1:
        smallest, largest = (float(x) for x in torch.aminmax(variance))
        white = means / variance.sqrt() if smallest > 0.0 else means
    else:
        factor, failed = torch.linalg.cholesky_ex(variance)
        diagonal = factor.diagonal().square()
        smallest, largest = float(diagonal.min()), float(variance.trace())
        smallest = 0.0 if failed.item() or not smallest > _RESOLVED * largest else smallest
        white = torch.linalg.solve_triangular(factor, means.T, upper=False).T
    # Differences first: squares of long vectors would swallow a short distance.
    apart = torch.cdist(white, white, compute_mode="donot_use_mm_for_euclid_dist")
    place = int(apart.argmax())
    a, b = sorted(divmod(place, len(means)))
    value = float(apart.flatten()[place]) ** 2
    return (value if smallest > 0.0 and math.isfinite(value) else math.inf), a, b


def _above(roots: Tensor, there: Tensor, kappa: float) -> tuple[Tensor, float]:
    """Return ``(kappa R - t)_+`` and the derivative of its trace by kappa."""
    if there.dim() == 1:
        excess = kappa * roots - there
        live = excess > 0.0
        return torch.where(live, excess, 0.0), float(roots[live].sum())
    values, vectors = torch.linalg.eigh(torch.diag(kappa * roots) - there)
    vectors, values = vectors[:, values > 0.0], values[values > 0.0]
    slope = float((vectors.square() * roots.unsqueeze(1)).sum())
    return (vectors * values) @ vectors.T, slope


# ruff: noqa: N803, N806 - maths symbols, as in the glossary


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
