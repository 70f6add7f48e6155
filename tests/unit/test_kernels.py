"""The compiled loops: the same bits as plain ones on every processor, whatever interrupts them."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tacit.kernels import (
    Kernel,
    add_along,
    add_rows,
    box_muller,
    class_sums,
    compare,
    largest_bits,
    round_to,
)

_SPECIAL = [0, 1, -1, 2, 2**29 - 1, 2**29, 2**30, -(2**30), 3 * 2**29, 2**31 - 1, -(2**31)]


def _words(half):
    """Words for so many pairs: all pairs of special ones, then random ones."""
    random = np.random.default_rng(0).integers(-(2**31), 2**31, size=(2, half), dtype=np.int32)
    pairs = np.stack(np.meshgrid(_SPECIAL, _SPECIAL)).reshape(2, -1).astype(np.int32)
    return np.concatenate([pairs, random], axis=1)[:, :half]


def _normals(words, kernel=box_muller):
    out = np.full(words.size + 8, 7.0)
    kernel(np.ascontiguousarray(words.reshape(-1)), out[:-8])
    assert (out[-8:] == 7).all()
    return out[:-8].reshape(words.shape)


@pytest.mark.parametrize("half", [0, 1, 15, 16, 17, 3000])
def test_normals_have_the_bits_of_one_operation_at_a_time(half):
    with np.errstate(over="ignore"):  # words wrap round
        plain = _normals(_words(half), box_muller.python)
    np.testing.assert_array_equal(plain.view(np.int64), _normals(_words(half)).view(np.int64))


_DIGEST = """
import hashlib, numpy as np
from tacit.kernels import box_muller
words, out = np.random.default_rng(1).integers(-2**31, 2**31, 4096, dtype=np.int32), np.empty(4096)
box_muller(words, out)
print(hashlib.sha256(out.tobytes()).hexdigest())
"""


def _digest(**environment):
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _DIGEST],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def test_normals_have_the_same_bits_on_a_plain_processor():
    words, out = np.random.default_rng(1).integers(-(2**31), 2**31, 4096, dtype=np.int32), None
    out = _normals(words)
    here = hashlib.sha256(out.tobytes()).hexdigest()
    assert _digest(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == here


def test_normals_are_as_exact_as_their_radius_and_angle_allow():
    words = _words(200_000)
    share = np.abs(words[0].astype(np.float32)) * np.float32(2**-31) + np.float32(2**-32)
    radius = np.sqrt(-2 * np.log(share.astype(np.float64)))
    angle = np.pi * 2.0**-31 * words[1]
    exact = radius * np.stack([np.cos(angle), np.sin(angle)])
    error = np.abs(_normals(words) - exact)
    assert error.max() <= 4 * 2.0**-24 * radius.max()
    assert error[:, radius < 1].max() <= 4 * 2.0**-24


def test_normals_are_finer_than_the_grid_of_a_release_by_8_bits():
    """Between neighbouring values there is less than 2^-24 of the largest: 8 bits below 2^-16."""
    values = np.sort(_normals(_words(2_000_000)).reshape(-1))
    inner = values[np.abs(values) < 1.0]
    assert len(np.unique(inner)) > 0.999 * len(inner)
    # float32 has at most 24 bits; here the last ones are in use.
    assert (inner.astype(np.float32).astype(np.float64) != inner).mean() > 0.99


SHAPES = [(1, 1), (3, 17), (7, 64), (1024, 128)]


@pytest.fixture(params=SHAPES, ids=str)
def rows(request):
    return np.random.default_rng(1).normal(size=request.param)


def test_class_sums(rows):
    owner = np.arange(len(rows)) % 3
    sums, squares = np.zeros((4, rows.shape[1])), np.zeros((4, rows.shape[1]))
    class_sums(rows, owner, 0.5, sums, squares)
    for one in range(4):
        own = 0.5 * rows[owner == one]
        np.testing.assert_allclose(sums[one], own.sum(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(squares[one], np.square(own).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("in_place", [True, False])
def test_noise_is_added(rows, in_place):
    rng = np.random.default_rng(2)
    normals, std, line = rng.normal(size=rows.shape), rng.random(len(rows)), rng.random(rows.shape)
    out = rows.copy()
    base = out if in_place else rows
    add_rows(base, normals, std, out)
    np.testing.assert_array_equal(out, rows + std[:, None] * normals)
    for lines in (line, line[:1]):
        out = rows.copy()
        add_along(out if in_place else rows, std, np.ascontiguousarray(lines), out)
        np.testing.assert_array_equal(out, rows + std[:, None] * lines)


@pytest.mark.parametrize("grid", [2.0**-149, 2.0**-20, 1.0, 2.0**900])
def test_rounding_is_to_the_nearest_multiple_and_ties_go_to_the_even_one(grid):
    steps = np.array([[0.5, 1.5, -2.5, 0.49, 65535.5], [0.51, 1e5, -3.0, 0.0, 7.25]])
    out = np.empty_like(steps)
    round_to(steps * grid, grid, out)
    np.testing.assert_array_equal(out, np.round(steps) * grid)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compare_gives_squared_lengths_and_values_off_the_grid(rows, dtype):
    after = (rows + 0.25).astype(dtype)
    squares, off = np.empty(len(rows)), np.zeros(1, dtype=np.int64)
    compare(after, rows, 0.5, 2.0**-8, squares, off)
    np.testing.assert_allclose(squares, np.square((after - rows) / 0.5).sum(axis=1), rtol=1e-12)
    assert off[0] == ((after * 2.0**8) % 1 != 0).sum()
    for value in (np.inf, np.nan):
        after[0, 0] = value
        compare(after, rows, 0.5, 2.0**-8, squares, off)
        assert not np.isfinite(squares[0])


def test_largest_is_the_largest_magnitude(rows):
    found = np.zeros(1, dtype=np.int64)
    for value in (0.0, -1e300, 2.0**-1070, -np.inf, np.nan):
        rows[-1, -1] = value
        largest_bits(rows.view(np.int64), found)
        np.testing.assert_equal(found.view(np.float64)[0], np.abs(rows).max())


def test_a_function_that_cannot_be_kept_in_a_cache_is_compiled_all_the_same():
    """numba finds no place for the cache of code without a file; nor where it may not write."""
    made = {}
    exec("def double(values):\n    for i in range(len(values)):\n        values[i] *= 2", made)  # noqa: S102
    values = np.arange(3.0)
    Kernel(made["double"], "void(float64[::1])")(values)
    assert values.tolist() == [0, 2, 4]


def test_an_interrupt_while_compiling_does_no_harm():
    """In the thread that compiles, LLVM's objects would be left half made."""
    waiting, hits = [], []

    def interrupt(_number, _frame):
        if waiting:
            hits.append(waiting.pop())
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signature = "void(float64[:, :], float64, float64[:, :])"
    fresh = [Kernel(round_to.python, signature) for _ in range(6)]
    try:
        for delay, kernel in zip(np.linspace(0.001, 0.1, 6), fresh, strict=True):
            with contextlib.suppress(KeyboardInterrupt):
                waiting.append(delay)
                signal.setitimer(signal.ITIMER_REAL, delay)
                kernel(np.ones((2, 3)), 0.5, np.ones((2, 3)))
                waiting.clear()
    finally:
        waiting.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits
    values = np.full((1, 2), 0.3)
    for kernel in fresh:
        kernel(values, 0.25, values)
    assert values.tolist() == [[0.25, 0.25]]
