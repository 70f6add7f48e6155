"""Pooled leakage, its interval and the band of noise: exact parts, small cases, limits."""

from __future__ import annotations

import itertools
import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.errors import InputError, ParameterError
from tacit.measure import (
    LeakMeter,
    auc,
    bootstrap_auc,
    leak_auc,
    null_band,
    pooled_leak,
    quantile_over_steps,
)
from tacit.measure._rank_statistics import class_scores, null_variance, tie_sum
from tacit.measure.intervals import bootstrap_u

Batch = tuple[NDArray[Any], NDArray[Any]]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def make(count: int, *, shift: float = 1.0, size: int = 64, rare: int = 8) -> list[Batch]:
    source = np.random.default_rng(7)
    labels = np.arange(size) < rare
    return [(source.normal(size=size) + shift * labels, labels) for _ in range(count)]


@given(st.lists(st.integers(0, 3), min_size=3, max_size=7), st.data())
def test_null_variance_is_that_of_all_deals_of_the_labels(scores: list[int], data: Any) -> None:
    n1 = data.draw(st.integers(1, len(scores) - 1))
    deals = itertools.combinations(range(len(scores)), n1)
    values = [auc(scores, [int(i in deal) for i in range(len(scores))]) for deal in deals]
    by_class = class_scores(scores, [1] * n1 + [0] * (len(scores) - n1))
    n1s, n0s, ties = (np.array([float(v)]) for v in (n1, len(scores) - n1, tie_sum(by_class)))
    variance = null_variance(n1s, n0s, ties)[0] / by_class.pairs**2
    assert np.mean(values) == pytest.approx(0.5, abs=1e-12)
    assert variance == pytest.approx(np.var(values), abs=1e-12)


def test_only_pairs_inside_a_batch_are_compared() -> None:
    first = ([0.0, 1.0, 2.0], [0, 1, 0])
    second = ([100.0, 101.0], [0, 1])
    pooled = pooled_leak([first, second], rng=rng())
    assert pooled.leak_auc == pytest.approx((1 + 1) / (2 + 1))
    assert (pooled.batches, pooled.examples, pooled.skipped) == (2, 5, 0)


@given(st.floats(0.1, 10), st.floats(-50, 50))
def test_each_batch_may_have_its_own_scale(factor: float, offset: float) -> None:
    plain = make(3)
    scaled = [(s * factor**k + offset * k, y) for k, (s, y) in enumerate(plain)]
    assert pooled_leak(scaled, rng=rng()) == pooled_leak(plain, rng=rng())


@pytest.mark.parametrize("count", [1, 4, 9, 10, 40])
def test_the_record_agrees_with_its_parts(count: int) -> None:
    batches = make(count)
    pooled = pooled_leak(batches, rng=rng())
    each = [leak_auc(*batch) for batch in batches]
    assert pooled.leak_auc == pytest.approx(np.mean([auc(*b) for b in batches]))
    assert pooled.mean == pytest.approx(np.mean(each))
    assert pooled.q95 == pytest.approx(quantile_over_steps(each))
    assert 0.5 <= pooled.low <= pooled.leak_auc <= pooled.high <= 1
    sd = math.sqrt(65 / (12 * 8 * 56))
    assert pooled.null_mean == pytest.approx(0.5 + sd * math.sqrt(2 / math.pi))
    signed = [auc(*batch) for batch in batches]
    assert pooled.signed == pytest.approx(np.mean(signed))
    assert pooled.signed_q95 == pytest.approx(quantile_over_steps(signed))
    assert pooled.null_q95 == pytest.approx(0.5 + 1.959964 * sd, abs=1e-6)
    assert pooled.null_signed_q95 == pytest.approx(0.5 + 1.644854 * sd, abs=1e-6)
    assert pooled.null_low == 0.5
    assert pooled.null_high == pytest.approx(0.5 + 1.959964 * sd / math.sqrt(count), abs=1e-6)


@pytest.mark.parametrize("count", [3, 12])
def test_the_sign_is_fixed_once(count: int) -> None:
    batches = make(count)
    turned = [(-s, y) for s, y in batches]
    straight, back = pooled_leak(batches, rng=rng()), pooled_leak(turned, rng=rng())
    assert back.leak_auc == pytest.approx(straight.leak_auc)
    assert back.signed == pytest.approx(1 - straight.signed)
    assert back.low == pytest.approx(straight.low, abs=0.02)
    mixed = pooled_leak([*batches, *turned], rng=rng())
    assert mixed.leak_auc == pytest.approx(0.5)
    assert mixed.low == 0.5
    assert mixed.mean == pytest.approx(straight.mean)


