"""Box-Muller out of additions, multiplications and square roots.

Polynomials are best fits in the largest error: 6e-9 for the logarithm, 4e-9 for the sine and 1e-10
for the cosine, each below the rounding of ``float32``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.machine.lanes import Lanes

__all__ = ["normals_of"]

_HALF_ROOT = 0x3F3504F3  # the bits of sqrt(1/2)
_LOG = (
    *(-0.0786544979, 0.128792003, -0.131252959, 0.141814202),
    *(-0.166249692, 0.200022832, -0.250007957, 0.333333164),
)
_SINE = (-1.95175933e-4, 8.33218079e-3, -0.166666552)
_COSINE = (2.44394832e-5, -1.38873782e-3, 0.0416666456)


def normals_of(first: Lanes, second: Lanes) -> tuple[Lanes, Lanes]:
    """Return ``sqrt(-2 ln a) * (cos, sin)(2 pi b)`` of words a and b.

    Near zero, where the tails come from, the magnitude of a word is exact in floating point.
    """
    magnitude = (first.real().bits() & 0x7FFFFFFF).from_bits()
    share = (magnitude * 2.0**-31 + 2.0**-32).bits()
    power = (share - _HALF_ROOT) >> 23
    x = (share - (power << 23)).from_bits() - 1.0  # share = 2^power (1 + x)
    square = x * x
    log = power.real() * math.log(2) + (x - square * 0.5 + _polynomial(square * x, x, _LOG))
    radius = (log * -2.0).sqrt()
    turn = (second + (1 << 29)) >> 30
    angle = (second - (turn << 30)).real() * (math.pi * 2.0**-31)  # within an eighth of the circle
    square = angle * angle
    sine = angle + _polynomial(square * angle, square, _SINE)
    cosine = _polynomial(square * square, square, _COSINE) - square * 0.5 + 1.0
    odd = turn & 1
    across = odd.pick(sine, cosine).bits() ^ ((turn + 1 & 2) << 30)
    up = odd.pick(cosine, sine).bits() ^ ((turn & 2) << 30)
    return radius * across.from_bits(), radius * up.from_bits()


def _polynomial(factor: Lanes, x: Lanes, coefficients: Sequence[float]) -> Lanes:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value * factor
