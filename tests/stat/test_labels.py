"""Label mechanisms against their stated probabilities; tolerances from the number of draws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tacit import Guard
from tacit.measure import auc, bayes_combined_auc, gaussian_combined_auc, randomized_label_auc
from tacit.measure.label_auc import flip_for_epsilon

RARE = 1e-9  # probability with which a correct mechanism may fail a check
COUNT = 200_000


def randomized(spec, y, *, classes=2, seed=0, ids=None):
    ids = np.arange(len(y)) if ids is None else ids
    made = Guard("none", labels=spec, classes=classes, seed=seed)
    return made.labels(ids, torch.as_tensor(y)), made


def auc_slack(n1, n0):
    """Return a deviation that a sample AUC exceeds with probability RARE, whatever the scores."""
    return stats.norm.isf(RARE / 2) * 0.5 / math.sqrt(min(n1, n0))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, math.log(64 / 36), 3.0])
def test_flips_have_their_probabilities(classes, epsilon):
    y = np.arange(COUNT) % classes
    noisy, _ = randomized(f"rr(epsilon={epsilon})", y, classes=classes)
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    other = (1 - keep) / (classes - 1)
    for label in range(classes):
        seen = np.bincount(noisy.numpy()[y == label], minlength=classes)
        wanted = np.full(classes, other)
        wanted[label] = keep
        assert stats.chisquare(seen, wanted * seen.sum()).pvalue > RARE


@pytest.mark.parametrize("text", [False, True])
def test_labels_of_different_ids_are_independent(text):
    """Neighbours, ids that differ in one bit, and two secrets, each by its table of pairs."""
    count = 1 << 16
    ids = [f"user {i}" for i in range(count)] if text else np.arange(count)
    y = np.zeros(count, dtype=np.int64)
    a = randomized("rr(epsilon=0.58)", y, ids=ids)[0].numpy()
    b = randomized("rr(epsilon=0.58)", y, ids=ids, seed=1)[0].numpy()
    place = np.arange(count)
    pairs = [(a[:-1:2], a[1::2]), (a, b)]
    for bit in range(0, 16, 5):  # each pair of ids that differ in this bit, once
        first = place[(place >> bit) & 1 == 0]
        pairs.append((a[first], a[first ^ (1 << bit)]))
    for one, other in pairs:
        table = np.bincount(2 * one + other, minlength=4).reshape(2, 2)
        assert stats.chi2_contingency(table, correction=False).pvalue > RARE
    blocks = a.reshape(-1, 16).sum(axis=1)
    flip = flip_for_epsilon(0.58)
    spread = blocks.var() / (16 * flip * (1 - flip))
    assert abs(spread - 1) < stats.norm.isf(RARE / 2) * math.sqrt(2 / len(blocks)) * 1.1


def test_the_debiased_mean_is_the_share_of_positives():
    rng = np.random.default_rng(0)
    y = (rng.random(COUNT) < 0.2).astype(np.int64)
    noisy, _ = randomized("rr(epsilon=0.58)", y)
    flip = flip_for_epsilon(0.58)
    sd = math.sqrt(flip * (1 - flip) / COUNT) / (1 - 2 * flip)
    assert abs(float(noisy.targets.double().mean()) - y.mean()) < stats.norm.isf(RARE / 2) * sd


@pytest.mark.parametrize("classes", [2, 4])
def test_gaussian_labels_have_normal_noise_on_a_common_grid(classes):
    y = np.arange(COUNT) % classes
    noisy, _ = randomized("gaussian_labels(sigma=2)", y, classes=classes)
    clean = y if classes == 2 else np.eye(classes)[y]
    noise = (noisy.double().numpy() - clean) / 2
    for column in noise.reshape(len(y), -1).T:
        assert stats.kstest(column, "norm").pvalue > RARE
    if classes > 2:
        assert np.abs(np.corrcoef(noise.T) - np.eye(classes)).max() < 7 / math.sqrt(COUNT)
    scaled = noisy.double().numpy() * 2.0**15
    assert (scaled == np.rint(scaled)).all()  # no low bits that only one of the labels can have


def test_the_prior_keeps_its_promise_in_every_stage():
    """No answer is more than e^epsilon times as frequent under one label as under another."""
    rng = np.random.default_rng(0)
    y = rng.choice(5, COUNT, p=[0.4, 0.3, 0.2, 0.05, 0.05])
    noisy, made = randomized("rr_prior(epsilon=1, stages=2)", y, classes=5)
    assert made.label_guard._plan[0] == (0, 1, 2, 3, 4)
    answers = noisy.numpy()
    shares = np.array(
        [np.bincount(answers[y == c], minlength=5) / (y == c).sum() for c in range(5)]
    )
    slack = 8 * np.sqrt(shares.max() / np.bincount(y).min())
    assert (shares <= math.e * (shares[:, None] + slack)).all()


@pytest.mark.parametrize(
    ("baseline", "flip"), [(0.5, 0.36), (0.78, 0.36), (0.9, 0.1), (0.65, 0.45)]
)
def test_the_combination_is_what_a_simulation_finds(baseline, flip):
    rng = np.random.default_rng(0)
    y = (rng.random(COUNT) < 0.3).astype(np.int64)
    d = math.sqrt(2) * stats.norm.ppf(baseline)
    evidence = d * d * (y - 0.5) + d * rng.standard_normal(COUNT)
    noisy, _ = randomized(f"rr(epsilon={math.log((1 - flip) / flip)})", y)
    best = evidence + math.log((1 - flip) / flip) * (2 * noisy.numpy() - 1)
    found = bayes_combined_auc(baseline, flip=flip)
    slack = auc_slack(y.sum(), (1 - y).sum())
    assert abs(auc(best, y) - found) < slack
    for weight in (0.0, 0.5, 2.0):  # no other weighting of the two does better
        assert auc(evidence + weight * best, y) < found + slack
    probs = 1 / (1 + np.exp(-(evidence + math.log(3 / 7))))
    measured = bayes_combined_auc(flip=flip, scores=probs, labels=y)
    assert abs(measured - found) < slack
    assert abs(auc(noisy.numpy(), y) - randomized_label_auc(flip)) < slack


@pytest.mark.parametrize("classes", [3, 8])
def test_the_combination_of_many_classes(classes):
    """One class against another, as for the certificate."""
    rng = np.random.default_rng(0)
    flip, baseline = 0.5, 0.7
    y = np.arange(COUNT) % 2
    noisy, _ = randomized(
        f"rr(epsilon={math.log((classes - 1) * (1 - flip) / flip)})", y, classes=classes
    )
    a = math.log((1 - flip) / (flip / (classes - 1)))
    odds = a * ((noisy.numpy() == 1).astype(float) - (noisy.numpy() == 0))
    d = math.sqrt(2) * stats.norm.ppf(baseline)
    evidence = d * d * (y - 0.5) + d * rng.standard_normal(COUNT)
    slack = auc_slack(COUNT // 2, COUNT // 2)
    assert abs(auc(odds, y) - randomized_label_auc(flip, classes=classes)) < slack
    combined = bayes_combined_auc(baseline, flip=flip, classes=classes)
    assert abs(auc(odds + evidence, y) - combined) < slack


def test_the_combination_of_gaussian_labels():
    rng = np.random.default_rng(0)
    y = np.arange(COUNT) % 2
    noisy, made = randomized("gaussian_labels(sigma=2)", y)
    d = math.sqrt(2) * stats.norm.ppf(0.7)
    evidence = d * d * (y - 0.5) + d * rng.standard_normal(COUNT)
    best = evidence + (noisy.double().numpy() - 0.5) / 4
    slack = auc_slack(COUNT // 2, COUNT // 2)
    assert abs(auc(noisy.numpy(), y) - made.label_certificate().auc) < slack
    assert abs(auc(best, y) - gaussian_combined_auc(0.5, baseline_auc=0.7)) < slack


def test_gradients_of_many_epochs_reveal_no_more_than_one_label():
    """The memory of 20 epochs of clean gradients on randomised labels, one per example."""
    rng = np.random.default_rng(0)
    y = np.arange(20_000) % 2
    noisy, _ = randomized(f"rr(epsilon={math.log(64 / 36)})", y)
    targets = noisy.targets.numpy()
    direction = rng.standard_normal(8)
    memory = np.zeros((len(y), 8))
    for _ in range(20):
        probs = rng.uniform(0.3, 0.7, len(y))
        memory += (probs - targets)[:, None] * direction
    assert abs(auc(-(memory @ direction), y) - 0.64) < auc_slack(10_000, 10_000)
