"""Bounds and the symmetrised KL divergence against closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from tacit.errors import InputError, ParameterError
from tacit.measure import auc_bound, error_bound, gaussian_auc, sum_kl, sum_kl_for_error

Matrix = NDArray[np.float64]


def kl(mean1: Matrix, cov1: Matrix, mean0: Matrix, cov0: Matrix) -> float:
    """The textbook formula, with determinants."""
    gap = mean0 - mean1
    trace = np.trace(np.linalg.solve(cov0, cov1))
    logs = np.linalg.slogdet(cov0)[1] - np.linalg.slogdet(cov1)[1]
    return float(trace - len(gap) + gap @ np.linalg.solve(cov0, gap) + logs) / 2


def spd(rng: np.random.Generator, d: int) -> Matrix:
    root = rng.normal(size=(d, d + 3))
    return root @ root.T / d


@pytest.mark.parametrize("d", [1, 2, 7, 40])
@pytest.mark.parametrize("unit", [1e-24, 1.0, 1e12])
def test_matrices_agree_with_the_textbook(d: int, unit: float) -> None:
    rng = np.random.default_rng(d)
    cov1, cov0 = spd(rng, d), spd(rng, d)
    mean1, mean0 = rng.normal(size=d), rng.normal(size=d)
    expected = kl(mean1, cov1, mean0, cov0) + kl(mean0, cov0, mean1, cov1)
    value = sum_kl(mean1 * unit, cov1 * unit**2, mean0 * unit, cov0 * unit**2)
    assert value == pytest.approx(expected, rel=1e-9)
    assert sum_kl(mean0, cov0, mean1, cov1) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind1", [0, 1, 2])
@pytest.mark.parametrize("kind0", [0, 1, 2])
def test_kinds_of_covariance_mix(kind1: int, kind0: int) -> None:
    rng = np.random.default_rng(0)
    forms: list[Any] = [0.7, rng.uniform(0.5, 2, size=5), spd(rng, 5)]
    dense = [0.7 * np.eye(5), np.diag(forms[1]), forms[2]]
    mean1, mean0 = rng.normal(size=5), rng.normal(size=5)
    expected = kl(mean1, dense[kind1], mean0, dense[kind0])
    expected += kl(mean0, dense[kind0], mean1, dense[kind1])
    assert sum_kl(mean1, forms[kind1], mean0, forms[kind0]) == pytest.approx(expected, rel=1e-10)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(-10, 10), st.integers(1, 6))
def test_isotropic_closed_form(v: float, u: float, gap: float, d: int) -> None:
    mean = np.zeros(d)
    mean[0] = gap
    closed = d * (v - u) ** 2 / (2 * v * u) + gap**2 * (1 / v + 1 / u) / 2
    assert sum_kl(mean, v, np.zeros(d), u) == pytest.approx(closed, rel=1e-12, abs=1e-300)


def test_nearly_equal_covariances_keep_their_digits() -> None:
    for kind in (1.0, np.ones(3), np.eye(3)):
        base = np.asarray(kind)
        value = sum_kl(np.zeros(3), base * (1 + 2.0**-40), np.zeros(3), base)
        assert value == pytest.approx(3 * 2.0**-81, rel=1e-9)


def test_directions_without_variance() -> None:
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0][:, :4]
    cov1, cov0 = spd(rng, 4), spd(rng, 4)
    mean1, mean0 = rng.normal(size=4), rng.normal(size=4)
    thin1, thin0 = turn @ cov1 @ turn.T, turn @ cov0 @ turn.T
    inside = sum_kl(turn @ mean1, thin1, turn @ mean0, thin0)
    assert inside == pytest.approx(sum_kl(mean1, cov1, mean0, cov0), rel=1e-9)
    assert sum_kl(rng.normal(size=6), thin1, turn @ mean0, thin0) == math.inf
    assert sum_kl(turn @ mean1, thin1, turn @ mean1, thin0 + 1e-6 * np.eye(6)) == math.inf
    assert sum_kl(turn @ mean1, thin1, turn @ mean1, 1.0) == math.inf


def test_diagonals_without_variance_are_exact() -> None:
    assert sum_kl([0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]) == 0.0
    assert sum_kl([0.0, 1.0], [1.0, 0.0], [0.0, 1.0 + 1e-15], [1.0, 0.0]) == math.inf
    assert sum_kl([0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 5e-324]) == math.inf
    assert sum_kl(3.0, 0.0, 3.0, 0.0) == 0.0
    assert sum_kl([1.0, 2.0], np.diag([1.0, 0.0]), [1.0, 2.0], np.diag([1.0, 0.0])) == 0.0
    assert sum_kl([1.0, 2.0], np.diag([1.0, 0.0]), [1.0, 3.0], np.diag([1.0, 0.0])) == math.inf
    assert sum_kl([1.0], [[0.0]], [1.0], 0.0) == 0.0


def test_coordinates_of_very_different_scale_all_count() -> None:
    cov1, cov0 = np.diag([1.0, 2e-30]), np.diag([1.0, 1e-30])
    assert sum_kl([0.0, 0.0], cov1, [0.0, 0.0], cov0) == pytest.approx(0.25, rel=1e-12)


def test_tensors_are_accepted() -> None:
    mean = torch.zeros(2, requires_grad=True)
    assert sum_kl(mean, torch.eye(2, dtype=torch.bfloat16) * 2, mean, 1.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (([0.0], 1.0, [0.0, 0.0], 1.0), "equal length"),
        (([[0.0]], 1.0, [0.0], 1.0), "number or a vector"),
        (([0.0], -1.0, [0.0], 1.0), "not be negative"),
        (([0.0, 0.0], [1.0], [0.0, 0.0], 1.0), "match the means"),
        (([0.0, 0.0], [[1.0, 2.0], [0.0, 1.0]], [0.0, 0.0], 1.0), "symmetric"),
        (
            ([0.0, 0.0], [[1.0, 3.0], [3.0, 1.0]], [0.0, 0.0], [[1.0, -2.0], [-2.0, 1.0]]),
            "semi-def",
        ),
        (([0.0, 0.0], [[1.0, 3.0], [3.0, 1.0]], [0.0, 0.0], 1.0), "semi-definite"),
        (([math.nan], 1.0, [0.0], 1.0), "finite"),
        (([0.0], math.inf, [0.0], 1.0), "finite"),
        ((["a"], 1.0, [0.0], 1.0), "real numbers"),
    ],
)
def test_impossible_gaussians_are_refused(bad: tuple[Any, Any, Any, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        sum_kl(*bad)


@given(st.floats(0, 100))
def test_the_bounds_are_in_order(e: float) -> None:
    assert 0.5 <= gaussian_auc(e) <= auc_bound(e) <= 1
    assert 0 <= error_bound(e) <= 0.5
    assert auc_bound(e) <= auc_bound(e + 0.1) <= 1


@given(st.floats(0, 8))
def test_two_equal_gaussians_respect_both_bounds(e: float) -> None:
    """Means sqrt(e) apart: the best error is Phi(-sqrt(e) / 2), the best AUC Phi(sqrt(e / 2))."""
    assert sum_kl(math.sqrt(e), 1.0, 0.0, 1.0) == pytest.approx(e, abs=1e-12)
    assert norm.cdf(-math.sqrt(e) / 2) >= error_bound(e) - 1e-12
    assert norm.cdf(math.sqrt(e / 2)) == pytest.approx(gaussian_auc(e), abs=1e-12)


@given(st.floats(0, 0.5, exclude_max=True))
def test_error_bound_and_its_inverse(error: float) -> None:
    assert error_bound(sum_kl_for_error(error)) == pytest.approx(error, abs=1e-12)


@given(st.floats(0, 0.999), st.floats(0.01, 0.99))
def test_the_weighted_error_bound_and_its_inverse(part: float, p: float) -> None:
    error = part * min(p, 1 - p)
    assert error_bound(sum_kl_for_error(error, p), p) == pytest.approx(error, abs=1e-12)


@given(st.floats(0.001, 8), st.floats(0.01, 0.99))
def test_two_equal_gaussians_respect_the_weighted_bound(e: float, p: float) -> None:
    """The best set is a half-line, where ``p f1 = (1 - p) f0``; means are sqrt(e) apart."""
    gap = math.sqrt(e)
    cut = gap / 2 + math.log((1 - p) / p) / gap
    best = p * norm.cdf(cut - gap) + (1 - p) * norm.cdf(-cut)
    assert best >= error_bound(e, p) - 1e-12
    assert best <= min(p, 1 - p) + 1e-12


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_a_share_lies_between_zero_and_one(p: float) -> None:
    with pytest.raises(ParameterError, match="p must be above 0"):
        error_bound(1.0, p)


def test_bounds_at_zero_four_and_infinity() -> None:
    assert (auc_bound(0), auc_bound(4), auc_bound(math.inf)) == (0.5, 1.0, 1.0)
    assert auc_bound(math.nextafter(4, 0)) == pytest.approx(1.0, abs=1e-12)
    assert (gaussian_auc(0), gaussian_auc(math.inf)) == (0.5, 1.0)
    assert (error_bound(0), error_bound(math.inf)) == (0.5, 0.0)
    assert sum_kl_for_error(0) == 4.0


@pytest.mark.parametrize("bad", [-1e-12, -math.inf, math.nan])
def test_no_negative_divergence(bad: float) -> None:
    for bound in (auc_bound, gaussian_auc, error_bound):
        with pytest.raises(ParameterError, match="at least 0"):
            bound(bad)


@pytest.mark.parametrize("bad", [0.5, -0.1, math.nan, 1.0])
def test_no_error_of_a_half_or_more(bad: float) -> None:
    with pytest.raises(ParameterError, match="at least 0 and below"):
        sum_kl_for_error(bad)
