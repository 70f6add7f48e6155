"""Where a budget ends a training is settled before the first step, whatever the labels."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tacit import Cut, Guard, data, protect
from tacit.accounting import Budget, Ledger, forecast, recommend
from tacit.errors import BudgetError, InputError, ParameterError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.measure import auc_bound, leak_auc
from tacit.party.budget_plan import largest_sum_kl, plan_budget, plan_party
from tacit.party.config import PartyConfig
from tacit.protect.base import NOISE_ONLY, RUNNING, WITHHELD
from tacit.testing import low_rank_cut
from tacit.types import Certificate

FULL = "marvell(sum_kl=0.05, covariance=full)"
ROWS, BATCH, SEED = 400, 40, 2


def certificate(sum_kl, *, how="from this batch", measured=None):
    return Certificate(
        spec=FULL,
        how=how,
        assumption="",
        sum_kl=sum_kl,
        auc_bound=None,
        gaussian_auc=None,
        power=1.0,
        measured_power=1.0,
        measured_sum_kl=measured,
    )


def planned(budget, spec, *, labels=None, classes=2, releases=20):
    return plan_budget(budget, protect=spec, labels=labels, classes=classes, releases=releases)


# --- what can be said of a release before its batch is there --------------------------------------


@pytest.mark.parametrize(
    ("spec", "claim"),
    [
        (FULL, 0.05),
        ("marvell(error=0.4, covariance=full)", 0.16),
        (f"gaussian(sigma=0.1) | {FULL}", 0.05),
        (f"{FULL} | max_norm", 0.05),
        (f"{FULL} | gaussian(sigma=0.1)", 0.05),
        (f"max_norm | {FULL}", None),
        (f"{FULL} | marvell(s=4, covariance=full)", None),
        (f"{FULL} | max_norm_positive", None),
        ("marvell(sum_kl=0.05)", None),
        ("marvell(s=4, covariance=full)", None),
        ("marvell(s=4)", None),
        ("none", None),
        ("iso(t=1)", None),
        ("gaussian(sigma=1)", None),
        ("max_norm", None),
    ],
)
def test_no_release_claims_more_than_its_protection_declares(spec, claim):
    assert largest_sum_kl(protect.get(spec)) == (None if claim is None else pytest.approx(claim))
    if claim is not None:
        release = Guard(spec, seed=1).release(low_rank_cut(256, 12))
        assert release.certificate.sum_kl <= claim * (1 + 1e-9)


@pytest.mark.parametrize(
    ("budget", "spec", "said"),
    [
        ("auc=0.9", "marvell(s=4, covariance=full)", r"depends on the labels of its batch"),
        ("auc=0.9", "marvell(sum_kl=0.05)", r"lie near a few directions"),
        ("auc=0.9", "none", r"none claims nothing that a budget could count"),
        ("auc=0.9", "gaussian(sigma=1)", r"claims nothing"),
        ("auc=0.9", "iso(t=1)", r"iso\(t=1\) claims nothing"),
        ("auc=0.9", "max_norm", r"claims nothing"),
        ("sum_kl=0.04", FULL, r"not even the first step fits"),
        ("auc=0.55", FULL, r"not even the first step fits"),
        ("epsilon=1", FULL, r"has no epsilon: set the budget as auc= or sum_kl="),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_way_out_that_fits(budget, spec, said):
    with pytest.raises(UsageError, match=said) as error:
        planned(budget, spec)
    assert str(error.value).startswith(f"budget {budget}: ")
    text = str(error.value)
    if "covariance=full)" in text.rpartition(": ")[2]:
        advised = text[text.rindex("marvell(") : text.rindex(" or labels")]
        assert planned(budget, advised).allowed == 20
    advised = text[text.rindex("rr(") :]
    assert planned(budget, "none", labels=advised) is None


def test_randomised_labels_are_judged_before_the_first_step():
    assert planned("epsilon=0.5", "none", labels="rr(epsilon=0.5)") is None
    with pytest.raises(UsageError, match=r"rr\(epsilon=2\) alone is more.*rr\(epsilon=1\)"):
        planned("epsilon=1", "none", labels="rr(epsilon=2)")
    with pytest.raises(UsageError, match="no epsilon"):
        planned("epsilon=1", "none", labels="gaussian_labels(sigma=2)")
    assert planned(None, "none") is None


@pytest.mark.parametrize(("budget", "allowed"), [("sum_kl=0.5", 10), ("sum_kl=9", 20)])
def test_the_number_of_epochs_follows_from_public_counts(budget, allowed):
    plan = planned(budget, FULL)
    assert (plan.allowed, plan.sum_kl, plan.epochs) == (allowed, 0.05, 20)
    assert json.loads(json.dumps(plan.record()))["budget"] == budget


def test_advice_is_for_the_budget_that_was_asked_for():
    for text in ("auc=0.9", "auc=0.75", "sum_kl=0.3"):
        plan = forecast(20, 0.25, budget=text)
        assert f"the budget {text} has room for {plan.allowed} epoch" in str(plan)
        assert forecast(20, plan.per_release, budget=text).allowed == 20
        more = forecast(20, plan.per_release * 1.02, budget=text)
        assert more.allowed < 20
        assert "within the budget" in str(forecast(20, plan.per_release, budget=text))
    assert "1 epoch;" in str(forecast(20, 0.2, budget="sum_kl=0.3"))


@pytest.mark.parametrize("target", [0.51, 0.65, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("epochs", [1, 7, 20])
def test_a_recommendation_fits_the_budget_that_it_names(target, epochs):
    for one in recommend(target=target, epochs=epochs, examples=10_000):
        assert f"--budget {one.budget}" in str(one)
        plan = planned(one.budget, one.protect, labels=one.labels, releases=epochs)
        assert plan is None or plan.allowed == epochs
        if plan is not None and plan.budget.kind == "auc":  # and no more than that
            assert plan.budget.limit < auc_bound(epochs * plan.sum_kl) + 0.0011
    (many,) = recommend(target=target, epochs=epochs, examples=10_000, classes=10)
    assert planned(many.budget, "none", labels=many.labels, classes=10) is None


# --- a ledger with a plan -------------------------------------------------------------------------


def test_a_planned_ledger_refuses_by_the_number_of_releases_alone():
    costs = {
        "as planned": [certificate(0.05)] * 10,
        "less": [certificate(0.001)] * 10,
        "nothing": [certificate(0.0, how=NOISE_ONLY)] * 10,
        "none claimed": [certificate(None, how=RUNNING)] * 10,
        "rounding": [certificate(0.05, measured=0.05 * (1 + 1e-6))] * 10,
    }
    spent = {}
    for name, released in costs.items():
        ledger = Ledger(run="a", budget="sum_kl=0.5", per_release=0.05)
        for one in released:
            assert not ledger.over_plan(one)
            ledger.charge([1, 2], one)
        with pytest.raises(BudgetError, match=r"stands at sumKL 0\.5"):
            ledger.charge([2, 3], certificate(0.0, how=NOISE_ONLY))
        assert ledger.spent([3]).releases == 0
        spent[name] = float(ledger.spent([1]).sum_kl[0])
    wanted = {"as planned": 0.5, "less": 0.01, "nothing": 0.0, "none claimed": 0.5, "rounding": 0.5}
    assert spent == pytest.approx(wanted)


@pytest.mark.parametrize(
    "over", [certificate(0.0501), certificate(0.05, measured=math.inf), certificate(None)]
)
def test_what_costs_more_than_planned_is_not_counted_but_refused(over):
    ledger = Ledger(run="a", budget="auc=0.9", per_release=0.05)
    assert ledger.over_plan(over)
    with pytest.raises(BudgetError):
        ledger.charge([0], over)
    assert ledger.summary().examples == 0
    assert not Ledger(run="a", budget="auc=0.9").over_plan(over)


def test_a_plan_survives_a_restart_and_another_is_refused():
    ledger = Ledger(run="a", budget="sum_kl=0.1", per_release=0.05)
    ledger.charge([0], certificate(0.01))
    arrays, values = ledger.to_state()
    values = json.loads(json.dumps(values))
    again = Ledger.from_state(arrays, values, run="a")
    again.charge([0], certificate(0.01))
    with pytest.raises(BudgetError):
        again.charge([0], certificate(0.01))
    with pytest.raises(InputError, match=r"planned with sum_kl 0\.05 per release, not 0\.01"):
        Ledger.from_state(arrays, values, run="a", per_release=0.01)
    with pytest.raises(ParameterError, match="give both"):
        Ledger(run="a", per_release=0.05)
    before = {name: value for name, value in values.items() if name != "per_release"}
    assert Ledger.from_state(arrays, before, run="a", per_release=0.05).per_release == 0.05


def test_a_release_that_would_cost_more_goes_out_without_signal_and_the_same_again():
    cut = replace(low_rank_cut(256, 12), ids=torch.arange(256), step=0)
    ledger = Ledger(run="a", budget="auc=0.9", per_release=0.01)
    guard = Guard(FULL, seed=3, ledger=ledger)
    release = guard.release(cut)
    assert guard.counts == {WITHHELD: 1}
    assert release.certificate.sum_kl == 0.0
    assert torch.equal(guard.release(cut).grads, release.grads)
    assert ledger.spent([0]).sum_kl == 0.0
    assert ledger.spent([0]).releases == 1
    chained = Guard(
        f"{FULL} | gaussian(sigma=0.01)",
        seed=3,
        ledger=Ledger(run="a", budget="auc=0.9", per_release=0.01),
    )
    assert chained.release(cut).certificate.sum_kl == 0.0


def test_a_protection_that_claims_nothing_shows_nothing_under_a_plan():
    cut = replace(low_rank_cut(64, 8), ids=torch.arange(64))
    ledger = Ledger(run="a", budget="auc=0.9", per_release=0.01)
    guard = Guard("iso(t=1)", seed=3, ledger=ledger)
    assert guard.release(cut).certificate.sum_kl == 0.0
    with pytest.raises(BudgetError, match="none has no certificate"):
        Guard("none", seed=3, ledger=ledger).release(cut)


def test_batches_of_one_class_are_charged_as_planned_and_end_nothing():
    cut = replace(low_rank_cut(256, 12), ids=torch.arange(256))
    lone = Cut(grads=cut.grads, labels=torch.zeros_like(cut.labels), ids=cut.ids)
    ledger = Ledger(run="a", budget="sum_kl=0.2", per_release=0.05)
    guard = Guard(FULL, seed=3, ledger=ledger)
    for one in (lone, cut, lone, cut):
        guard.release(one)
    assert guard.counts == {NOISE_ONLY: 1, "from this batch": 2, RUNNING: 1}
    assert ledger.spent([0]).sum_kl == pytest.approx(0.15)
    with pytest.raises(BudgetError):
        guard.release(cut)


# --- whole trainings ------------------------------------------------------------------------------


def table(folder, name, labels):
    """Write a table whose features are the same for all labels."""
    rng = np.random.default_rng(0)
    rows = zip(rng.normal(size=ROWS), rng.normal(size=ROWS), labels, strict=True)
    path = folder / f"{name}.csv"
    path.write_text("a,b,y\n" + "".join(f"{a:.6f},{b:.6f},{int(y)}\n" for a, b, y in rows))
    path.with_name(f"{path.name}.schema.toml").write_text('label = "y"\nnumeric = ["a", "b"]\n')
    return str(path)


def columns(folder):
    """Return label columns for the same rows; of the rare ones most batches have fewer than two."""
    common = np.arange(ROWS) % 3 == 0
    train, test = data.split(data.load(table(folder, "common", common)), seed=SEED)
    rare, rarer = np.zeros((2, ROWS), dtype=bool)
    rare[[*train[::60], test[0]]] = True
    rarer[[*train[:3], test[0]]] = True
    return {"common": common, "rare": rare, "rarer": rarer}


@pytest.mark.parametrize("budget", ["auc=0.72", "sum_kl=0.2"])
def test_all_label_columns_end_at_the_same_step(tmp_path, budget):
    ends = {}
    for name, labels in columns(tmp_path).items():
        config = TrainConfig(
            dataset=table(tmp_path, name, labels),
            model="mlp(hidden=4)",
            batch_size=BATCH,
            epochs=9,
            protect=FULL,
            budget=budget,
            attacks=(),
            threads=1,
            seed=SEED,
        )
        trial, results = run(config)
        ends[name] = results["steps"]
        assert results["steps"] == trial.steps
        assert results["planned"]["allowed"] < 9
        assert results["stopped"].startswith("as planned before the first step: 9 epochs")
        spent = results["ledger"]
        assert Budget.parse(budget).allows(spent[budget.split("=")[0].replace("auc", "auc_bound")])
    assert len(set(ends.values())) == 1
    assert ends["rare"] > 0


def party(tmp_path, **changes):
    return PartyConfig(
        role="label",
        name="bank",
        peer="platform",
        address="127.0.0.1:1",
        keys=tmp_path,
        data=tmp_path / "x.csv",
        state=tmp_path,
        **{"protect": FULL, "epochs": 5, **changes},
    )


def test_a_label_party_begins_only_what_its_budget_lets_it_end(tmp_path):
    fits = party(tmp_path, budget="sum_kl=0.25")
    assert plan_party(fits, classes=2).allowed == 5
    with pytest.raises(UsageError, match=r"5 epochs and 1 step allowed again: set epochs = 4"):
        plan_party(fits, classes=2, repeats=1)
    with pytest.raises(UsageError, match=r"at most 3 times .* set epochs = 3 on both sides, or"):
        plan_party(party(tmp_path, budget="sum_kl=0.15"), classes=2)
    assert plan_party(party(tmp_path), classes=2) is None
    labels = party(tmp_path, budget="epsilon=1", labels="rr(epsilon=1)")
    assert plan_party(labels, classes=2, repeats=7) is None


@pytest.mark.parametrize("spec", ["marvell(s=4)", FULL, "marvell(s=4) | gaussian(0.1)"])
def test_a_withheld_release_tells_no_classes_apart(spec):
    """Nor does its noise, where one class varies more than the other."""
    rng = torch.Generator().manual_seed(0)
    labels = (torch.arange(512) % 4 == 0).long()
    spread = torch.where(labels == 1, 2.0, 0.3).unsqueeze(1)
    cut = Cut(
        grads=spread * torch.randn(512, 32, generator=rng), labels=labels, ids=torch.arange(512)
    )
    ledger = Ledger(run="a", budget="sum_kl=100", per_release=1e-3, measured=False)
    guard = Guard(spec, seed=3, ledger=ledger)
    sizes, truth = [], []
    for _ in range(8):
        sizes.append(guard.release(cut).grads.norm(dim=1))
        truth.append(labels)
    assert set(guard.counts) <= {WITHHELD, f"from this batch | {WITHHELD}"}
    found = leak_auc(torch.cat(sizes), torch.cat(truth))
    assert found < 0.5 + stats.norm.isf(1e-6) * math.sqrt(1 / 12 / 1024 + 1 / 12 / 3072)
