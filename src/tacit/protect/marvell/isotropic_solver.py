"""The least leaky Gaussian noise for two isotropic classes, solved exactly.

Glossary (class a has the smaller variance, class b the larger; labels come back at the end)::

    m, M      variances of class a and class b before noise;  inside, gap = M - m
    w, z, n   fractions of class a and class b;  n = d - 1 directions across the mean difference
    D         squared distance of the class means;  e = D / M,  rho = sqrt(1 + e),  rise = rho - 1
    la, x, lb noise variance of class a along / across the mean difference, of class b along it
    a, b, A   variances with noise: m + la, M + lb and m + x;  rest = M - A,  lead = b - a
    P, q      expected noise power  w la + z lb + w n x,  and the part of it spent along
    C, t      C = w a + z b = q + w m + z M  and  t = D / C
    s, kappa  sqrt((1 + w t)(1 + z t)); the best 2 sumKL along is t + 2 (s - 1), with slope kappa
    zeta, k   w M kappa t / C, the scaled price of power;  k = sqrt(1 + zeta) - 1
    Y, Y0     twice the sumKL asked for, and what is left of it along when x = 0

In logarithms the problem is convex, so the first plan whose sign conditions hold is the global
minimum. Class b without noise and no noise across are closed forms; otherwise A = M / (1 + k),
which leaves one increasing equation in C or t: Newton, about two steps, inside a bracket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, inf, ldexp, sqrt
from typing import final

from tacit.errors import ParameterError

_TINY, _CAP = 1e-300, 1e300  # beyond these only the limit matters, and 1 / 0 or inf / inf follow
_Case = tuple[float, float, float, float, float, float]  # n, w, z, m, M, D
_Plan = tuple[float, float, float, float, float]  # la, x, lb, rest, lead
_Three = tuple[float, float, float]


@final
@dataclass(frozen=True, slots=True)
class MarvellSolution:
    """The noise variances of both classes and what they reach."""

    lam10: float  # negatives, along the mean difference
    lam20: float  # negatives, in each direction across it
    lam11: float  # positives, along
    lam21: float  # positives, across
    sum_kl: float  # KL divergence between the noisy classes, both ways added
    power: float  # expected squared norm of the noise of one row


def solve_marvell(
    *,
    d: int,
    p: float,
    u: float,
    v: float,
    gap: float,
    power: float | None = None,
    sum_kl: float | None = None,
    q: float | None = None,
) -> MarvellSolution:
    """Find the noise with the least sumKL for a power, or with the least power for a sumKL.

    With a = lam10 + u, b = lam11 + v, A = lam20 + u, B = lam21 + v::

        2 sumKL = (d-1) (A-B)^2 / (A B) + (a-b)^2 / (a b) + gap / a + gap / b
        power   = (1-p) (lam10 + (d-1) lam20) + p (lam11 + (d-1) lam21)

    Here ``d`` is the width of the cut, ``p`` and ``q`` the fractions of positives and negatives
    (``q`` only where it is known better than ``1 - p``), ``u`` and ``v`` the variances of negatives
    and positives per direction, ``gap`` the squared distance of the class means.

    Guarantee: the global minimum of the four-variable problem up to rounding, with the power kept
    and 0 <= lam2 <= lam1. What sumKL says about an attacker holds for Gaussian classes with
    covariances uI and vI, and for one release. Rounding the lams may add 1e-16 sqrt(sumKL).

    References: Li et al., Label Leakage and Protection in Two-party Split Learning, ICLR 2022,
    Theorem 2, Appendix A.4 and A.5; Technical Report of Label Leakage and Protection in Federated
    Learning. Departures: exact and direct in both modes, where the paper alternates searches and
    grows the power to reach a target; no noise where it lowers nothing (across, if u = v = 0).

    >>> solve_marvell(d=3, p=0.5, u=0.0, v=0.0, gap=1.0, power=4.0)
    MarvellSolution(lam10=4.0, lam20=0.0, lam11=4.0, lam21=0.0, sum_kl=0.25, power=4.0)
    >>> solve_marvell(d=3, p=0.5, u=0.0, v=0.0, gap=1.0, sum_kl=0.25).power
    4.0
    """
    amount = _check(d, p, q, (u, v, gap), power, sum_kl)
    p, q = float(p), float(1.0 - p if q is None else q)
    small, large, w, z = (u, v, q, p) if u <= v else (v, u, p, q)
    # The largest length becomes 2**400: room below for tiny ones, above for quotients.
    shift = min(400 - frexp(max(large, gap, 0.0 if power is None else amount))[1], 1000)
    case = (d - 1.0, w, z, ldexp(small, shift), ldexp(large, shift), ldexp(gap, shift))
    plan = _reach(case, 2.0 * amount) if power is None else _spend(case, ldexp(amount, shift))
    left, back = _sum_kl(case, plan), ldexp(1.0, -shift)
    la, x, lb = plan[0] * back, min(plan[:2]) * back, plan[2] * back
    spent = w * (la + (d - 1.0) * x) + z * lb
    budget, worst = (inf, 1.01 * amount + 1e-28) if power is None else (amount, inf)
    if not (la + lb + spent < inf and 0.0 <= left <= worst):
        got = f"got {power=} or {sum_kl=}, with {p=}, {u=}, {v=}, {gap=}"
        raise ParameterError(f"solve_marvell: the noise must fit a float, {got}: rescale or relax")
    lams = (la, x, lb, 0.0) if u <= v else (lb, 0.0, la, x)
    return MarvellSolution(*lams, sum_kl=left, power=min(spent, budget))


def _check(
    d: int, p: float, q: float | None, sizes: _Three, power: float | None, sum_kl: float | None
) -> float:
    """Refuse values outside their range; return the power or the sumKL, whichever is given."""
    (u, v, gap), amount, wrong = sizes, power if sum_kl is None else sum_kl, ""
    if not (isinstance(d, int) and 1 <= d <= 2**53):
        wrong = f"d must be an integer from 1 to 2**53, got {d!r}: pass the width of the cut"
    elif not 0.0 < p < 1.0:
        wrong = f"p must lie strictly between 0 and 1, got {p!r}: use running class statistics"
    elif q is not None and not (0.0 < q <= 1.0 and abs(p + q - 1.0) <= 1e-9):
        wrong = f"q must be 1 - p, got {q=} with {p=}: leave q out"
    elif amount is None or (power is not None and sum_kl is not None):
        wrong = f"give power or sum_kl, not both, got {power=}, {sum_kl=}: pass one"
    elif not (0.0 <= u < inf and 0.0 <= v < inf and 0.0 <= gap < inf and 0.0 <= amount < inf):
        wrong = f"sizes must be finite and >= 0, got {u=}, {v=}, {gap=}, {power=}, {sum_kl=}: clip"
    elif sum_kl == 0.0 and gap > 0.0:
        wrong = f"sum_kl must be above 0 while gap > 0, got {gap=}: allow a little"
    if wrong or amount is None:
        raise ParameterError(f"solve_marvell: {wrong}")
    return float(amount)


def _sum_kl(case: _Case, plan: _Plan) -> float:
    """Evaluate sumKL from differences; subtracting 2 d from the ratios would cancel."""
    (n, _w, _z, m, M, D), (la, x, lb, rest, lead) = case, plan
    a, b, A = m + la, M + lb, m + x
    if a <= 0.0 or b <= 0.0:
        return inf if b > 0.0 or D > 0.0 else 0.0
    total = (lead / a) * (lead / b) + D / a + D / b
    if n > 0.0 and rest > 0.0:
        total += n * (rest / A) * (rest / M) if A > 0.0 else inf
    return 0.5 * total


def _spend(case: _Case, P: float) -> _Plan:
    """Minimise sumKL for power P."""
    n, w, z, m, M, D = case
    gap, across = M - m, n > 0.0 and m < M
    if P < _TINY or D <= 0.0:
        x = min(gap, P / (w * (n + 1.0))) if P >= _TINY else 0.0
        return x, x, 0.0, gap - x, gap - x
    if across:
        rho = sqrt(1.0 + min(D / M, _CAP))
        rise = D / (M * (1.0 + rho))
        x = max((P / w - m * rise) / (rho + n), 0.0)
        la = rho * x + m * rise if x > 0.0 else P / w
        if x <= gap and _along(case, w * la)[1] == 0.0:
            return la, x, 0.0, gap - x, gap - la
    C = P + (w * m + z * M)
    la, lb, lead = _along(case, P)
    if not across or la == 0.0 or _across(case, _price(case, C)[0])[0] == 0.0:
        return la, 0.0, lb, gap, lead
    x, rest = _across(case, _mixed_k(case, C))
    la, lb, lead = _along(case, max(P - w * n * x, 0.0))
    return la, x, lb, rest, lead


def _reach(case: _Case, Y: float) -> _Plan:
    """Minimise the power for twice the sumKL at most Y."""
    n, w, z, m, M, D = case
    gap, across = M - m, n > 0.0 and m < M
    if 2.0 * _sum_kl(case, (0.0, 0.0, 0.0, gap, gap)) <= Y:
        return 0.0, 0.0, 0.0, gap, gap
    if D <= 0.0:
        x, rest = _across(case, _excess(Y / (n + 1.0)))
        return x, x, 0.0, rest, rest
    Y0 = Y = min(max(Y, _TINY), _CAP)
    if across:
        rho = sqrt(1.0 + min(D / M, _CAP))
        rise = D / (M * (1.0 + rho))
        level = (Y - 2.0 * rise - D / M) / (n + rho)
        x, rest = _across(case, _excess(max(level, 0.0)))
        la = rho * x + m * rise
        if level >= 0.0 and x > 0.0 and _along(case, w * la)[1] == 0.0:
            return la, x, 0.0, rest, rest - rise * (m + x)
        Y0 -= n * (gap / m) * (gap / M) if m > 0.0 else inf
    if Y0 >= _TINY:
        la, lb, lead = _along(case, _least_along(case, Y0))
        if across and lb > 0.0:
            x = _across(case, _price(case, w * (m + la) + z * (M + lb))[0])[0]
        if not across or la == 0.0 or x == 0.0:
            return la, 0.0, lb, gap, lead
    C = D / max(_mixed_t(case, Y), _TINY)
    x, rest = _across(case, _price(case, C)[0])
    la, lb, lead = _along(case, max(C - (w * m + z * M), 0.0))
    return la, x, lb, rest, lead


def _least_along(case: _Case, level: float) -> float:
    """Give the least power that brings t + 2 (s - 1) down to level; none is spent across."""
    _n, w, z, m, M, D = case
    t = level / (1.0 + 2.0 * sqrt((1.0 + w * z * level) / (level + 4.0)))
    power = D / t - (w * m + z * M)
    la, lb, _lead = _along(case, power)
    if (la > 0.0 and lb > 0.0) or M <= 0.0:
        return power
    if m > 0.0 and la == 0.0:
        power = z * _alone(M, m, D, level)
        if lb > 0.0 or (power > 0.0 and _along(case, power)[0] == 0.0):
            return power
    return w * _alone(m, M, D, level)


def _alone(own: float, other: float, D: float, level: float) -> float:
    """Give one class noise so that (y - 1)^2 / y + e + e / y = level, y = (own + noise) / other."""
    e = min(D / other, _CAP)
    rho = sqrt(1.0 + e)
    room, lift = level - e - 2.0 * e / (1.0 + rho), level - e
    if room < 0.0:
        return 0.0
    width = sqrt(room) * sqrt(room + 4.0 * rho)
    short = 2.0 * (level - 2.0 * e) / (lift + width) if lift > 0.0 else 0.5 * (width - lift)
    if abs(short) < 0.5:  # short = 1 - y keeps the digits that other * y - own loses
        return max((other - own) - other * short, 0.0)
    return max(other * (2.0 * (1.0 + e) / (lift + 2.0 + width)) - own, 0.0)


def _along(case: _Case, q: float) -> _Three:
    """Split q between the classes along the mean difference; give la, lb and lead."""
    _n, w, z, m, M, D = case
    C, gap = q + (w * m + z * M), M - m
    far = max(C + z * D, _TINY)
    E = sqrt((C + w * D) / far)  # the best b / a
    tilt = (w - z) * (D / (far * (1.0 + E)))  # E - 1
    over, scale = m * tilt - gap, z * E + w
    la, lb = (q - z * over) / scale, (E * q + w * over) / scale
    if la < 0.0:
        return 0.0, q / z, gap + q / z
    return (la, lb, tilt * (C / scale)) if lb >= 0.0 else (q / w, 0.0, gap - q / w)


def _across(case: _Case, k: float) -> tuple[float, float]:
    """Give x and rest for A = M / (1 + k), from whichever difference is the exact one."""
    m, M, A = case[3], case[4], case[4] / (1.0 + k)
    return max((M - m) - k * A if k < 1.0 else A - m, 0.0), k * A


def _excess(level: float) -> float:
    """Solve k^2 / (1 + k) = level."""
    return 0.5 * level + sqrt(level) * sqrt(1.0 + 0.25 * level)


def _price(case: _Case, C: float) -> tuple[float, float, float, float, float]:
    """Give k, zeta, s, kappa and bend, the slope of log zeta in log t."""
    _n, w, z, _m, M, D = case
    C = max(C, _TINY)
    t = min(D / C, _CAP)
    s = sqrt(1.0 + w * t) * sqrt(1.0 + z * t)
    kappa = 1.0 + (1.0 + 2.0 * w * z * t) / s
    zeta = min(w * kappa * t * (M / C), _CAP)
    bend = 2.0 - 0.5 * (w - z) * (w - z) * (t / s) / (s * s * kappa)
    return zeta / (1.0 + sqrt(1.0 + zeta)), zeta, s, kappa, bend


def _mixed_k(case: _Case, full: float) -> float:
    """Solve C + w n A = full + w n m, concave in C, from below; give k there."""
    n, w, z, m, M, _D = case
    wn, low = w * n, full - w * n * (M - m)

    def value(C: float) -> tuple[float, float]:
        k, zeta, _s, _kappa, bend = _price(case, C)
        A = M / (1.0 + k)
        f = (C - low) - wn * k * A if k < 1.0 else (C - full) + wn * (A - m)
        return f, 1.0 + 0.5 * wn * (A / C) * (zeta / (1.0 + zeta)) * bend

    start = max(w * m + z * M, low, _TINY)
    return _price(case, _newton(value, start, full))[0]


def _mixed_t(case: _Case, Y: float) -> float:
    """Solve n k^2 / (1 + k) + t + 2 (s - 1) = Y, nearly convex in t, from above."""
    n, w, z, _m, M, D = case

    def value(t: float) -> tuple[float, float]:
        k, zeta, s, kappa, bend = _price(case, D / max(t, _TINY))
        f = n * k * (k / (1.0 + k)) + t + 2.0 * t * ((1.0 + w * z * t) / (1.0 + s)) - Y
        return f, kappa + 0.5 * n * (zeta / (1.0 + zeta)) * (zeta / (1.0 + k)) * bend / max(
            t, _TINY
        )

    k = _excess(Y / n)
    far = sqrt(k) * sqrt(k + 2.0) * sqrt(D / M / (w * (1.0 + 2.0 * sqrt(w * z))))
    return _newton(value, min(far, Y), 0.0)


def _newton(curve: Callable[[float], tuple[float, float]], at: float, end: float) -> float:
    """Find the root between two points of an increasing curve, given by value and slope."""
    left, right = min(at, end), max(at, end)
    for _ in range(99):
        value, slope = curve(at)
        left, right = (at, right) if value < 0.0 else (left, at)
        old, at = at, at - value / slope
        at = at if left <= at <= right else 0.5 * (left + right)
        if abs(at - old) <= 1e-9 * at:  # quadratic: the next step is below rounding
            break
    return at
