"""Log loss, calibration, accuracy and clustering accuracy against slow or published versions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.errors import InputError, ParameterError
from tacit.measure import accuracy, ace, clustering_accuracy, log_loss, nce


def table(rng: np.random.Generator, n: int, classes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    logits = rng.normal(size=(n, classes))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probs, rng.integers(classes, size=n)


def ace_by_loop(probs: NDArray[Any], labels: NDArray[Any], bins: int) -> float:
    """Distinct probabilities, and as many rows as fill the ranges evenly."""
    gaps = []
    for c in range(probs.shape[1]):
        order = sorted(range(len(labels)), key=lambda i: probs[i, c])
        size = len(labels) // bins
        for r in range(bins):
            rows = order[r * size : (r + 1) * size]
            share = sum(labels[i] == c for i in rows) / size
            gaps.append(abs(share - sum(probs[i, c] for i in rows) / size))
    return float(np.mean(gaps))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_agrees_with_scikit_learn(classes: int, dtype: Any) -> None:
    exact, labels = table(np.random.default_rng(classes), 500, classes)
    probs: NDArray[Any] = exact.astype(dtype)
    expected = sklearn.metrics.log_loss(labels, probs, labels=range(classes))
    assert log_loss(probs, labels) == pytest.approx(expected, rel=1e-6)
    if classes == 2:
        assert log_loss(probs[:, 1], labels) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("dtype", "eps"), [(np.float64, 2.0**-52), (np.float32, 2.0**-23)])
def test_a_confident_mistake_costs_a_finite_amount(dtype: Any, eps: float) -> None:
    probs: NDArray[Any] = np.array([1.0, 0.0], dtype=dtype)
    assert log_loss(probs, [0, 1]) == pytest.approx(-math.log(eps))
    assert log_loss(probs, [0, 1]) == pytest.approx(sklearn.metrics.log_loss([0, 1], probs))
    assert 0 <= log_loss(probs, [1, 0]) < 2 * eps


@given(st.lists(st.integers(0, 1), min_size=2, max_size=30).filter(lambda y: 0 < sum(y) < len(y)))
def test_the_base_rate_scores_one(labels: list[int]) -> None:
    rate = sum(labels) / len(labels)
    assert nce([rate] * len(labels), labels) == pytest.approx(1.0)
    assert nce([float(y) for y in labels], labels) == pytest.approx(0.0, abs=1e-12)


def test_nce_of_many_classes() -> None:
    labels = np.array([0, 0, 1, 2])
    entropy = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    probs, _ = table(np.random.default_rng(0), 4, 3)
    assert nce(probs, labels) == pytest.approx(log_loss(probs, labels) / entropy)
    assert nce(np.tile([0.5, 0.25, 0.25], (4, 1)), labels) == pytest.approx(1.0)


@pytest.mark.parametrize("bins", [1, 5, 15])
@pytest.mark.parametrize("classes", [2, 4])
def test_ace_agrees_with_the_loop(bins: int, classes: int) -> None:
    probs, labels = table(np.random.default_rng(bins), 300, classes)
    assert ace(probs, labels, bins=bins) == pytest.approx(ace_by_loop(probs, labels, bins))


def test_ace_of_binary_probabilities_is_that_of_two_columns() -> None:
    probs, labels = table(np.random.default_rng(1), 301, 2)
    assert ace(probs[:, 1], labels) == pytest.approx(ace(probs, labels))
    assert ace(probs[:, 1], labels) == pytest.approx(ace(probs[:, 1], labels, 15))


@given(st.permutations(range(12)), st.integers(1, 20))
def test_ace_ignores_the_order_of_rows(order: list[int], bins: int) -> None:
    probs = np.array([0.2] * 5 + [0.7] * 4 + [0.9] * 3)
    labels = np.array([0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0])
    value = ace(probs[order], labels[order], bins=bins)
    assert value == pytest.approx(ace(probs, labels, bins=bins))
    assert 0 <= value <= 1


def test_ace_of_known_calibration() -> None:
    assert ace([0.25] * 4 + [0.75] * 4, [1, 0, 0, 0, 1, 1, 1, 0], bins=2) == 0.0
    assert ace([1.0, 1.0], [0, 0]) == 1.0
    assert ace([0.3], [1]) == pytest.approx(0.7)


def test_accuracy_takes_the_most_probable_class() -> None:
    probs, labels = table(np.random.default_rng(2), 200, 5)
    assert accuracy(probs, labels) == np.mean(
        [np.argmax(p) == y for p, y in zip(probs, labels, strict=True)]
    )
    assert accuracy([0.5, 0.5, 0.51], [0, 1, 1]) == pytest.approx(2 / 3)
    assert accuracy([[0.49, 0.51]], [True]) == 1.0


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 25), st.integers(0, 2**32 - 1))
def test_clustering_accuracy_is_the_best_of_all_namings(k: int, c: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters, labels = rng.integers(k, size=n), rng.integers(c, size=n)
    names = [*range(c), *[-1] * k]
    best = max(
        np.mean(np.array(naming)[clusters] == labels) for naming in itertools.permutations(names, k)
    )
    assert clustering_accuracy(clusters, labels) == pytest.approx(best)
    assert clustering_accuracy(clusters * 1000 - 7, labels) == pytest.approx(best)
    assert clustering_accuracy(labels, clusters) == pytest.approx(best)


@pytest.mark.parametrize(
    ("probs", "labels", "rule"),
    [
        ([0.5, 1.5], [0, 1], "apply sigmoid or softmax"),
        ([-0.5, 0.5], [0, 1], r"got -0\.5"),
        ([[0.5, 0.6], [0.5, 0.5]], [0, 1], "sum to 1"),
        ([0.5, 0.5], [0, 2], "from 0 to 1"),
        ([0.5, 0.5], [0, -1], "got -1"),
        ([0.5, 0.5], [0, 0.5], "whole numbers"),
        ([0.5, 0.5], [0, 1, 1], "2 and 3"),
        ([[0.5], [0.5]], [0, 1], "K > 1"),
        ([], [], "must be"),
        ([0.5, math.nan], [0, 1], "finite"),
    ],
)
def test_bad_probabilities_are_refused(probs: Any, labels: Any, rule: str) -> None:
    for measure in (log_loss, nce, accuracy, ace):
        with pytest.raises(InputError, match=rule):
            measure(probs, labels)


def test_one_class_has_no_base_rate() -> None:
    with pytest.raises(InputError, match="at least two classes, got only 1"):
        nce([0.5, 0.5], [1, 1])


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bins_must_be_a_count(bins: Any) -> None:
    with pytest.raises(ParameterError, match="bins must be a whole number"):
        ace([0.5, 0.5], [0, 1], bins=bins)


def test_bad_clusters_are_refused() -> None:
    with pytest.raises(InputError, match="clusters must be whole numbers"):
        clustering_accuracy([0.5, 1.0], [0, 1])
    with pytest.raises(InputError, match="3 and 2"):
        clustering_accuracy([0, 1, 2], [0, 1])
    assert clustering_accuracy([0.0, 1.0], [True, False]) == 1.0
