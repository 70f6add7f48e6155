"""AUC, leak AUC and thresholds against scikit-learn, slow obvious versions and symmetries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from tacit.measure import (
    auc,
    best_threshold_accuracy,
    detection_error,
    leak_auc,
    quantile_over_steps,
    top_fraction,
)

Batch = tuple[NDArray[Any], NDArray[Any]]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Scores on a coarse grid, so that ties are common, with both classes present."""
    labels = draw(
        st.lists(st.integers(0, 1), min_size=2, max_size=40).filter(lambda y: 0 < sum(y) < len(y))
    )
    scores = draw(st.lists(st.integers(-6, 6), min_size=len(labels), max_size=len(labels)))
    return np.array(scores) / 4, np.array(labels)


def auc_by_pairs(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    pairs = [(p, n) for p in scores[labels == 1] for n in scores[labels == 0]]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


def errors_by_sets(scores: NDArray[Any], labels: NDArray[Any]) -> list[tuple[float, float, bool]]:
    """FNR and FPR of every half-line, with whether it is an upper one."""
    found = []
    for cut in [*scores, np.inf]:
        for upper in (True, False):
            called = (scores >= cut) == upper
            found.append((1 - called[labels == 1].mean(), called[labels == 0].mean(), upper))
    return found


@given(batches())
def test_auc_counts_pairs_and_halves_ties(batch: Batch) -> None:
    assert auc(*batch) == pytest.approx(auc_by_pairs(*batch), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("positives", [1, 6, 500, 1023])
@pytest.mark.parametrize("decimals", [1, 8])
def test_auc_agrees_with_scikit_learn(dtype: type, positives: int, decimals: int) -> None:
    rng = np.random.default_rng(positives)
    labels = rng.permutation(1024) < positives
    scores: NDArray[Any] = np.round(rng.normal(size=1024) + labels, decimals).astype(dtype)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_float32_scores_are_not_rounded_up_to_ties_or_apart() -> None:
    near = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], dtype=np.float32)
    assert auc(near, [0, 1]) == 1.0
    assert auc(near.astype(np.float64), [0, 1]) == 1.0
    assert auc(near.astype(np.float16), [0, 1]) == 0.5


def test_infinitesimal_and_huge_scores() -> None:
    labels = [0, 1, 0, 1]
    for unit in (5e-324, 1e-24, 1.0, 4e307):
        assert auc(np.array([1.0, 2.0, 3.0, 4.0]) * unit, labels) == 0.75


@given(batches())
def test_auc_depends_on_ranks_only(batch: Batch) -> None:
    scores, labels = batch
    assert auc(np.exp(scores) * 7 - 3, labels) == auc(scores, labels)
    assert auc(scores.astype(np.float32), labels) == auc(scores, labels)


@given(batches())
def test_reversing_scores_or_labels_reverses_the_auc(batch: Batch) -> None:
    scores, labels = batch
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels), abs=1e-12)
    assert auc(scores, 1 - labels) == pytest.approx(1 - auc(scores, labels), abs=1e-12)


@given(batches())
def test_leak_auc_has_no_direction(batch: Batch) -> None:
    scores, labels = batch
    value = leak_auc(scores, labels)
    assert 0.5 <= value <= 1
    assert value == max(auc(scores, labels), 1 - auc(scores, labels))
    assert leak_auc(-scores, labels) == pytest.approx(value, abs=1e-12)


def test_the_inputs_are_left_as_they_were() -> None:
    scores, labels = np.array([3.0, 1.0, 2.0]), np.array([True, False, True])
    auc(scores, labels)
    assert scores.tolist() == [3.0, 1.0, 2.0]
    assert labels.tolist() == [True, False, True]


@given(batches(), st.floats(0, 1))
def test_detection_error_is_the_best_half_line(batch: Batch, p: float) -> None:
    best = min(p * fnr + (1 - p) * fpr for fnr, fpr, _ in errors_by_sets(*batch))
    assert detection_error(*batch, p=p) == pytest.approx(best, abs=1e-12)


@given(batches(), st.floats(0, 1))
def test_detection_error_never_exceeds_the_constant_guess(batch: Batch, p: float) -> None:
    scores, labels = batch
    error = detection_error(scores, labels, p)
    assert -1e-12 <= error <= min(p, 1 - p) + 1e-12
    assert detection_error(-scores, labels, p) == pytest.approx(error, abs=1e-12)


@given(batches())
def test_best_threshold_accuracy_is_one_sided(batch: Batch) -> None:
    labels = batch[1]
    n1, n0 = (labels == 1).sum(), (labels == 0).sum()
    best = min(fnr * n1 + fpr * n0 for fnr, fpr, upper in errors_by_sets(*batch) if upper)
    assert best_threshold_accuracy(*batch) == pytest.approx(1 - best / (n1 + n0), abs=1e-12)


def test_only_the_one_sided_measure_misses_a_reversed_score() -> None:
    scores, labels = [3.0, 2.0, 1.0, 0.0], [0, 0, 1, 1]
    assert best_threshold_accuracy(scores, labels) == 0.5
    assert detection_error(scores, labels) == 0.0


@given(batches(), st.floats(0, 1))
def test_top_fraction_takes_the_highest(batch: Batch, p: float) -> None:
    scores, _ = batch
    labels = top_fraction(scores, p)
    assert labels.dtype == np.int64
    assert labels.sum() == round(p * len(scores))
    if 0 < labels.sum() < len(labels):
        assert scores[labels == 1].min() >= scores[labels == 0].max()


def test_top_fraction_of_equal_scores_takes_the_first() -> None:
    assert top_fraction([1.0, 1.0, 1.0, 1.0], 0.5).tolist() == [1, 1, 0, 0]


def test_quantile_over_steps_interpolates() -> None:
    values = np.random.default_rng(0).random(101)
    assert quantile_over_steps(values) == pytest.approx(np.sort(values)[95], abs=1e-12)
    assert quantile_over_steps([0.25], q=0.3) == 0.25
    assert quantile_over_steps(values, q=1) == values.max()
