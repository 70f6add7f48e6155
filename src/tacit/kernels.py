"""The loops that every release makes over a batch, compiled by numba when they are first called.

They are plain Python without fast-math: the same operations in the same order on every processor,
and for any labels. Compiled code is kept in numba's cache, where one can be written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, final

import numpy as np
import numpy.typing as npt

P = ParamSpec("P")

Reals = npt.NDArray[np.float64]
Floats = Reals | npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@final
class Kernel(Generic[P]):
    """A loop over arrays; ``python`` is the function as it is written."""

    def __init__(self, python: Callable[P, None], *signatures: str) -> None:
        self.python = python
        self._signatures = signatures
        self._compiled: Callable[..., None] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the compiled loop."""
        if self._compiled is None:
            # An interrupt is the main thread's: one in the middle would leave LLVM's objects
            # half made, so the compiler runs in another thread.
            with ThreadPoolExecutor(1) as pool:
                self._compiled = pool.submit(_compile, self.python, self._signatures).result()
        self._compiled(*args, **kwargs)


def _compile(python: Callable[..., None], signatures: tuple[str, ...]) -> Callable[..., None]:
    import numba  # noqa: PLC0415 - half a second that only those who protect need to spend

    compiled: Callable[..., None]
    try:
        compiled = numba.njit(list(signatures), cache=True)(python)
    except (RuntimeError, OSError):  # no folder for a cache that can be written, or a full disk
        compiled = numba.njit(list(signatures))(python)
    return compiled


def _kernel(*signatures: str) -> Callable[[Callable[P, None]], Kernel[P]]:
    def wrap(python: Callable[P, None]) -> Kernel[P]:
        return Kernel(python, *signatures)

    return wrap


# Box-Muller out of additions, multiplications and square roots. The polynomials are best fits in
# the largest error: 6e-9 for the logarithm, 4e-9 for the sine and 1e-10 for the cosine.
_F, _I = np.float32, np.int32
_HALF_ROOT = _I(0x3F3504F3)  # the bits of sqrt(1/2)
_LN2, _ANGLE = _F(math.log(2)), _F(math.pi * 2.0**-31)
_LOG0, _LOG1, _LOG2, _LOG3 = _F(-0.0786544979), _F(0.128792003), _F(-0.131252959), _F(0.141814202)
_LOG4, _LOG5, _LOG6, _LOG7 = _F(-0.166249692), _F(0.200022832), _F(-0.250007957), _F(0.333333164)
_SIN0, _SIN1, _SIN2 = _F(-1.95175933e-4), _F(8.33218079e-3), _F(-0.166666552)
_COS0, _COS1, _COS2 = _F(2.44394832e-5), _F(-1.38873782e-3), _F(0.0416666456)
_ONE, _TWO, _HALF = _F(1.0), _F(2.0), _F(0.5)
_WORD, _LEAST = _F(2.0**-31), _F(2.0**-32)


@_kernel("void(int32[::1], float64[::1])")
def box_muller(words: Words, out: Reals) -> None:
    """Write ``sqrt(-2 ln a) (cos, sin)(2 pi b)`` of words a (first half) and b (second half).

    Radius and direction have 24 bits each, their product all 48: twice as many as ``float32``.
    """
    half = words.shape[0] // 2
    for i in range(half):
        # a = 2^power (1 + x); near zero, where the tails come from, a word is exact.
        bits = _F(abs(_F(words[i])) * _WORD + _LEAST).view(np.int32)
        power = _I((bits - _HALF_ROOT) >> 23)
        x = _I(bits - (power << 23)).view(np.float32) - _ONE
        square = x * x
        log = x * _LOG0 + _LOG1
        log = (((log * x + _LOG2) * x + _LOG3) * x + _LOG4) * x + _LOG5
        log = ((log * x + _LOG6) * x + _LOG7) * (square * x)
        log = _F(power) * _LN2 + (x - square * _HALF + log)
        radius = np.float64(np.sqrt(_F(log * -_TWO)))
        # b is whole quarters of the circle and an angle within an eighth of it.
        word = words[half + i]
        turn = _I(_I(word + 536870912) >> 30)
        angle = _F(_I(word - (turn << 30))) * _ANGLE
        square = angle * angle
        sine = angle + ((square * _SIN0 + _SIN1) * square + _SIN2) * (square * angle)
        cosine = ((square * _COS0 + _COS1) * square + _COS2) * (square * square)
        cosine = cosine - square * _HALF + _ONE
        across = sine if turn & 1 else cosine
        up = cosine if turn & 1 else sine
        out[i] = radius * np.float64(across * (_ONE - _F((turn + 1) & 2)))
        out[half + i] = radius * np.float64(up * (_ONE - _F(turn & 2)))


