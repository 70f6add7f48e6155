import json
import math
import tracemalloc
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import Cut, Guard
from tacit.accounting import Budget, Ledger, forecast, sum_kl_for_auc
from tacit.accounting._id_columns import ExampleColumns
from tacit.errors import BudgetError, InputError, ParameterError, TacitError
from tacit.measure import auc_bound, gaussian_auc
from tacit.testing import low_rank_cut
from tacit.types import Certificate, LabelCertificate


def cost(sum_kl, *, measured=None, spec="marvell(sum_kl=0.25)"):
    return Certificate(
        spec=spec,
        how="",
        assumption="",
        sum_kl=sum_kl,
        auc_bound=None,
        gaussian_auc=None,
        power=1.0,
        measured_power=1.0,
        measured_sum_kl=measured,
    )


def labels(epsilon, *, spec="rr", sum_kl=None):
    kl = 2 * epsilon * math.tanh(epsilon / 2) if sum_kl is None else sum_kl
    return LabelCertificate(
        spec=spec,
        classes=2,
        epsilon=epsilon,
        mu=None if epsilon is not None else math.sqrt(kl),
        sum_kl=kl,
        auc=0.0,
        baseline_auc=None,
        combined_auc=None,
        assumption="",
    )


IDS = st.one_of(
    st.integers(0, 40),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(61, 67),
)
BATCH = st.tuples(st.lists(IDS, min_size=1, max_size=12), st.sampled_from([0.0, 0.25, 0.1, 1e-9]))


@settings(deadline=None)
@given(st.lists(BATCH, max_size=8))
def test_sums_equal_those_of_a_dictionary(batches):
    ledger, slow, times = Ledger(run="a"), defaultdict(float), defaultdict(int)
    ledger._columns._dense = 64  # positions up to here, so that both kinds of index are met
    for ids, kl in batches:
        ledger.charge(np.array(ids), cost(kl))
        for one in ids:
            slow[one] += kl
            times[one] += 1
    ids = [*slow, 12345, -7]
    spent = ledger.spent(np.array(ids))
    np.testing.assert_allclose(spent.sum_kl, [slow[i] for i in ids], rtol=1e-12)
    assert spent.releases.tolist() == [times[i] for i in ids]
    np.testing.assert_allclose(spent.auc_bound, [auc_bound(slow[i]) for i in ids], rtol=1e-12)
    summary = ledger.summary()
    assert summary.releases == len(batches)
    assert summary.examples == sum(n > 0 for n in times.values())
    assert summary.sum_kl == pytest.approx(max(slow.values(), default=0.0))
    assert summary.gaussian_auc == pytest.approx(gaussian_auc(summary.sum_kl))


def test_ids_of_every_kind_and_a_merge_of_many_new_ones(monkeypatch):
    monkeypatch.setattr("tacit.accounting._id_columns._RECENT", 64)
    rng = np.random.default_rng(0)
    ids = rng.integers(-(2**62), 2**62, 3000)
    columns = ExampleColumns({"n": np.int64(0)})
    columns.find_or_add(np.arange(50))
    columns["n"][:] = np.arange(50) + 1000
    for at in range(0, 3000, 37):
        part = ids[at : at + 37]
        positions = columns.find_or_add(part)
        columns["n"][positions] = np.arange(at, at + len(part))
    assert (columns["n"][columns.find(ids)] == np.arange(3000)).all()
    assert (columns["n"][columns.find(np.arange(50))] == np.arange(50) + 1000).all()
    assert (columns.find(rng.integers(-(2**62), 2**62, 100)) == -1).all()
    assert columns.read("n", np.array([ids[7], 2**40])).tolist() == [7, 0]


def test_text_ids_and_tensors_are_counted_alike():
    ledger = Ledger(run="a")
    ledger.charge(["ann", "bob", "ann"], cost(0.25))
    assert ledger.spent(["ann", "bob", "eve"]).sum_kl.tolist() == [0.5, 0.25, 0.0]
    ledger.charge(torch.tensor([1, 2]), cost(0.25))
    assert ledger.spent([1, 2]).sum_kl.tolist() == [0.25, 0.25]
    for bad in ([0.5], [[1]], [], np.array([2**63], dtype=np.uint64)):
        with pytest.raises(InputError, match="ids must be"):
            ledger.charge(bad, cost(0.1))


