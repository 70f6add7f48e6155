"""What measures promise on average, with room computed from the number of trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacit.measure import auc, bootstrap_auc, gaussian_auc, leak_auc, null_band, pooled_leak, tvd


def too_few(trials: int, probability: float) -> int:
    """A count that a binomial variable falls below once in a million."""
    return int(binom.ppf(1e-6, trials, probability))


def too_many(trials: int, probability: float) -> int:
    return int(binom.ppf(1 - 1e-6, trials, probability))


def test_gaussian_auc_is_that_of_the_likelihood_ratio() -> None:
    rng = np.random.default_rng(0)
    n = 40_000
    labels = np.arange(2 * n) < n
    for e in (0.1, 1.0, 3.0):
        scores = rng.normal(size=2 * n) + math.sqrt(e) * labels
        # The variance of an AUC is at most a (1 - a) / min(n1, n0).
        true = gaussian_auc(e)
        room = 5 * math.sqrt(true * (1 - true) / n)
        assert auc(scores, labels) == pytest.approx(true, abs=room)


@pytest.mark.parametrize(("positives", "size"), [(6, 128), (30, 128), (64, 128)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_null_band_holds_its_level(positives: int, size: int, ties: bool) -> None:
    """Permuted labels; the normal shape costs at most two points at six positives."""
    rng = np.random.default_rng(positives)
    trials = 2_500
    labels = np.arange(size) < positives
    inside = 0
    for _ in range(trials):
        scores = rng.normal(size=size)
        scores = np.round(scores) if ties else scores
        record = pooled_leak([(scores, labels)], rng=rng, resamples=1)
        inside += record.leak_auc <= record.null_high
    assert too_few(trials, 0.93) <= inside <= too_many(trials, 0.97)


def test_the_band_of_a_pool_is_narrower_by_the_root_of_the_batches() -> None:
    rng = np.random.default_rng(1)
    trials, labels = 1_000, np.arange(128) < 6
    inside = 0
    for _ in range(trials):
        batches = [(rng.normal(size=128), labels) for _ in range(20)]
        record = pooled_leak(batches, rng=rng, resamples=1)
        inside += record.leak_auc <= record.null_high
    assert too_few(trials, 0.94) <= inside <= too_many(trials, 0.96)
    assert record.null_high - 0.5 == pytest.approx((null_band(labels).high - 0.5) / math.sqrt(20))


@pytest.mark.parametrize(("positives", "expected"), [(6, 0.597), (64, 0.541)])
def test_the_leak_auc_of_noise_is_known(positives: int, expected: float) -> None:
    rng = np.random.default_rng(2)
    labels = np.arange(128) < positives
    values = [leak_auc(rng.normal(size=128), labels) for _ in range(20_000)]
    record = pooled_leak([(np.arange(128.0), labels)], rng=rng)
    assert record.null_mean == pytest.approx(expected, abs=5e-4)
    # The normal shape moves the mean by less than a hundredth of the distance to one half.
    room = 5 * float(np.std(values)) / math.sqrt(len(values)) + 0.01 * (expected - 0.5)
    assert np.mean(values) == pytest.approx(record.null_mean, abs=room)


@pytest.mark.parametrize(("n1", "n0"), [(6, 122), (40, 40)])
def test_the_bootstrap_covers_within_a_batch(n1: int, n0: int) -> None:
    rng = np.random.default_rng(n1)
    trials, labels, true = 800, np.arange(n1 + n0) < n1, norm.cdf(1 / math.sqrt(2))
    covered = 0
    for _ in range(trials):
        scores = rng.normal(size=n1 + n0) + labels
        low, high = bootstrap_auc(scores, labels, rng=rng)
        covered += low <= true <= high
    assert too_few(trials, 0.92) <= covered <= too_many(trials, 0.97)


@pytest.mark.parametrize("count", [3, 10, 30])
def test_the_bootstrap_covers_over_batches(count: int) -> None:
    rng = np.random.default_rng(count)
    trials, labels, true = 500, np.arange(64) < 6, norm.cdf(1 / math.sqrt(2))
    covered = 0
    for _ in range(trials):
        batches = [(rng.normal(size=64) + labels, labels) for _ in range(count)]
        record = pooled_leak(batches, rng=rng)
        covered += record.low <= true <= record.high
    assert too_few(trials, 0.92) <= covered <= too_many(trials, 0.97)


@pytest.mark.parametrize(("na", "nb"), [(6, 122), (64, 64)])
@pytest.mark.parametrize("d", [1, 3, 200])
@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_tvd_does_not_exceed_the_truth_on_average(na: int, nb: int, d: int, gap: float) -> None:
    rng = np.random.default_rng(d)
    trials = 120 if d < 100 else 30
    values = []
    for _ in range(trials):
        a, b = rng.normal(size=(na, d)), rng.normal(size=(nb, d))
        a[:, 0] += gap
        values.append(tvd(a, b))
    spread = 0.5 * math.sqrt(1 / na + 1 / nb)
    # Cutting at zero lifts the mean by at most 0.4 spreads, and only near zero.
    assert np.mean(values) <= 2 * norm.cdf(gap / 2) - 1 + (0.4 + 4 / math.sqrt(trials)) * spread