@_kernel("void(float64[:, ::1], int64[::1], float64, float64[:, ::1], float64[:, ::1])")
def class_sums(rows: Reals, owner: Ints, unit: float, sums: Reals, squares: Reals) -> None:
    """Add each row times ``unit``, and its squares, to the row of its class."""
    for i in range(rows.shape[0]):
        own = owner[i]
        for j in range(rows.shape[1]):
            value = rows[i, j] * unit
            sums[own, j] += value
            squares[own, j] += value * value


@_kernel("void(float64[:, ::1], float64[:, ::1], float64[::1], float64[:, ::1])")
def add_rows(base: Reals, normals: Reals, std: Reals, out: Reals) -> None:
    """Write ``base[i] + std[i] * normals[i]`` to row i of ``out``, which may be ``base``."""
    for i in range(base.shape[0]):
        size = std[i]
        for j in range(base.shape[1]):
            out[i, j] = base[i, j] + size * normals[i, j]


@_kernel("void(float64[:, ::1], float64[::1], float64[:, ::1], float64[:, ::1])")
def add_along(base: Reals, steps: Reals, directions: Reals, out: Reals) -> None:
    """Write ``base[i] + steps[i] * directions[i]`` to row i of ``out``, which may be ``base``.

    ``directions`` may be one row for all.
    """
    shared = directions.shape[0] == 1
    for i in range(base.shape[0]):
        size, own = steps[i], 0 if shared else i
        for j in range(base.shape[1]):
            out[i, j] = base[i, j] + size * directions[own, j]


@_kernel("void(int64[:, ::1], int64[::1])")
def largest_bits(values: Ints, found: Ints) -> None:
    """Write the largest magnitude of values given as the bits of ``float64``.

    Without their sign, numbers are in the order of their bits; infinity and NaN lie above.
    """
    top = 0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            top = max(top, values[i, j] & 0x7FFFFFFFFFFFFFFF)
    found[0] = top


@_kernel(
    "void(float32[:, ::1], float64[:, ::1], float64, float64, float64[::1], int64[::1])",
    "void(float64[:, ::1], float64[:, ::1], float64, float64, float64[::1], int64[::1])",
)
def compare(
    after: Floats, before: Reals, unit: float, grid: float, squares: Reals, off: Ints
) -> None:
    """Write the squared length of each row of ``(after - before) / unit``.

    And how many values of ``after`` are no multiples of the power of two ``grid``.
    """
    scale, inverse, count, width = 1.0 / unit, 1.0 / grid, 0, after.shape[1]
    for i in range(after.shape[0]):
        # Four sums: each addition to a single one would wait for the one before.
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for j in range(0, width - 3, 4):
            first += ((np.float64(after[i, j]) - before[i, j]) * scale) ** 2
            second += ((np.float64(after[i, j + 1]) - before[i, j + 1]) * scale) ** 2
            third += ((np.float64(after[i, j + 2]) - before[i, j + 2]) * scale) ** 2
            fourth += ((np.float64(after[i, j + 3]) - before[i, j + 3]) * scale) ** 2
        for j in range(width - width % 4, width):
            first += ((np.float64(after[i, j]) - before[i, j]) * scale) ** 2
        squares[i] = (first + second) + (third + fourth)
        for j in range(width):
            steps = after[i, j] * inverse
            count += steps != np.rint(steps)
    off[0] = count


@_kernel(
    "void(float64[:, ::1], float64, float32[:, ::1])",
    "void(float64[:, ::1], float64, float64[:, ::1])",
)
def round_to(values: Reals, grid: float, out: Floats) -> None:
    """Write the multiple of a power of two that is nearest to every value."""
    inverse = 1.0 / grid
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[i, j] = np.rint(values[i, j] * inverse) * grid