def test_the_larger_of_modelled_and_measured_is_charged():
    ledger = Ledger(run="a")
    ledger.charge([0], cost(0.1, measured=0.3))
    ledger.charge([1], cost(0.3, measured=0.1))
    ledger.charge([2], cost(None))
    assert ledger.spent([0, 1, 2]).sum_kl.tolist() == [0.3, 0.3, math.inf]
    assert ledger.summary().auc_bound == 1.0
    for wrong in (cost(-1.0), cost(math.nan), cost(0.1, measured=math.nan)):
        with pytest.raises(ParameterError, match="at least 0"):
            ledger.charge([0], wrong)


@pytest.mark.parametrize(("budget", "each"), [("sum_kl=0.5", 0.05), ("sum_kl=0.5", 0.25)])
def test_a_value_at_the_limit_is_within_the_budget(budget, each):
    ledger = Ledger(run="a", budget=budget)
    for _ in range(round(0.5 / each)):
        ledger.check([4], cost(each))
        ledger.charge([4], cost(each))
    before = ledger.spent([4]).sum_kl.copy()
    assert ledger.would_exceed([4], cost(1e-6))
    assert not ledger.would_exceed([4], cost(0.0))
    with pytest.raises(BudgetError, match=r"example 4 stands at sumKL 0.5.*would take it to 0.5"):
        ledger.charge([3, 4], cost(1e-3))
    assert ledger.spent([4]).sum_kl == before
    assert ledger.spent([3]).sum_kl == 0


def test_a_budget_of_auc_is_judged_by_the_bound():
    limit = sum_kl_for_auc(0.7)
    assert auc_bound(limit) == pytest.approx(0.7, abs=1e-12)
    ledger = Ledger(run="a", budget="auc=0.70")
    ledger.charge([0], cost(limit))
    with pytest.raises(BudgetError, match=r"AUC bound of 0\.7.*labels=rr\(epsilon=0\.847\)"):
        ledger.charge([0], cost(1e-4))
    with pytest.raises(BudgetError, match=r"would take it to 0\.768"):
        Ledger(run="a", budget="auc=0.7").charge([1, 1], cost(limit))  # twice in one batch
    assert issubclass(BudgetError, TacitError)


@pytest.mark.parametrize("budget", ["auc=0.7", "sum_kl=3", "epsilon=1"])
def test_protections_without_a_certificate_are_refused_by_name(budget):
    ledger = Ledger(run="a", budget=budget)
    with pytest.raises(BudgetError, match=r"iso\(t=1\) has no certificate"):
        ledger.charge([0], cost(None, spec="iso(t=1)"))
    assert ledger.summary().examples == 0


def test_an_epsilon_counts_once_per_secret():
    ledger = Ledger(run="a", budget="epsilon=1")
    for _ in range(20):
        ledger.charge_labels([0, 1], labels(0.58), tag="one")
        ledger.charge([0, 1], cost(None, spec="none"), covered=True)
    spent = ledger.spent([0, 1])
    assert spent.epsilon.tolist() == [0.58, 0.58]
    assert spent.auc_bound == pytest.approx(1 / (1 + math.exp(-0.58)))
    assert spent.releases.tolist() == [20, 20]
    with pytest.raises(BudgetError, match=r"epsilon 0\.58.*to 1\.16"):
        ledger.charge_labels([1, 2], labels(0.58), tag="two")
    ledger.charge_labels([2], labels(0.58), tag="two")
    assert ledger.spent([0, 1, 2]).epsilon.tolist() == [0.58] * 3
    with pytest.raises(BudgetError, match="has no epsilon"):
        ledger.charge([0], cost(0.1))
    with pytest.raises(InputError, match="not charged"):
        ledger.charge([0, 9], cost(None), covered=True)
    with pytest.raises(InputError, match="comes with the tag of"):
        ledger.charge_labels([0], labels(0.7), tag="one")


def test_one_secret_has_one_mechanism():
    """Another epsilon, sigma or number of classes under a secret is refused; another plan costs."""
    first, mark = labels(0.5, spec="rr(epsilon=0.5)"), "a secret"
    others = [
        labels(1.0, spec="rr(epsilon=1)"),
        labels(None, sum_kl=1.0, spec="gaussian_labels(sigma=1)"),
        replace(first, classes=3),
    ]
    ledger = Ledger(run="a")
    ledger.charge_labels([0], first, tag="one", secret=mark)
    arrays, values = ledger.to_state()
    stored = Ledger.from_state(arrays, json.loads(json.dumps(values)), run="a")
    for counted in (ledger, stored):
        for other in others:
            with pytest.raises(InputError, match=r"second release.*rr\(epsilon=0\.5\) for 2"):
                counted.charge_labels([7], other, tag="two", secret=mark)
        assert counted.spent([7]).epsilon[0] == 0
        counted.charge_labels([7], others[0], tag="two", secret="of " + mark)
        counted.charge_labels([0], first, tag="another plan", secret=mark)
        assert counted.spent([0, 7]).epsilon.tolist() == [1.0, 1.0]


