"""Judging with all labels at hand: folds that do not leak, and what features alone predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from supervised_examples import BEYOND, MLP, QUADRATIC, deviation, judged, seeded, shifted
from tacit.attack import Attack, Norm, PreparedView, Supervised, get
from tacit.attack._classifiers import stratified_folds
from tacit.errors import InputError, KnowledgeError, ParameterError, SpecError
from tacit.evaluate import cross_fit, cross_fit_probabilities, prediction_baseline
from tacit.measure import auc
from tacit.types import View

# --- folds --------------------------------------------------------------------------------------


def test_cross_fitted_noise_spreads_no_more_than_documented() -> None:
    """Over many data sets: mean zero, and between one and sqrt(2) null standard deviations."""
    labels = (torch.arange(300) % 3 == 0).long()
    sd = math.sqrt(301 / (12 * 100 * 200))
    found = []
    for seed in range(40):
        grads = torch.randn(300, 6, generator=seeded(seed))
        found.append((judged(QUADRATIC, grads, labels) - 0.5) / sd)
    # The mean of 40 has a standard deviation of at most sqrt(2 / 40); chi-square for the spread.
    assert abs(np.mean(found)) < BEYOND * math.sqrt(2 / 40)
    assert np.std(found) < math.sqrt(2) * (1 + BEYOND / math.sqrt(2 * 40))


def test_rows_of_one_id_do_not_leak_over_folds() -> None:
    """Each example comes four times, hardly changed, its class drawn by chance."""
    rng = seeded(2)
    own = torch.randn(200, 40, generator=rng)
    ids = torch.arange(200).repeat(4)
    labels = (torch.rand(200, generator=rng) < 0.4).long()[ids]
    grads = own[ids] + 0.01 * torch.randn(800, 40, generator=rng)
    # 200 examples count, not 800 rows.
    assert abs(judged(QUADRATIC, grads, labels, ids=ids) - 0.5) <= deviation(labels[:200])
    assert judged(QUADRATIC, grads, labels) > 0.8  # without ids, each row meets its own likeness


def test_folds_spread_classes_and_keep_groups_together() -> None:
    groups = np.repeat(np.arange(50), 3)
    classes = np.repeat((np.arange(50) % 5 == 0).astype(np.int64), 3)
    fold = stratified_folds(classes, groups, folds=3, rng=np.random.default_rng(0))
    assert all(len(set(fold[groups == g])) == 1 for g in range(50))
    counts = np.stack([np.bincount(fold[classes == c]) / 3 for c in (0, 1)])
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
    assert (fold != stratified_folds(classes, groups, folds=3, rng=np.random.default_rng(1))).any()


# --- the prediction baseline --------------------------------------------------------------------


def test_baseline_of_gaussian_features_is_the_closed_form() -> None:
    features, labels = shifted(3000, 10, 1.5)
    found = auc(prediction_baseline(features, labels, rng=seeded()), labels)
    best = NormalDist().cdf(1.5 / math.sqrt(2))
    assert best - 0.01 - deviation(labels) <= found <= best + deviation(labels, folds=False)
    assert found > best - 0.03


def test_baseline_finds_steps_that_no_regression_does() -> None:
    rng = seeded(8)
    features = torch.rand(3000, 6, generator=rng)
    labels = ((features[:, 0] * 6).floor() % 2).long()
    assert auc(prediction_baseline(features, labels, rng=rng), labels) > 0.95


def test_baseline_of_noise_is_chance() -> None:
    features, labels = shifted(1500, 8, 0.0)
    found = auc(prediction_baseline(features, labels, rng=seeded()), labels)
    assert abs(found - 0.5) <= deviation(labels)


def test_baseline_takes_any_scale_constants_and_many_classes() -> None:
    rng = seeded(9)
    labels = torch.arange(600) % 3
    features = torch.randn(600, 4, generator=rng, dtype=torch.float64)
    features[:, 0] = (labels + 0.1 * features[:, 0]) * 1e200
    features[:, 1] *= 1e-200
    features[:, 2] = 5.0
    probs = prediction_baseline(features, labels, rng=rng)
    assert probs.shape == (600, 3)
    assert (probs.argmax(dim=1) == labels).double().mean() > 0.99
    flat = prediction_baseline(torch.ones(60, 2), labels[:60] % 2, rng=rng)
    assert float(flat.max() - flat.min()) < 0.3


def test_baseline_and_cross_fit_are_reproducible_and_use_no_global_rng() -> None:
    features, labels = shifted(300, 4, 1.0)
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()
    for judge in (
        lambda rng: prediction_baseline(features, labels, rng=rng),
        lambda rng: cross_fit(MLP, View(grads=features), labels, rng=rng),
    ):
        assert torch.equal(judge(seeded(4)), judge(seeded(4)))
    assert torch.equal(state, torch.get_rng_state())
    assert (legacy == np.random.get_state()[1]).all()


# --- what is refused ----------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstColumn(Attack):
    """Another attack that asks for labels: it is called as it is."""

    needs: ClassVar[frozenset[str]] = frozenset({"labelled"})

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        return prepared.rows[:, 0]


def test_cross_fit_takes_any_attack_that_needs_labels_and_no_other() -> None:
    grads, labels = shifted(30, 2, 1.0)
    view = View(grads=grads)
    scores = cross_fit(FirstColumn(), view, labels, rng=seeded())
    assert torch.equal(scores.argsort(), grads[:, 0].argsort())
    with pytest.raises(InputError, match="norm does not learn"):
        cross_fit(Norm(), view, labels, rng=seeded())
    with pytest.raises(InputError, match="no probabilities"):
        cross_fit_probabilities(FirstColumn(), view, labels, rng=seeded())


@pytest.mark.parametrize("judge", [cross_fit, prediction_baseline])
@pytest.mark.parametrize(
    ("labels", "folds", "kind", "words"),
    [
        (torch.zeros(12), 3, KnowledgeError, "only class 0"),
        (torch.arange(12) // 10, 3, KnowledgeError, "class 1 has 2 rows"),
        (torch.arange(12) / 2, 3, InputError, "class indices"),
        (torch.arange(11) % 2, 3, InputError, r"labels must be \[12\]"),
        (torch.arange(12) % 2, 1, ParameterError, "folds must be at least 2, got 1"),
    ],
)
def test_labels_that_cannot_be_judged(
    judge: Callable[..., Tensor], labels: Tensor, folds: int, kind: type[Exception], words: str
) -> None:
    subject = (Supervised(), View(grads=torch.eye(12))) if judge is cross_fit else (torch.eye(12),)
    with pytest.raises(kind, match=words):
        judge(*subject, labels, rng=seeded(), folds=folds)


def test_other_wrong_input() -> None:
    labels = torch.arange(12) % 2
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError, match="features must be finite"):
            prediction_baseline(torch.full((12, 2), bad), labels, rng=seeded())
    with pytest.raises(InputError, match=r"torch\.Generator, got int"):
        prediction_baseline(torch.eye(12), labels, rng=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"torch\.Generator, got int"):
        cross_fit(Supervised(), View(grads=torch.eye(12)), labels, rng=3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"best \| quadratic \| mlp"):
        get("supervised(model=tree)")
