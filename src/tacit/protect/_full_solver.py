"""Gaussian noise for two classes of any covariance: equal covariances first, then the means.

Glossary (float64, or float32 where that is enough; in coordinates of the r directions that the
batch spans)::

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
    c, f        covering noise c V and floor f I;  k counts the directions that get a floor
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

import torch
from torch import Tensor

__all__ = ["FullSolution", "Shares", "solve_full", "sum_kl_of"]

# Floor over trace below which rounding decides what an inverse is.
_RESOLVED = {torch.float64: 1e-12, torch.float32: 1e-5}

# Conjugate gradients: most steps, and when to stop, by what is left of the claim.
_STEPS, _LEFT = 12, 1e-5


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

    noise0: Tensor  # negatives
    noise1: Tensor  # positives
    outside: float  # variance of isotropic noise on top, for all rows; 0 when all is seen
    floor: float  # the least variance of either class's noise in any direction seen
    equal: bool  # whether both covariances are the same now
    sum_kl: float  # KL divergence between the noisy classes, both ways added
    power: float  # expected squared norm of the noise of one row


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Common:
    """What both classes get but for the direction: T, and c V + f I as what it is made of.

    ``V = W - L' R`` with two rows each in L and R: a product of these and one pass over W make
    any combination of the two.
    """

    W: Tensor
    left: Tensor
    right: Tensor
    cover: float  # c
    floor: float  # f
    outside: float
    power: float

    def before(self) -> Tensor:
        """Return T."""
        return self._combined(1.0 + self.cover, self.floor + self.outside)

    def noise(self, x: Tensor, P: float) -> Tensor:
        """Return c V + f I + P x x' / x'x."""
        return self._combined(self.cover, self.floor).addr_(x, x, alpha=P / float(x @ x))

    def _combined(self, share: float, floor: float) -> Tensor:
        """Return a share of W, less c L' R, and a floor."""
        out = torch.addmm(self.W, self.left.T, self.right, beta=share, alpha=-self.cover)
        out.diagonal().add_(floor)
        return out


def solve_full(
    *,
    difference: Tensor,
    cov0: Tensor,
    cov1: Tensor,
    p: float,
    width: int,
    power: float | None = None,
    sum_kl: float | None = None,
    shares: Shares | None = None,
) -> FullSolution:
    """Make two covariances equal, cover what is not Gaussian, and hide the means by the rest.

    ``N0 = theta H0 + C`` and ``N1 = theta H1 + C`` with ``C = c V + f I + P x x' / x'x``. Give
    ``power``, all of which is spent, or ``sum_kl``, reached with the least ``P``.

    Guarantee: the returned ``sum_kl`` is that of Gaussian classes with these covariances, infinite
    where rounding cannot tell. For given ``T`` and ``P`` no other noise common to both classes
    gives less.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> zero, none = torch.zeros(1, 1).double(), Shares(cover=0.0, floor=0.0)
    >>> solve_full(
    ...     difference=one, cov0=zero, cov1=zero, p=0.5, width=1, power=4.0, shares=none
    ... ).sum_kl
    0.25
    """
    shares = shares or Shares()
    D, q, gap = difference, 1.0 - p, float(difference @ difference)
    H0, H1 = cov1, cov0
    surplus = q * H0.trace().item() + p * H1.trace().item()
    # Across D this noise is part of the cover; where power is scarce, its least form is worth
    # an eigenvalue decomposition.
    if power is None or shares.surplus * power < surplus:
        H0, H1 = _parts(cov1 - cov0)
        surplus = q * H0.trace().item() + p * H1.trace().item()
    theta = 1.0
    if power is not None and shares.surplus * power < surplus:
        theta = shares.surplus * power / surplus
    # A loose target must not make floor and cover vanish with the power it would need.
    R = power - theta * surplus if power is not None else gap / min(sum_kl or 1.0, 1.0)
    W = cov0 + H0 if theta == 1.0 else q * (cov0 + theta * H0) + p * (cov1 + theta * H1)
    common = _common(W, D, gap, R, width, shares)
    T = common.before()
    P = R - common.power if power is not None else _reach(T, D, gap, sum_kl or 1.0)
    x, slack = _direction(T, P, D, gap, common.floor)
    C = common.noise(D if x is None else x, P)
    noise0, noise1 = (C + H0, C + H1) if theta == 1.0 else (C + theta * H0, C + theta * H1)
    if x is None:
        found = math.inf
    elif theta == 1.0:  # equal covariances, and (T + N) x = D
        found = float(D @ x) + slack
    else:
        A, B = (_shifted(M, common.outside) for M in (cov0 + noise0, cov1 + noise1))
        found = _sum_kl(A, B, (1.0 - theta) * (cov1 - cov0), D)
    return FullSolution(
        noise0=noise0,
        noise1=noise1,
        outside=common.outside,
        floor=common.floor,
        equal=theta == 1.0,
        sum_kl=found,
        power=theta * surplus + common.power + P,
    )


