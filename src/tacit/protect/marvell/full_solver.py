"""Gaussian noise for two classes of any covariance: equal covariances first, then the means.

Glossary (in coordinates of the r directions that the batch spans)::

    D, gap      difference of the class means and its squared norm
    S0, S1, G   sample covariances of negatives and positives;  G = S1 - S0
    H0, H1      noise that makes the covariances equal, S0 + H0 = S1 + H1: what the other class has,
                S1 and S0, or only what it has more, the positive and the negative part of G
    q, p        fractions of negatives and positives
    surplus     q tr H0 + p tr H1, the power of that
    theta       the share of H0 and H1 that is drawn: 1 unless the power does not allow it
    R           the power for all the rest, which is the same for both classes
    W, V        W = q (S0 + theta H0) + p (S1 + theta H1), both classes' covariance when theta = 1;
                V is W across D: W with D's direction projected out on both sides
    c, f        covering noise c V and floor f I
    T           W + c V + f I, the covariance before the noise along x
    P, x        power along one direction, and that direction:  (T + P I) x = D
    N0, N1      noise covariances  theta H + c V + f I + P x x' / x'x
    A, B, E     S0 + N0, S1 + N1 and B - A = (1 - theta) G
    h, t        D' (T + P I)^-1 D, and the sumKL asked for

Noise along one direction is best along x: for any N >= 0 of trace P,
``D'(T+N)^-1 D = max over y of 2 y'D - y'Ty - y'Ny >= max over y of 2 y'D - y'(T + P I)y``, which is
h, and ``N = P x x' / x'x`` attains it because ``(T + N) x = D``. So with equal covariances
sumKL = h. Its inverse is a minimum of linear functions of P, hence concave: Newton's method on it
steps below the root once and climbs from there.
"""

# ruff: noqa: N803, N806 - maths symbols, as in the glossary
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Vector = npt.NDArray[np.float64]

_RESOLVED = 1e-12  # floor over trace below which rounding decides what an inverse is


@final
@dataclass(frozen=True, kw_only=True)
class Shares:
    """How the power is shared out; the defaults are what the measurements chose.

    Attributes:
        surplus: the largest share of a given power that goes into equal covariances.
        cover: covering noise in units of the covariance across the mean difference.
        most: the largest share of the rest that goes into covering noise.
        floor: the share of the rest that goes into the floor.
    """

    surplus: float = 0.5
    cover: float = 3.0
    most: float = 0.2
    floor: float = 0.02


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FullSolution:
    """Noise covariances of both classes in the directions seen, and the floor outside of them."""

    noise: Tensor  # [2, r, r], negatives first
    sizes: Tensor  # [2, 2], trace and Frobenius norm of each
    outside: float  # variance of isotropic noise on top, for all rows; 0 when all is seen
    sum_kl: float  # KL divergence between the noisy classes, both ways added
    power: float  # expected squared norm of the noise of one row


@final
@dataclass(frozen=True, kw_only=True)
class _Common:
    """What both classes get but for the direction: c, f, and the power that they take."""

    cover: float
    floor: float
    outside: float  # the floor outside of the directions seen, where there is an outside
    power: float

    @classmethod
    def of(cls, *, spread: float, R: float, r: int, width: int, shares: Shares) -> _Common:
        """Share R out to cover and floor: the floor once inside and, if there is an outside, twice.

        ``spread`` is the trace of V.
        """
        cover = min(shares.cover * spread, shares.most * R)
        f = shares.floor * R / (r + (width if width > r else 0))
        return cls(
            cover=cover / spread if cover > 0.0 else 0.0,
            floor=f,
            outside=f if width > r else 0.0,
            power=cover + shares.floor * R,
        )


