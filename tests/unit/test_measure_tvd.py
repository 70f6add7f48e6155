"""The total variation distance: what must hold exactly, and closed forms with computed room."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from tacit.errors import InputError
from tacit.measure import tvd


def room(na: int, nb: int) -> float:
    """Four standard errors of a difference of two frequencies."""
    return 4 * math.sqrt(0.25 / na + 0.25 / nb)


@given(
    st.lists(st.integers(-4, 4), min_size=2, max_size=30),
    st.lists(st.integers(-4, 4), min_size=2, max_size=30),
)
def test_a_distance_is_symmetric_and_within_the_unit_interval(a: list[int], b: list[int]) -> None:
    assert 0 <= tvd(a, b) <= 1
    assert tvd(a, b) == pytest.approx(tvd(b, a), abs=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2, 2)])
def test_equal_samples_have_distance_zero(shape: tuple[int, ...]) -> None:
    sample = np.random.default_rng(0).normal(size=(60, *shape))
    assert tvd(sample, sample) == 0.0
    assert tvd(np.ones((9, *shape)), np.ones((5, *shape))) == 0.0


@pytest.mark.parametrize("sizes", [(64, 64), (6, 122), (300, 40)])
@pytest.mark.parametrize("shape", [(), (5,)])
@pytest.mark.parametrize("unit", [1e-24, 1.0, 1e24])
def test_samples_that_do_not_overlap(
    sizes: tuple[int, int], shape: tuple[int, ...], unit: float
) -> None:
    rng = np.random.default_rng(1)
    a = rng.random(size=(sizes[0], *shape)) * unit
    b = (rng.random(size=(sizes[1], *shape)) + 2) * unit
    assert tvd(a, b) >= 1 - 1 / min(sizes)
    assert tvd(np.zeros((sizes[0], *shape)), np.full((sizes[1], *shape), unit)) == 1.0


def test_one_dimension_depends_on_ranks_only() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=200), rng.normal(1, 2, size=150)
    assert tvd(np.exp(a), np.exp(b)) == tvd(a, b)
    assert tvd(a[:, None], b[:, None]) == tvd(a, b)


@pytest.mark.parametrize("gap", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("d", [1, 6])
def test_equal_gaussians_have_a_closed_form(gap: float, d: int) -> None:
    n = 20_000 if d == 1 else 4_000
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    a[:, 0] += gap
    true = 2 * norm.cdf(gap / 2) - 1
    assert true - room(n, n) - 0.01 <= tvd(a, b) <= true + room(n, n)


@pytest.mark.parametrize("d", [1, 4])
def test_gaussians_of_different_width(d: int) -> None:
    """Widths 1 and s: the ratio of densities crosses 1 at one radius r."""
    n, s = 4_000, 3.0
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(n, d)), s * rng.normal(size=(n, d))
    square = 2 * d * math.log(s) / (1 - 1 / s**2)
    true = chi2.cdf(square, d) - chi2.cdf(square / s**2, d)
    assert true - room(n, n) - 0.01 <= tvd(a, b) <= true + room(n, n)


def test_a_difference_in_correlation_alone() -> None:
    n, r = 4_000, 0.9
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    root = math.sqrt(1 - r * r)
    a[:, 1], b[:, 1] = r * a[:, 0] + root * a[:, 1], -r * b[:, 0] + root * b[:, 1]
    true = 2 / math.pi * math.asin(r)  # the sign of the product tells them apart
    assert true - room(n, n) - 0.01 <= tvd(a, b) <= true + room(n, n)


@pytest.mark.parametrize("sizes", [(64, 64), (6, 122), (122, 6)])
def test_noise_in_one_class_only_is_seen_in_many_dimensions(sizes: tuple[int, int]) -> None:
    """128 rows of 1600 numbers near five directions; the second sample has a little extra noise."""
    rng = np.random.default_rng(6)
    few = rng.normal(size=(5, 1600))
    a = rng.normal(size=(sizes[0], 5)) @ few
    b = rng.normal(size=(sizes[1], 5)) @ few + 0.01 * rng.normal(size=(sizes[1], 1600))
    assert tvd(a, b) >= 0.95


def test_many_dimensions_take_no_matrix_of_their_square() -> None:
    """A covariance of 1600 x 1600 would take 20 MB, and 4e9 operations to decompose."""
    rows = np.random.default_rng(7).normal(size=(128, 1600))
    tracemalloc.start()
    try:
        tvd(rows[:64], rows[64:])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 0.75 * 8 * 1600**2


def test_overfitting_does_not_raise_the_distance() -> None:
    """More dimensions than rows, no difference: the mean over many samples is near the cut at 0."""
    rng = np.random.default_rng(8)
    values = [tvd(rng.normal(size=(20, 50)), rng.normal(size=(30, 50))) for _ in range(60)]
    lift = 0.2 * math.sqrt(1 / 20 + 1 / 30)
    spread = 0.5 * math.sqrt(1 / 20 + 1 / 30)
    assert np.mean(values) <= lift + 4 * spread / math.sqrt(60)


def test_tensors_in_any_shape() -> None:
    rows = torch.arange(48.0).reshape(6, 2, 4).to(torch.bfloat16)
    assert tvd(rows, rows + 100) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "rule"),
    [
        ([0.0], [1.0, 2.0], "at least 2 rows"),
        (np.zeros((2, 3)), np.zeros((9, 3)), "at least 3 rows"),
        (np.zeros((4, 3)), np.zeros((4, 2)), "equal length"),
        ([0.0, math.nan], [1.0, 2.0], "finite"),
        (3.0, [1.0, 2.0], "must hold rows"),
        ([], [1.0, 2.0], "must hold rows"),
    ],
)
def test_samples_that_cannot_be_compared(a: Any, b: Any, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        tvd(a, b)