def test_a_ledger_of_the_format_before_goes_on_where_it_counts_no_labels():
    ledger = Ledger(run="a")
    ledger.charge([0], cost(0.25))
    arrays, values = ledger.to_state()
    assert Ledger.from_state(arrays, {**values, "format": 1}, run="a").summary() == ledger.summary()


def test_labels_and_gradients_add_up():
    ledger = Ledger(run="a")
    one = labels(0.58)
    ledger.charge_labels([0], one, tag="one")
    ledger.charge([0], cost(0.25))
    assert ledger.spent([0]).sum_kl[0] == pytest.approx(0.25 + one.sum_kl)
    assert ledger.spent([0]).auc_bound[0] == pytest.approx(auc_bound(0.25 + one.sum_kl))
    assert ledger.spent([0]).epsilon[0] == math.inf


def test_gaussian_labels_have_their_exact_auc():
    ledger = Ledger(run="a", budget="auc=0.8")
    ledger.charge_labels([0], labels(None, sum_kl=1.0), tag="one")
    assert ledger.spent([0]).auc_bound[0] == pytest.approx(gaussian_auc(1.0))
    assert ledger.spent([0]).epsilon[0] == math.inf
    with pytest.raises(BudgetError, match="no epsilon"):
        Ledger(run="a", budget="epsilon=5").charge_labels([0], labels(None, sum_kl=1.0), tag="one")


def test_a_ninth_label_secret_is_refused():
    ledger = Ledger(run="a")
    for number in range(8):
        ledger.charge_labels([0], labels(0.1), tag=str(number))
    assert ledger.spent([0]).epsilon[0] == pytest.approx(0.8)
    with pytest.raises(InputError, match="a ninth"):
        ledger.charge_labels([0], labels(0.1), tag="8")


@pytest.mark.parametrize("ids", [[0, 1, 5], [-3, 2**40, 7]])
def test_the_stored_state_gives_the_same_ledger(ids):
    ledger = Ledger(run="a", budget="auc=0.9")
    ledger.charge_labels(ids[:2], labels(0.5), tag="one")
    ledger.charge_labels([99], labels(None, sum_kl=0.5), tag="two")
    ledger.charge(ids[1:], cost(0.25))
    arrays, values = ledger.to_state()
    assert all(type(a) is np.ndarray and a.dtype.kind in "fu" for a in arrays.values())
    again = Ledger.from_state(arrays, json.loads(json.dumps(values)), run="a")
    for name in ("sum_kl", "epsilon", "auc_bound", "releases"):
        wanted = getattr(ledger.spent([*ids, 99]), name)
        assert getattr(again.spent([*ids, 99]), name).tolist() == wanted.tolist()
    assert again.summary() == ledger.summary()
    again.charge(ids, cost(0.25))
    assert ledger.spent(ids[1:2]).sum_kl + 0.25 == pytest.approx(again.spent(ids[1:2]).sum_kl)
    with pytest.raises(InputError, match="belongs to run 'a', not to 'b'"):
        Ledger.from_state(arrays, values, run="b")
    for version in (1, 3, None):
        with pytest.raises(InputError, match=f"format 2, got {version}"):
            Ledger.from_state(arrays, {**values, "format": version}, run="a")
    with pytest.raises(InputError, match="of equal length"):
        Ledger.from_state({"sum_kl": arrays["sum_kl"]}, values, run="a")


def test_a_spent_budget_stays_spent_after_a_restart():
    ledger = Ledger(run="a", budget="sum_kl=0.5")
    ledger.charge([0], cost(0.5))
    again = Ledger.from_state(*ledger.to_state(), run="a")
    with pytest.raises(BudgetError, match=r"stands at sumKL 0\.5"):
        again.charge([0], cost(0.1))


@pytest.mark.parametrize(
    "text",
    [
        "auc",
        "auc=",
        "auc=x",
        "auc=0.5",
        "auc=1",
        "sum_kl=0",
        "epsilon=-1",
        "epsilon=nan",
        "epsilon=inf",
        "auc=0.7, sum_kl=1",
        "delta=1",
        "",
        None,
    ],
)
def test_texts_that_are_no_budget_are_refused(text):
    with pytest.raises(ParameterError, match="budget"):
        Budget.parse(text)


