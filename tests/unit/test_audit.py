"""The audit: finds what is there, nothing where there is nothing, and says so in words."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tacit import Cut, Guard, LeakMonitor, run_audit
from tacit.attack import ATTACKS as REGISTERED
from tacit.attack import Attack, AuditForm, Cause, LabelledAttack, get
from tacit.audit.attack_choice import default_attacks
from tacit.audit.attack_run import fair_scores
from tacit.audit.result import histogram, roc
from tacit.audit.verdict import headline, judge
from tacit.errors import KnowledgeError, SpecError, UsageError
from tacit.measure import auc, auc_bound, gaussian_auc
from tacit.tape.columns import ColumnTape, ViewTape
from tacit.testing import low_rank_cut
from tacit.types import View

# The default set and its order are part of what a report looks like.
ATTACKS = (
    "norm",
    "cosine",
    "hint",
    "mean",
    "median",
    "majority",
    "principal",
    "energy",
    "energy(share=0.9)",
    "lowbits",
    "memory",
    "memory(of=lowbits)",
    "kmeans(by=direction)",
    "kmeans",
    "kmeans(by=both)",
    "supervised",
)
IDS, BATCH, EPOCHS = 2048, 512, 4
FIELDS = {
    "attack",
    "leak_auc",
    "low",
    "high",
    "null_low",
    "null_high",
    "baseline",
    "bound",
    "verdict",
}


def recorded(spec, *, epochs=EPOCHS, embeddings=True, noise=False):
    """Return views of several epochs over the same examples, their labels and a certificate."""
    rng = torch.Generator().manual_seed(0)
    cut = low_rank_cut(IDS, width=32, seed=1)
    guard, views = Guard(spec, seed=3), []
    for epoch in range(epochs):
        for rows in torch.randperm(IDS, generator=rng).split(BATCH):
            clean = torch.randn(BATCH, 32, generator=rng) if noise else cut.grads[rows]
            release = guard.release(Cut(grads=clean, labels=cut.labels[rows]))
            sent = torch.randn(BATCH, 8, generator=rng) if embeddings else None
            views.append(View(grads=release.grads, embeddings=sent, ids=rows, epoch=epoch))
    return ViewTape(views), cut.labels, guard.last_certificate


CHEAP = tuple(name for name in ATTACKS if not name.startswith(("supervised", "kmeans")))


@pytest.fixture(scope="module")
def unprotected():
    tape, labels, certificate = recorded("none")
    return run_audit(tape, dict(enumerate(labels.tolist())), certificate=certificate)


def test_without_protection_every_attack_on_gradients_succeeds(unprotected):
    rows = {row["attack"]: row for row in unprotected.table}
    assert set(ATTACKS) == set(rows)
    # Random embeddings, no noise to find, and no sum whose last bits would tell.
    blind = {"kmeans", "energy", "energy(share=0.9)", "lowbits", "memory(of=lowbits)"}
    for name in set(ATTACKS) - blind:
        assert rows[name]["leak_auc"] > 0.9, name
        assert rows[name]["state"] == "leaks", rows[name]["verdict"]
    assert rows["kmeans"]["state"] == "nothing found"
    assert unprotected.record["state"] == "leaks"
    assert unprotected.worst()["leak_auc"] == max(row["leak_auc"] for row in unprotected.table)


def test_the_record_is_complete_and_holds_plain_values(unprotected):
    record = json.loads(unprotected.to_json())
    assert record == unprotected.record
    for row in record["table"]:
        assert set(row) >= FIELDS
        assert row["null_low"] <= row["null_high"]
        assert row["low"] <= row["leak_auc"] <= row["high"]
    assert record["tape"] == {
        "source": "the views given",
        "rows": IDS * EPOCHS,
        "examples": IDS,
        "steps": 16,
        "epochs": EPOCHS,
        "width": 32,
        "embeddings": True,
        "damaged": 0,
    }
    assert len(record["epochs"]["memory"]) == EPOCHS
    assert set(record["curves"]) == set(record["histograms"]) == set(ATTACKS)
    assert 0.4 < record["baseline"]["auc"] < 0.6


def test_the_default_set_is_what_the_attacks_declare():
    assert tuple(default_attacks()) == ATTACKS


# --- an attack of somebody else's, in a file of its own -------------------------------------------


@dataclass(frozen=True)
class FirstColumn(Attack):
    """Score by the first value of each gradient."""

    causes = (Cause("the first column shows it"),)
    remedy = "drop the first column"
    live = True

    def score(self, prepared, _rng, /):
        return prepared.rows[:, 0]


@dataclass(frozen=True)
class LastColumn(Attack):
    """Score by the last values of each gradient, in two forms and before all others."""

    width: int = 1

    audit_forms = (AuditForm("last(width=2)", 2), AuditForm("memory(of=last)", 1))

    def score(self, prepared, _rng, /):
        return prepared.rows[:, -self.width :].sum(dim=1)


@dataclass(frozen=True)
class OnRequest(FirstColumn):
    """Run when it is asked for."""

    audit_forms = ()
    live = False


@dataclass(frozen=True)
class NeedsParameter(Attack):
    """Score by a column that must be named."""

    column: int

    def score(self, prepared, _rng, /):
        return prepared.rows[:, self.column]


@dataclass(frozen=True)
class OnEmbeddings(Attack):
    """Score by the first value of each embedding."""

    needs = frozenset({"embeddings"})
    reads = frozenset({"embeddings"})

    def score(self, prepared, _rng, /):
        return prepared.view.embeddings[:, 0].double()


@dataclass(frozen=True)
class NearestMean(LabelledAttack):
    """Score by the nearer of the class means of the labelled rows."""

    def score(self, prepared, rng, /):
        return self.log_odds(prepared.view, rng)

    def log_odds(self, view, rng, *, honest=True):
        found = self.probabilities(view, rng, honest=honest).log()
        return found[:, 1] - found[:, 0]

    def probabilities(self, view, _rng, *, honest=True):
        rows, classes = view.known.labelled
        means = torch.stack([view.grads[rows[classes == c]].mean(0) for c in classes.unique()])
        return (-torch.cdist(view.grads, means)).double().softmax(dim=1)


@pytest.fixture
def newcomers():
    """Register attacks as a file outside of the package does, and take them away again."""
    kinds = {
        "first": FirstColumn,
        "last": LastColumn,
        "on_request": OnRequest,
        "needs_parameter": NeedsParameter,
        "on_embeddings": OnEmbeddings,
        "nearest_mean": NearestMean,
    }
    for name, kind in kinds.items():
        REGISTERED.register(name)(kind)
    yield
    for name in kinds:
        del REGISTERED.entries[name]


def test_a_new_attack_is_audited_and_advised_on_without_another_edit(newcomers):
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3 == 0
    columns = {"grads": rng.normal(size=(600, 4)) + 3 * y[:, None]}
    columns["embeddings"] = rng.normal(size=(600, 2)) + 2 * y[:, None]
    result = run_audit(ColumnTape.of(columns), y, threshold=0.65, certificate={"sum_kl": 0.01})
    rows = {row["attack"]: row for row in result.table}
    order = ["memory(of=last)", "last(width=2)", *ATTACKS[:-1], "first", "on_embeddings"]
    assert list(rows) == [*order, "supervised", "nearest_mean"]
    assert rows["first"]["state"] == "leaks"
    assert rows["first"]["remedy"] == "the first column shows it; drop the first column"
    assert rows["first"]["bound"] == rows["norm"]["bound"]
    assert "no noise on gradients hides" in rows["on_embeddings"]["remedy"]
    assert rows["on_embeddings"]["bound"] is rows["nearest_mean"]["bound"] is None
    assert rows["nearest_mean"]["leak_auc"] > 0.9
    (skipped,) = result.record["skipped"]
    assert skipped["attack"] == "needs_parameter"
    assert "needs_parameter(column=...)" in skipped["reason"]
    asked = run_audit(ColumnTape.of(columns), y, ["on_request"]).table
    assert [row["attack"] for row in asked] == ["on_request"]
    assert [str(attack) for attack in LeakMonitor().attacks][-1] == "first"


def test_a_new_attack_that_learns_labels_is_audited_on_many_classes(newcomers):
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    grads = rng.normal(size=(600, 3)) + 5 * np.eye(3)[y]
    (row,) = run_audit(ColumnTape.of({"grads": grads}), y, ["nearest_mean"]).table
    assert row["clustering_accuracy"] > 0.9


def test_nothing_is_found_in_noise():
    tape, labels, _ = recorded("none", noise=True)
    result = run_audit(tape, labels_by_id(labels))
    for row in result.table:
        assert row["leak_auc"] <= row["null_high"], row
        assert row["state"] == "nothing found"
    assert result.record["state"] == "nothing found"
    assert "safe" not in result.to_json()


def labels_by_id(labels):
    return dict(enumerate(labels.tolist()))


def test_published_marvell_breaks_its_claim_and_adds_up_over_epochs():
    tape, labels, certificate = recorded("marvell(s=4)", epochs=8, embeddings=False)
    attacks = [*CHEAP, "kmeans(by=direction)"]
    result = run_audit(tape, labels_by_id(labels), attacks, certificate=certificate)
    rows = {row["attack"]: row for row in result.table}
    energy = rows["energy"]
    assert energy["low"] > energy["bound"]
    assert energy["state"] == "leaks"
    assert "the Gaussian assumption fails; use covariance=full" in energy["verdict"]
    assert rows["norm"]["high"] < rows["norm"]["bound"]  # it keeps its claim against the norm
    grown = [point["leak_auc"] for point in result.record["epochs"]["memory"]]
    for epoch, value in enumerate(grown, start=1):
        assert value == pytest.approx(gaussian_auc(epoch * certificate.sum_kl), abs=0.04)
    assert rows["memory"]["bound"] == pytest.approx(auc_bound(8 * certificate.sum_kl))
    assert rows["kmeans(by=direction)"]["bound"] == pytest.approx(certificate.auc_bound)
    reference = [point["gaussian_auc"] for point in result.record["reference"]]
    assert reference[-1] == pytest.approx(gaussian_auc(8 * certificate.sum_kl))
    assert result.record["baseline"] is None
    assert any("baseline" in line for line in result.record["advice"])


def test_what_does_not_apply_is_left_out_with_a_reason_or_refused():
    tape, labels, _ = recorded("none", epochs=1, embeddings=False)
    found = run_audit(tape, labels_by_id(labels), seconds=5).record["skipped"]
    assert {item["attack"] for item in found} == {"kmeans", "kmeans(by=both)"}
    assert all("no embeddings" in item["reason"] for item in found)
    with pytest.raises(KnowledgeError, match=r"kmeans: the tape has no embeddings: leave it out"):
        run_audit(tape, labels_by_id(labels), ["kmeans"])
    with pytest.raises(SpecError, match="did you mean 'energy'"):
        run_audit(tape, labels_by_id(labels), ["enrgy"])


def test_many_classes_are_clustered():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, size=2000)
    centres = rng.normal(size=(4, 16))
    grads = centres[y] * rng.uniform(0.5, 2, size=(2000, 1)) + 0.05 * rng.normal(size=(2000, 16))
    result = run_audit(ColumnTape.of({"grads": grads}), y)
    rows = {row["attack"]: row for row in result.table}
    plain = {"norm", "majority", "principal", "energy", "energy(share=0.9)", "memory"}
    plain |= {"lowbits", "memory(of=lowbits)"}
    assert set(rows) == {"kmeans(by=direction)", "supervised", *plain}
    assert rows["kmeans(by=direction)"]["clustering_accuracy"] > 0.99
    assert rows["supervised"]["clustering_accuracy"] > 0.99
    assert {rows[name]["state"] for name in ("supervised", "kmeans(by=direction)")} == {"leaks"}
    assert rows["principal"]["state"] == "leaks"  # one against the rest, by a single direction
    assert all(rows[name]["clustering_accuracy"] is None for name in plain)
    left = {one["attack"]: one["reason"] for one in result.record["skipped"]}
    assert left["cosine"] == "it tells two classes apart, there are 4"
    noise = run_audit(ColumnTape.of({"grads": rng.normal(size=(2000, 16))}), y)
    assert all(row["state"] == "nothing found" for row in noise.table)


def test_an_attack_stops_when_its_time_is_up():
    tape, labels, _ = recorded("none", epochs=2)
    (row,) = run_audit(tape, labels_by_id(labels), ["energy"], seconds=1e-9).table
    assert row["batches"] == 1
    assert "stopped when its time was up" in row["verdict"]


def test_the_baseline_comes_from_features_where_they_are_given():
    tape, labels, _ = recorded("none", epochs=1)
    features = labels.numpy()[:, None] + np.random.default_rng(0).normal(size=(IDS, 3))
    found = run_audit(tape, labels_by_id(labels), ["norm"], features=features).record["baseline"]
    assert found["from"] == "features"
    assert found["auc"] > 0.7
    with pytest.raises(UsageError, match=r"features have 5 rows, the tape's ids reach 2047"):
        run_audit(tape, labels_by_id(labels), ["norm"], features=features[:5])


@pytest.mark.parametrize("name", ["mean", "median", "cosine", "hint"])
def test_side_information_never_comes_from_the_rows_that_are_scored(name):
    """At 40 rows of 400 values, centres of the same rows would "find" labels at nearly 1."""
    rng, values = torch.Generator().manual_seed(0), []
    for _ in range(60):
        view = View(grads=torch.randn(40, 400, generator=rng))
        labels = (torch.arange(40) % 4 == 0).long()
        values += [auc(s, y) for s, y in fair_scores(get(name), view, labels, rng) if y.sum() > 0]
    error = 4 * np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - 0.5) < error


# --- verdicts -------------------------------------------------------------------------------------


def verdict(leak, half=0.01, *, null_high=0.53, baseline=None, bound=None, threshold=None):
    return judge(
        leak=leak,
        low=leak - half,
        high=leak + half,
        null_high=null_high,
        baseline=baseline,
        bound=bound,
        threshold=threshold,
        remedy="do something",
    )


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (verdict(0.998, bound=0.72), "leaks"),
        (verdict(0.6, bound=0.72), "leaks"),  # within the claim, but above the noise
        (verdict(0.6, baseline=0.75), "within"),
        (verdict(0.75, baseline=0.75), "unknown"),
        (verdict(0.8, baseline=0.75), "leaks"),
        (verdict(0.52), "nothing found"),
        (verdict(0.535), "unknown"),
        (verdict(0.65, threshold=0.7), "within"),
        (verdict(0.65, half=0.1, threshold=0.7), "unknown"),
        (verdict(0.8, threshold=0.7), "leaks"),
        (verdict(1.0, half=0, null_high=1.0), "unknown"),  # too few rows to tell from noise
        (verdict(0.52, half=0.2, threshold=0.7), "unknown"),  # in the band, and it spans the limit
        (verdict(0.55, null_high=0.6, bound=0.53), "unknown"),
        (verdict(0.52, threshold=0.7), "nothing found"),
    ],
)
def test_verdict_states(found, state):
    assert found.state == state
    assert "safe" not in found.text


def test_the_headline_is_the_worst_finding():
    rows = [
        {"attack": "a", "leak_auc": 0.9, "state": "within", "verdict": "x"},
        {"attack": "b", "leak_auc": 0.7, "state": "leaks", "verdict": "y"},
    ]
    assert headline(rows).text == "Labels leak: b reaches 0.700. y."
    assert headline([]).state == "unknown"


def test_curves_agree_with_the_auc():
    rng = np.random.default_rng(0)
    labels = (np.arange(4000) % 3 == 0).astype(float)
    for sign in (1, -1):
        scores = sign * (labels + rng.normal(size=4000))
        curve = roc(scores, labels)
        area = np.trapezoid(curve["tpr"], curve["fpr"])
        assert area == pytest.approx(max(auc(scores, labels), auc(-scores, labels)), abs=2e-3)
    shape = histogram(scores, labels)
    widths = np.diff(shape["edges"])
    assert (np.array(shape["negatives"]) * widths).sum() == pytest.approx(1, abs=1e-3)
    assert len(histogram(np.zeros(10), labels[:10])["edges"]) == 49


# --- little to go by ------------------------------------------------------------------------------


def small(rows, **columns):
    rng = np.random.default_rng(0)
    y = (np.arange(rows) % 4 == 0).astype(int)
    grads = np.where(y, -3.0, 1.0)[:, None] + 0.1 * rng.normal(size=(rows, 4))
    found = {"grads": grads, "embeddings": rng.normal(size=(rows, 3)), **columns}
    return ColumnTape.of(found), y


@pytest.mark.parametrize("rows", [5, 6])
def test_too_few_rows_are_undecided(rows):
    tape, y = small(rows)
    result = run_audit(tape, y)
    assert result.record["state"] == "unknown"
    assert {row["state"] for row in result.table} == {"unknown"}


def test_an_epoch_that_has_just_begun_does_not_stop_the_audit():
    tape, y = small(400, epoch=np.repeat([0, 1], [399, 1]), ids=np.arange(400))
    result = run_audit(tape, y)
    assert {"supervised", "memory"} <= {row["attack"] for row in result.table}
    assert result.record["trained"] is not None


def test_steps_of_one_row_or_one_class_are_skipped():
    tape, y = small(40, step=np.arange(40))
    result = run_audit(tape, y)
    assert {"norm", "cosine", "hint"} <= {item["attack"] for item in result.record["skipped"]}
    tape, y = small(40, epoch=np.repeat([0, 1], [1, 39]), ids=np.arange(40))
    record = run_audit(tape, y, ["norm"]).record
    assert record["baseline"] is None
    assert record["skipped"][0]["attack"] == "baseline from embeddings of the first epoch"


def test_epochs_are_counted_as_they_are_numbered():
    tape, y = small(400, epoch=np.repeat([5, 6], 200), ids=np.tile(np.arange(200), 2))
    record = run_audit(tape, y, ["norm"], certificate={"sum_kl": 1.0}).record
    assert [point["epoch"] for point in record["epochs"]["norm"]] == [5, 6]
    assert [point["epoch"] for point in record["reference"]] == [5, 6]


def test_views_without_epochs_are_one_epoch_and_may_be_an_iterator():
    views = (View(grads=torch.randn(50, 3)) for _ in range(4))
    record = run_audit(views, np.arange(200) % 2, ["norm", "memory"]).record
    assert [len(points) for points in record["epochs"].values()] == [1, 1]


def test_many_random_clusters_are_not_reported_as_a_leak():
    rng = np.random.default_rng(1)
    grads, y = rng.normal(size=(2000, 8)), np.arange(2000) % 40
    for row in run_audit(ColumnTape.of({"grads": grads}), y).table:
        assert row["state"] == "nothing found", row


@pytest.mark.parametrize("setting", [{"threshold": 70}, {"seconds": 0}, {"seed": -1}])
def test_settings_out_of_range(setting):
    tape, y = small(40)
    with pytest.raises(UsageError, match=next(iter(setting))):
        run_audit(tape, y, ["norm"], **setting)


def test_steps_whose_gradients_are_all_zero_are_told():
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(64, 4))
    steps, labels = np.repeat([0, 1], 32), np.arange(64) % 2
    for zeros in (0, 1, 2):
        grads[: 32 * zeros] = 0.0
        columns = {"grads": grads.copy(), "step": steps}
        found = run_audit(ColumnTape.of(columns, source="zeros"), labels, ["norm"])
        told = [line for line in found.record["advice"] if "gradients are zero" in line]
        assert [f"in {zeros} of 2 steps" in line for line in told] == [True] * bool(zeros)
