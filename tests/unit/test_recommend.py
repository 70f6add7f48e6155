"""From a target to a protection, and the divergence that is charged for one."""

import math

import pytest
import torch

from tacit import Cut, Guard, protect, testing
from tacit.accounting import Ledger, recommend
from tacit.errors import BudgetError, ParameterError
from tacit.measure import gaussian_auc, randomized_label_auc, sum_kl
from tacit.protect.base import Batch
from tacit.protect.marvell.measured_kl import measured_sum_kl


@pytest.mark.parametrize("target", [0.51, 0.6, 0.65, 0.9])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_recommendation_meets_its_target_without_waste(target, classes):
    for one in recommend(target=target, epochs=20, examples=10_000, classes=classes):
        assert target - 0.02 < one.leak <= target + 1e-12
        assert one.bound >= one.leak
        (protect.get_labels if one.labels else protect.get)(one.labels or one.protect)
        assert str(one).count(";") >= 1


def test_epochs_cost_noise_but_not_randomised_labels():
    few, many = (recommend(target=0.65, epochs=n, examples=10_000) for n in (5, 50))
    assert few[1].labels is not None
    assert few[1] == many[1]
    each = [float(one[0].protect.split("=")[1].split(",")[0]) for one in (few, many)]
    assert each[0] / each[1] == pytest.approx(10, rel=0.01)
    assert recommend(target=0.65, epochs=5, examples=10_000, proven=True) == few[::-1]


def test_impossible_targets_are_refused():
    for target in (0.5, 1.0, math.nan):
        with pytest.raises(ParameterError, match="target must lie between"):
            recommend(target=target, epochs=5, examples=10)


def test_few_effective_labels_are_reported():
    assert "little to learn from" in recommend(target=0.6, epochs=5, examples=500)[1].reason
    flips = randomized_label_auc(0.36)
    assert flips == pytest.approx(0.64)


# --- what a ledger charges ------------------------------------------------------------------------


def planned(spec, cut):
    batch = Batch.of(cut)
    return batch, protect.get(spec).stages[0].plan(batch, None)


def test_measured_divergence_is_that_of_the_noisy_sample_covariances():
    cut = testing.low_rank_cut(600, 5, dtype=torch.float64)
    batch, plan = planned("gaussian(sigma=0.3)", cut)
    rows = [cut.grads[cut.labels == c] for c in (0, 1)]
    covariances = [torch.cov(r.T, correction=0) + 0.09 * torch.eye(5).double() for r in rows]
    expected = sum_kl(rows[1].mean(0), covariances[1], rows[0].mean(0), covariances[0])
    assert measured_sum_kl(batch, plan) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", [(512, 16), (64, 400)])
def test_full_covariance_measures_what_it_claims_and_published_marvell_does_not(shape):
    cut = testing.low_rank_cut(*shape)
    batch, plan = planned("marvell(s=4, covariance=full)", cut)
    measured = measured_sum_kl(batch, plan)
    assert measured * (1 - 1e-6) <= plan.sum_kl <= 1.01 * measured  # with room for rounding
    batch, plan = planned("marvell(s=4)", cut)
    assert measured_sum_kl(batch, plan) > 100 * plan.sum_kl
    assert measured_sum_kl(*planned("max_norm", cut)) is None
    single = Cut(grads=cut.grads, labels=torch.zeros_like(cut.labels))
    assert measured_sum_kl(*planned("marvell(s=4)", single)) == 0.0  # noise without signal


def test_a_budget_charges_the_larger_of_both():
    cut = testing.low_rank_cut(512, 16)
    cut = Cut(grads=cut.grads, labels=cut.labels, ids=torch.arange(512))
    with pytest.raises(BudgetError, match=r"marvell\(s=4\)"):
        Guard("marvell(s=4)", ledger=Ledger(run="x", budget="auc=0.9")).release(cut)
    ledger = Ledger(run="x", budget="auc=0.9")
    release = Guard("marvell(s=4, covariance=full)", ledger=ledger).release(cut)
    charged = max(release.certificate.sum_kl, release.certificate.measured_sum_kl)
    assert ledger.summary().sum_kl == pytest.approx(charged)
    assert ledger.summary().gaussian_auc == pytest.approx(gaussian_auc(charged))
