"""What attackers find after noise for classes of any covariance, and what they find without."""

import pytest
import torch

from tacit import Guard, View, attack, measure
from tacit.evaluate.crossfit import cross_fit
from tacit.testing import low_rank_cut

PUBLISHED, FULL = "marvell(s=4)", "marvell(s=4, covariance=full)"
# An AUC of pure noise with m positives of n has standard deviation sqrt((n + 1) / (12 m (n - m))).
SURE = 5.0


def _null(labels):
    n, m = len(labels), int(labels.sum())
    return ((n + 1) / (12 * m * (n - m))) ** 0.5


@pytest.mark.parametrize("shape", [(1024, 128), (2048, 32)])
def test_energy_finds_the_published_noise_and_not_this(shape):
    leaks = {PUBLISHED: [], FULL: []}
    for seed in range(8):
        cut = low_rank_cut(*shape, seed=seed)
        for spec, found in leaks.items():
            out = Guard(spec, seed=seed).release(cut).grads
            scores = attack.get("energy")(View(grads=out), torch.Generator())
            found.append(measure.auc(scores.numpy(), cut.labels.numpy()))
    # One sign for all batches: the class that the published noise falls on.
    assert max(leaks[PUBLISHED]) < 0.05 or min(leaks[PUBLISHED]) > 0.95
    mean = sum(leaks[FULL]) / len(leaks[FULL])
    assert abs(mean - 0.5) < 0.02 + SURE * _null(cut.labels) / len(leaks[FULL]) ** 0.5


def test_energy_with_fewer_rows_than_dimensions():
    for seed in range(4):
        cut = low_rank_cut(128, 1600, seed=seed)
        leak = {}
        for spec in (PUBLISHED, FULL):
            view = View(grads=Guard(spec, seed=seed).release(cut).grads)
            scores = attack.get("energy")(view, torch.Generator())
            leak[spec] = measure.leak_auc(scores.numpy(), cut.labels.numpy())
        assert leak[PUBLISHED] > 0.9
        assert leak[FULL] < 0.5 + SURE * _null(cut.labels)


def test_a_learner_with_labels_finds_little_more_than_the_claim_says():
    """The best of all quadratic scores, fitted with labels: the claim's reference value, and what
    is left of shapes that are not Gaussian."""
    cut = low_rank_cut(6144, 32)
    learner = attack.get("supervised(model=quadratic, by=gradient)")
    found = {}
    for spec in (PUBLISHED, FULL):
        release = Guard(spec, seed=1).release(cut)
        rng = torch.Generator().manual_seed(0)
        scores = cross_fit(learner, View(grads=release.grads), cut.labels, rng=rng)
        found[spec] = measure.auc(scores.numpy(), cut.labels.numpy())
    reference = release.certificate.gaussian_auc
    assert found[PUBLISHED] > 0.95
    assert reference < 0.67
    assert found[FULL] < reference + 0.02 + SURE * _null(cut.labels)


def test_the_claim_shrinks_with_more_power():
    cut = low_rank_cut(512, 16)
    claims = [
        Guard(f"marvell(s={s}, covariance=full)", seed=1).release(cut).certificate.sum_kl
        for s in (0.05, 0.5, 1, 4, 16, 64)
    ]
    assert claims == sorted(claims, reverse=True)