def solve_full(
    *,
    difference: Vector,
    covs: Tensor,
    p: float,
    width: int,
    power: float | None = None,
    sum_kl: float | None = None,
    shares: Shares | None = None,
) -> FullSolution:
    """Make two covariances equal, cover what is not Gaussian, and hide the means by the rest.

    ``N0 = theta H0 + C`` and ``N1 = theta H1 + C`` with ``C = c V + f I + P x x' / x'x``. Give
    ``power``, all of which is spent, or ``sum_kl``, reached with the least ``P``. In float64.

    Guarantee: the returned ``sum_kl`` is that of Gaussian classes with these covariances, infinite
    where rounding cannot tell. For given ``T`` and ``P`` no other noise common to both classes
    gives less.

    >>> one, zeros = np.ones(1), torch.zeros(2, 1, 1, dtype=torch.float64)
    >>> none = Shares(cover=0.0, floor=0.0)
    >>> solve_full(difference=one, covs=zeros, p=0.5, width=1, power=4.0, shares=none).sum_kl
    0.25
    """
    shares = shares or Shares()
    D, (S0, S1), q = torch.from_numpy(difference), covs, 1.0 - p
    gap = float(D @ D)
    H, surplus, theta = _surplus(covs, p, power, shares.surplus)
    # A loose target must not make floor and cover vanish with the power it would need.
    R = power - theta * surplus if power is not None else gap / min(sum_kl or 1.0, 1.0)
    W = S0 + H[0] if theta == 1.0 else q * (S0 + theta * H[0]) + p * (S1 + theta * H[1])
    V = _across(W, D, gap)
    spread = max(V.trace().item(), 0.0)
    common = _Common.of(spread=spread, R=R, r=len(D), width=width, shares=shares)
    C = _shifted(common.cover * V, common.floor)
    T = _shifted(W + C, common.outside)
    P = R - common.power if power is not None else _reach(T, D, gap, sum_kl or 1.0)
    x = _solve(_shifted(T, P), D)
    along = D if x is None else x
    noise = theta * H + C.addr_(along, along, alpha=P / float(along @ along))
    if x is None:
        found = math.inf
    elif theta == 1.0:  # equal covariances, and (T + N) x = D
        found = float(D @ x)
    else:
        A, B = (_shifted(M, common.outside) for M in covs + noise)
        found = _sum_kl(A, B, (1.0 - theta) * (S1 - S0), D)
    traces = noise.diagonal(dim1=1, dim2=2).sum(dim=1)
    return FullSolution(
        noise=noise,
        sizes=torch.stack([traces, torch.linalg.vector_norm(noise, dim=(1, 2))], dim=1),
        outside=common.outside,
        sum_kl=found,
        power=theta * surplus + common.power + P,
    )


def _surplus(
    covs: Tensor, p: float, power: float | None, most: float
) -> tuple[Tensor, float, float]:
    """Return H, its power, and theta: at most a share of the power, where one is given."""

    def weighed(H: Tensor) -> float:
        t0, t1 = _traces(H)
        return (1.0 - p) * t0 + p * t1

    H = covs.flip(0)
    # Across D this noise is part of the cover; where power is scarce, its least form is worth
    # an eigenvalue decomposition.
    if power is None or most * power < weighed(H):
        H = _parts(covs[1] - covs[0])
    surplus = weighed(H)
    if power is None or most * power >= surplus:
        return H, surplus, 1.0
    return H, surplus, most * power / surplus


def _parts(G: Tensor) -> Tensor:
    """Return the positive and the negative part of a symmetric matrix; they differ by it."""
    values, vectors = torch.linalg.eigh(G)
    up = (vectors * values.clamp_min(0.0)) @ vectors.T
    return torch.stack([up, up - G])


def _across(W: Tensor, D: Tensor, gap: float) -> Tensor:
    """Return V."""
    y = (W @ D).div_(gap)
    y.sub_(D, alpha=0.5 * float(D @ y) / gap)
    left, right = torch.stack([y, D]), torch.stack([D, y])
    return torch.addmm(W, left.T, right, alpha=-1.0)


def _reach(T: Tensor, D: Tensor, gap: float, t: float) -> float:
    """Find the least P >= 0 with h <= t; h <= gap / P gives a point on the far side."""
    P = gap / t
    for _ in range(60):
        x = _solve(_shifted(T, P), D)
        if x is None:  # nothing can be claimed here: what is known to be enough
            return gap / t
        h = float(D @ x)
        if abs(h - t) <= 1e-13 * t or (P == 0.0 and h <= t):
            break
        P = max(P - h * (1.0 - h / t) / float(x @ x), 0.0)
    return P


def sum_kl_of(A: Tensor, B: Tensor, D: Vector) -> float:
    """Return the sumKL of N(0, A) and N(D, B), infinite where rounding decides."""
    return _sum_kl(A, B, B - A, torch.from_numpy(D))


def _sum_kl(A: Tensor, B: Tensor, E: Tensor, D: Tensor) -> float:
    """Return tr(A^-1 E B^-1 E) / 2 + D'(A^-1 + B^-1) D / 2; nothing is subtracted from d."""
    right = torch.cat([E, D.unsqueeze(1)], dim=1)
    a, b = _solve(A, right), _solve(B, right)
    if a is None or b is None:
        return math.inf
    spread = (a[:, :-1] * b[:, :-1].T).sum()
    return 0.5 * float(spread + D @ (a[:, -1] + b[:, -1]))


def _solve(matrix: Tensor, right: Tensor) -> Tensor | None:
    """Return matrix^-1 right for a positive definite matrix, or None when rounding decides."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    smallest = factor.diagonal().min().item() ** 2
    if failed.item() or not smallest > _RESOLVED * matrix.trace().item():
        return None
    columns = right if right.dim() == 2 else right.unsqueeze(1)
    found = torch.cholesky_solve(columns, factor)
    return found if right.dim() == 2 else found.squeeze(1)


def _shifted(matrix: Tensor, amount: float) -> Tensor:
    """Return a copy with ``amount`` added on the diagonal."""
    out = matrix.clone()
    out.diagonal().add_(amount)
    return out


def _traces(matrices: Tensor) -> tuple[float, float]:
    first, second = matrices.diagonal(dim1=1, dim2=2).sum(dim=1).tolist()
    return first, second