def _parts(G: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part of a symmetric matrix; they differ by it."""
    values, vectors = torch.linalg.eigh(G)
    vectors = vectors[:, values > 0.0]
    up = (vectors * values[values > 0.0]) @ vectors.T
    return up, up - G


def _common(W: Tensor, D: Tensor, gap: float, R: float, width: int, shares: Shares) -> _Common:
    """Share R out to cover and floor: the floor once inside and, if there is an outside, twice."""
    y = (W @ D).div_(gap)
    along = float(D @ y)  # the variance along D, which V has not
    y.sub_(D, alpha=0.5 * along / gap)
    spread = max(W.trace().item() - along, 0.0)
    cover = min(shares.cover * spread, shares.most * R)
    r = len(D)
    f = shares.floor * R / (r + (width if width > r else 0))
    return _Common(
        W=W,
        left=torch.stack([y, D]),
        right=torch.stack([D, y]),
        cover=cover / spread if cover > 0.0 else 0.0,
        floor=f,
        outside=f if width > r else 0.0,
        power=cover + shares.floor * R,
    )


def _direction(T: Tensor, P: float, D: Tensor, gap: float, f: float) -> tuple[Tensor | None, float]:
    """Return x with (T + P I) x = D, and what D'x may lack of D'(T + N)^-1 D.

    P keeps the eigenvalues close to each other, so in float32 two or three steps of conjugate
    gradients are as good as a factor. With ``(T + P I) x = D - e``,
    ``D'(T + N)^-1 D = x'D + x'e + e'(T + N)^-1 e``, and no noise is below f.
    """
    if D.dtype == torch.float64 or not f > 0.0:
        return _solve(_shifted(T, P), D), 0.0
    x, rest, line, size = None, D, D, gap
    for _ in range(_STEPS):
        image = torch.addmv(line, T, line, beta=P)
        step = size / float(line @ image)
        x = line * step if x is None else x.add_(line, alpha=step)
        rest = rest.sub(image, alpha=step)
        before, size = size, float(rest @ rest)
        if size <= _LEFT * f:
            return x, abs(float(x @ rest)) + size / f
        line = torch.add(rest, line, alpha=size / before)
    return _solve(_shifted(T, P), D), 0.0


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


def sum_kl_of(A: Tensor, B: Tensor, D: Tensor) -> float:
    """Return the sumKL of N(0, A) and N(D, B), infinite where rounding decides."""
    return _sum_kl(A, B, B - A, D)


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
    if failed.item() or not smallest > _RESOLVED[matrix.dtype] * matrix.trace().item():
        return None
    columns = right if right.dim() == 2 else right.unsqueeze(1)
    found = torch.cholesky_solve(columns, factor)
    return found if right.dim() == 2 else found.squeeze(1)


def _shifted(matrix: Tensor, amount: float) -> Tensor:
    """Return a copy with ``amount`` added on the diagonal."""
    out = matrix.clone()
    out.diagonal().add_(amount)
    return out