def test_ten_million_examples_fit():
    """Dense and scattered ids, by the sizes of the arrays; the dense one also as allocated."""
    count = 10_000_000
    tracemalloc.start()
    ledger = Ledger(run="a", examples=count)
    ids = np.arange(count - 1024, count)
    ledger.charge(ids, cost(0.25))
    assert tracemalloc.get_traced_memory()[0] < 130e6
    tracemalloc.stop()
    assert ledger.nbytes < 130e6
    per_scattered = (8 + 2 + 1) + 8 + 4 * 2**21 / count  # columns, key, table of starts
    assert per_scattered * count < 200e6
    some = Ledger(run="a")
    some.register(np.random.default_rng(0).integers(-(2**62), 2**62, 100_000))
    assert some.nbytes / 100_000 < 200e6 / count


def test_charging_a_batch_touches_nothing_as_long_as_the_ledger():
    ledger = Ledger(run="a", budget="auc=0.99", examples=1_000_000)
    rng = np.random.default_rng(0)
    batches = [rng.permutation(1_000_000)[:1024] for _ in range(20)]
    certificate = cost(1e-6)
    ledger.charge(batches[0], certificate)
    tracemalloc.start()
    try:
        for batch in batches:
            ledger.charge(batch, certificate)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000  # one byte for each example of the ledger is more already


def test_a_forecast_says_what_to_do():
    plan = forecast(20, 0.25)
    assert str(plan).startswith(
        "20 epochs of sumKL 0.25: reference 0.94, bound 1.00 for honest batches; the budget"
    )
    assert auc_bound(20 * plan.per_release) == pytest.approx(0.65, abs=1e-3)
    assert "rr(epsilon=0.619)" in str(plan)
    assert "within the budget" in str(forecast(1, 0.01))
    assert forecast(5, 0.0).allowed == 5
    with pytest.raises(ParameterError, match="epochs"):
        forecast(0, 0.1)


def test_a_guard_charges_every_release_and_stops_in_time():
    cut = replace(low_rank_cut(64, 8), ids=torch.arange(64))
    ledger = Ledger(run="a", budget="sum_kl=1")
    guard = Guard("marvell(sum_kl=0.4, covariance=full)", seed=1, ledger=ledger)
    first = guard.release(replace(cut, step=0))
    assert torch.equal(guard.release(replace(cut, step=0)).grads, first.grads)
    charged = max(first.certificate.sum_kl, first.certificate.measured_sum_kl)
    assert ledger.spent([0, 63]).sum_kl == pytest.approx(charged)  # a repeat is not charged again
    guard.release(replace(cut, step=1))
    with pytest.raises(BudgetError, match="marvell"):
        guard.release(replace(cut, step=2))
    assert guard.counts.total() == 2
    assert guard.last_certificate is not None
    with pytest.raises(InputError, match="pass ids="):
        guard.release(low_rank_cut(64, 8))
    with pytest.raises(BudgetError, match="none has no certificate"):
        Guard("none", ledger=ledger).release(replace(cut, step=0))


def test_a_guard_in_a_loop_charges_in_the_backward_pass():
    ledger = Ledger(run="a")
    guard = Guard("marvell(s=4)", seed=1, ledger=ledger)
    cut = low_rank_cut(64, 8)
    z = torch.randn(64, 8, requires_grad=True)
    (guard(z, cut.labels, ids=torch.arange(64)) * cut.grads).sum().backward()
    assert ledger.summary().examples == 64
    assert isinstance(cut, Cut)


# --- measures that are told ---


def test_shared_measures_are_counted_apart_and_stored():
    ledger = Ledger(run="r")
    ledger.charge([0, 1], cost(0.25))
    ledger.charge_measures(13.5)
    ledger.charge_measures(13.5)
    for held in (ledger, Ledger.from_state(*ledger.to_state(), run="r")):
        total = held.summary()
        assert (total.measures, total.measure_bits) == (2, 27.0)
        assert (total.releases, total.sum_kl) == (1, 0.25)


def test_a_budget_refuses_measures_and_counts_none():
    ledger = Ledger(run="r", budget="auc=0.9")
    with pytest.raises(BudgetError, match=r"budget auc=0.9: .* set share_metrics = false"):
        ledger.charge_measures(1.0)
    assert ledger.summary().measures == 0
    for bits in (-1.0, math.nan, math.inf):
        with pytest.raises(ParameterError, match="finite"):
            Ledger(run="r").charge_measures(bits)