def test_batches_of_one_class_are_counted_not_used() -> None:
    batches = make(2)
    alone = (np.arange(4.0), np.zeros(4))
    with_alone = pooled_leak([*batches, alone], rng=rng())
    without = pooled_leak(batches, rng=rng())
    assert with_alone.skipped == 1
    assert (with_alone.leak_auc, with_alone.examples) == (without.leak_auc, without.examples)
    with pytest.raises(InputError, match="both classes, got none and 1"):
        pooled_leak([alone], rng=rng())


def test_one_example_of_a_class_gives_the_whole_interval() -> None:
    assert bootstrap_auc([1.0, 2.0, 3.0], [0, 0, 1], rng=rng()) == (0.0, 1.0)
    pooled = pooled_leak([([1.0, 2.0, 3.0], [0, 0, 1])] * 2, rng=rng())
    assert (pooled.low, pooled.high) == (0.5, 1.0)


@pytest.mark.parametrize("count", [5, 10, 25])
def test_the_meter_gives_what_the_function_gives(count: int) -> None:
    meter = LeakMeter()
    for batch in make(count):
        meter.add(*batch)
    assert meter.compute(rng=rng()) == pooled_leak(make(count), rng=rng())
    assert meter.compute(rng=rng()) == meter.compute(rng=rng())


def test_the_meter_forgets_scores_once_it_has_ten_batches() -> None:
    meter = LeakMeter()
    for number, batch in enumerate(make(30), start=1):
        meter.add(*batch)
        assert len(meter._by_class) == (number if number < 10 else 0)
        assert len(meter._numbers) == 4 * number


def test_records_are_frozen() -> None:
    pooled = pooled_leak(make(1), rng=rng())
    with pytest.raises(FrozenInstanceError):
        pooled.low = 0.9  # type: ignore[misc]


def test_resampling_counts_ties_and_repeats() -> None:
    """Each resample, redone the slow way from the same draws."""
    scores, labels = np.array([0.0, 1.0, 1.0, 2.0, 1.0]), np.array([0, 0, 0, 1, 1])
    by_class = class_scores(scores, labels)
    source = rng()
    picks1, picks0 = source.integers(2, size=(50, 2)), source.integers(3, size=(50, 3))
    expected = []
    for one, zero in zip(picks1, picks0, strict=True):
        drawn = np.concatenate([by_class.positives[one], by_class.negatives[zero]])
        expected.append(auc(drawn, [1, 1, 0, 0, 0]) * 6)
    assert bootstrap_u(by_class, rng=rng(), resamples=50).tolist() == expected


def test_memory_stays_bounded_and_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.measure.intervals._CHUNK", 100)
    interval = bootstrap_auc(*make(1)[0], rng=rng(), resamples=37)
    assert 0.5 < interval.low < auc(*make(1)[0]) < interval.high
    many = pooled_leak(make(120, size=8, rare=4), rng=rng(), resamples=11)
    assert many.low <= many.leak_auc <= many.high


def test_null_band_from_labels_or_counts() -> None:
    labels = np.arange(128) < 6
    assert null_band(labels) == null_band(positives=6, negatives=122)
    assert null_band(labels, level=0.5).high < null_band(labels, level=0.99).high
    assert null_band([0, 1]) == (0.5, 1.0)


@pytest.mark.parametrize(
    "bad", [{}, {"positives": 3}, {"labels": [0, 1], "positives": 1, "negatives": 1}]
)
def test_null_band_takes_labels_or_counts_but_not_both(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="labels alone"):
        null_band(**bad)


def test_null_band_needs_both_classes() -> None:
    with pytest.raises(InputError, match="0 positives and 2 negatives"):
        null_band([0, 0])
    with pytest.raises(InputError, match="0 negatives"):
        null_band(positives=3, negatives=0)


@pytest.mark.parametrize(
    ("option", "value"), [("level", 0.0), ("level", 1.0), ("resamples", 0), ("rng", 3)]
)
def test_options_out_of_range_are_refused(option: str, value: Any) -> None:
    options: dict[str, Any] = {"rng": rng(), option: value}
    with pytest.raises(ParameterError, match=option):
        bootstrap_auc([0.0, 1.0, 0.5, 2.0], [0, 1, 0, 1], **options)
    with pytest.raises(ParameterError, match=option):
        pooled_leak(make(1), **options)
