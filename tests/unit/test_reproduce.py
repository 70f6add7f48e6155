"""Reproductions: the names, their plans, and how records become tables and claims."""

import json
from dataclasses import asdict, dataclass
from typing import final

import pytest
import torch

from format_examples import GOLDEN
from study_examples import dump
from tacit import attack
from tacit.attack import ATTACKS, Attack
from tacit.cli import main
from tacit.errors import SpecError, UsageError
from tacit.experiment.sweep_store import TrialRecord, key_of, settings_of
from tacit.experiment.sweep_worker import perform
from tacit.papers import Spread, find, studies
from tacit.papers.records import frontier, share_below
from tacit.papers.reproduce import planned, reproduce
from tacit.protect import PROTECTIONS
from tacit.report import sweep_plots, table_text
from tacit.report.sweep import measure_name

SMALL = {
    "dataset": "breast_cancer",
    "model": "mlp(hidden=8)",
    "rows": None,
    "epochs": 4,
    "cut": None,
    "batch_size": 16,
    "monitor_every": 1,
    "lr": 1e-3,
}
NAMES = {
    "marvell": [
        "fig2-observations",
        "fig3-progression",
        "fig4-tradeoff",
        "fig7-tradeoff",
        "fig9-tradeoff",
        "fig10-layers",
        "fig11-layers",
        "table1-runtime",
        "toy-confidence",
    ],
    "hint": ["fig1-norms", "fig2-error-bound", "fig3-hint", "fig4-stream"],
    "sumkl": ["algorithms-5-6", "sumkl-levels"],
    "exploit": ["fig4-attacks", "fig5-noise", "fig6-norms", "table2-ablation"],
    "gafm": [
        "table1",
        "fig2-gradients",
        "fig4-ablation",
        "tableB1-clients",
        "tableC1-sigma",
        "tableC2-delta",
    ],
    "ours": ["beyond"],
}
# What each needs to be small: fields of its trials on top of SMALL.
TINY = {
    "fig1-norms": {"monitor_every": 3},
    "fig2-observations": {"monitor_every": 3},
    "toy-confidence": {"monitor_every": 3},
    "algorithms-5-6": {},
    "fig7-tradeoff": {"epochs": 1, "batch_size": 64},
    "fig9-tradeoff": {"epochs": 1, "batch_size": 64},
    "fig3-progression": {},
    "fig10-layers": {},
    "fig2-error-bound": {},
    "fig6-norms": {"monitor_every": 3},
    "fig4-stream": {"dataset": "ads", "rows": 3000, "batch_size": 64},
    "sumkl-levels": {"dataset": "ads", "rows": 3000, "batch_size": 64},
}


def records_of(study, *, keep=None, **changed):
    """Run a study's trials in this process, as a worker would; ``keep`` chooses among them."""
    trials, _ = planned(study, changed={**SMALL, **changed})
    found = []
    for config in trials if keep is None else filter(keep, trials):
        answer = json.loads(
            json.dumps(perform({"task": study.task, "config": settings_of(config)}))
        )
        assert answer["error"] is None, (config, answer["error"])
        found.append(
            TrialRecord(
                key=key_of(config, study.task),
                task=study.task,
                config=settings_of(config),
                state=answer["state"],
                results=answer["results"],
                error=None,
                run=answer["run"],
            )
        )
    return found


def checked(finding):
    """Assert that a finding is complete: tables whose rows fit, claims that say what was found."""
    assert finding.tables
    for table in finding.tables:
        assert table.rows
        assert all(len(row) == len(table.header) for row in table.rows), table.title
        assert any(isinstance(cell, int | float | Spread) for row in table.rows for cell in row)
    assert all(claim.text and claim.source and claim.found for claim in finding.claims)
    assert all(claim.words.startswith(("expected ", "measured ")) for claim in finding.claims)
    assert all(plot.data for plot in finding.figures)
    return finding


def test_every_study_has_its_name():
    found = {}
    for study in studies():
        found.setdefault(study.paper, set()).add(study.name)
    assert found == {paper: set(names) for paper, names in NAMES.items()}


@pytest.mark.parametrize("study", studies(), ids=lambda s: s.name)
def test_a_study_is_described_and_asks_for_less_when_quick(study):
    assert find(study.name) is find(study.full_name)
    assert all((study.title, study.place, study.scaled))
    assert all(one.source and one.what for one in study.published)
    quick, full = study.plan(False), study.plan(True)
    assert quick
    assert full
    assert {trial["dataset"] for trial in quick} <= {
        "criteo",
        "avazu",
        "ham10000",
        "mnist",
        "fashion_mnist",
        "cifar10",
        "spambase",
        "credit",
        "imdb_random",
        "imdb_three",
        "ads",
        "toy_balanced",
    }
    # --quick asks for less of something, in every study.
    assert json.dumps(quick) != json.dumps(full)


def test_every_study_is_the_stored_one():
    """Names and order, trials at both scales, published numbers, and what made-up records give."""
    stored = json.loads((GOLDEN / "studies.json").read_text())
    found = dump()
    assert list(found) == list(stored)
    for name, study in found.items():
        assert study == stored[name], name


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(SpecError, match="fig4-tradeoff"):
        find("fig4-tradeof")


def test_published_numbers_are_the_papers():
    runtime, gafm = find("table1-runtime"), find("gafm/table1")
    share = runtime.number("ISIC: Marvell, seconds") / runtime.number("ISIC: update, seconds")
    assert round(100 * share, 1) == 4.5
    assert gafm.number("credit, Vanilla: norm") == 0.95
    assert len(gafm.published) == 3 * 4 * 6
    assert find("table2-ablation").number("mnist: no CER") == 0.3143


@pytest.mark.parametrize("name", TINY)
def test_a_study_runs_on_small_data(name):
    records = records_of(find(name), keep=lambda config: config.seed == 0, **TINY[name])
    checked(find(name).read(records))


def test_rows_without_noise_are_counted_and_shown():
    study = find("algorithms-5-6")
    records = records_of(study)
    bare = {}
    for record in records:
        found = record.results["rows_without_noise"]
        bare.setdefault(record.config["protect"], []).append(found)
    assert bare["none"] == [None] * 3  # nothing was asked for, nothing is missing
    for name in ("max_norm", "max_norm_positive"):
        # One row of 16 at most; others only where their noise happened to be lost in rounding.
        assert all(one["share"] < 1.1 / 16 for one in bare[name])
    published = bare["max_norm_positive_published"]
    assert max(one["most"] for one in published) > 4
    assert sum(one["share"] for one in published) > 3 / 16
    (table,) = study.read(records).tables
    (row,) = [row for row in table.rows if row[1] == "max_norm_positive_published"]
    assert row[-2].mean == pytest.approx(sum(one["share"] for one in published) / 3)


@pytest.mark.parametrize("name", [f"gafm/{name}" for name in NAMES["gafm"]])
def test_a_gafm_study_runs_on_small_data(name):
    records = records_of(
        find(name), keep=lambda config: config.seed == 0, model="gafm_net", batch_size=128, epochs=4
    )
    finding = checked(find(name).read(records))
    assert all(record.results["tvd"] is not None for record in records)
    assert all(0.5 <= record.results["train_auc"] <= 1 for record in records)
    if name == "gafm/fig2-gradients":
        parts = {row[2] for row in finding.tables[0].rows if row[1] == "GAFM"}
        assert parts == {"whole", "gan", "penalty"}


BRIEF = "exploit(trials=1, examples=100, epochs=5)"
PUBLISHED = "exploit(loss=published, trials=1, epochs=5)"


@pytest.mark.parametrize(
    ("name", "attacks"),
    [
        ("fig4-attacks", (PUBLISHED, BRIEF, "kmeans", "unsplit(epochs=2)", "completion(epochs=2)")),
        ("fig5-noise", (PUBLISHED, "kmeans", "unsplit(epochs=2)", "completion(epochs=2)")),
        ("table2-ablation", (PUBLISHED, PUBLISHED[:-1] + ", lambda_p=0)")),
    ],
)
def test_an_exploit_study_runs_on_small_data(name, attacks):
    records = records_of(
        find(name), dataset="digits", rows=300, epochs=2, batch_size=64, attacks=attacks
    )
    finding = find(name).read(records)
    assert finding.tables[0].rows
    (first, *_) = records
    found = first.results["attacks"]
    assert set(found) == set(first.config["attacks"])
    assert all(0 < attack["accuracy"] <= 1 for attack in found.values())
    asked = str(attack.get(PUBLISHED))
    assert len(found[asked]["epochs"]) == 2


def test_observations_agree_with_the_gradients():
    """At a cut one layer deep, dh/dz is the same for all: norms tell |p - y| and nothing else."""
    records = records_of(
        find("fig2-observations"), monitor_every=3, model="mlp(hidden=8, layers=1)"
    )
    for look in records[0].results["looks"]:
        for name in ("negatives", "positives"):
            quantiles = look["norm_h"][name]
            assert quantiles[-1] == pytest.approx(quantiles[0], rel=1e-4)
        assert look["acute"] == 1.0
        assert look["cosine_leak"] == look["cosine_auc"] == 1.0
        assert 0.5 < look["noise"] < 1
        gap, norm = look["gap"]["positives"][2], look["norm_g"]["positives"][2]
        assert norm == pytest.approx(gap * look["norm_h"]["positives"][2], rel=1e-4)


def test_layers_are_followed_over_training():
    study = find("fig11-layers")
    records = records_of(study, model="mlp(hidden=8, layers=5)", cut=3)
    finding = checked(study.read(records))
    trace = records[0].results["trace"]
    assert [w["step"] for w in trace] == sorted({w["step"] for w in trace})
    assert set(trace[0]["layers"]) == {"layer1", "layer2", "layer3"}
    # The last layer is the cut: both monitors see the same gradients.
    assert trace[0]["layers"]["layer3"]["norm"] == pytest.approx(trace[0]["cut"]["norm"])
    plain, strong = (
        [r.results["leak"]["cosine"]["signed"] for r in records if r.config["protect"] == spec]
        for spec in ("none", "marvell(s=4)")
    )
    assert max(strong) < min(plain)
    assert len(finding.figures) == 4


def test_the_trade_off_compares_curves():
    study = find("fig4-tradeoff")
    kept = ("none", "max_norm", "marvell(s=0.25)", "marvell(s=4)", "iso(t=0.25)", "iso(t=4)")
    records = records_of(study, keep=lambda c: c.protect in kept, epochs=1, batch_size=64)
    finding = checked(study.read(records))
    assert [row[0] for row in finding.tables[0].rows] == list(kept)
    assert finding.tables[0].rows[0][1] == 3  # seeds
    shares = [cell for row in finding.tables[-1].rows for cell in row[2:] if cell is not None]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    (leak, utility), *_ = finding.tradeoffs
    (plot,) = sweep_plots([asdict(record) for record in records], leak=leak, utility=utility)
    assert [choice.options[0][0] for choice in plot.choices] == [
        measure_name(leak),
        measure_name(utility),
    ]
    (means, *_) = plot.choices[1].options[0][1]
    family = [r.results["test"]["auc"] for r in records if r.config["protect"] == "iso(t=0.25)"]
    assert means[0] == pytest.approx(sum(family) / 3)


def test_the_run_time_is_timed_in_the_update():
    study = find("table1-runtime")
    records = records_of(study, keep=lambda c: not c.model.startswith("isic"), monitor_every=5)
    found = records[0].results
    assert [len(found[key]) for key in ("noise", "releases", "updates")] == [5] * 3
    times = zip(found["noise"], found["releases"], found["updates"], strict=True)
    assert all(0 < n < r < u for n, r, u in times)
    assert (found["batch"], found["width"]) == (16, 8)
    checked(study.read(records))


def test_random_images_have_the_shape_of_the_paper():
    from tacit.papers.marvell_runtime import _image_parties

    config = planned(find("table1-runtime"), changed={"batch_size": 4})[0][0]
    feature, _, batches = _image_parties(config)
    assert feature.embed(next(batches)).flatten(1).shape == (4, 1600)


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ([(0.6, 0.5), (0.8, 0.6)], [(0.6, 0.7), (0.8, 0.8)], 1.0),
        ([(0.6, 0.8), (0.8, 0.9)], [(0.6, 0.7), (0.8, 0.8)], 0.0),
        # They cross in the middle.
        ([(0.0, 0.5), (1.0, 0.7)], [(0.0, 0.55), (1.0, 0.65)], 0.5),
        # No common range, and one point only.
        ([(0.1, 0.5), (0.2, 0.6)], [(0.3, 0.5), (0.4, 0.6)], None),
        ([(0.1, 0.5)], [(0.1, 0.5), (0.4, 0.6)], None),
    ],
)
def test_share_below(ours, theirs, share):
    found = share_below(ours, theirs)
    assert found is None if share is None else found == pytest.approx(share, abs=0.01)


def test_a_dominated_point_is_not_on_the_curve():
    assert frontier([(0.5, 0.9), (0.6, 0.7), (0.7, 0.8)]) == [(0.6, 0.7), (0.7, 0.8)]


def test_missing_data_sets_and_wrong_fields_are_named(tmp_path):
    study = find("fig4-tradeoff")
    with pytest.raises(UsageError, match="tacit data describe criteo"):
        planned(study, data_dir=tmp_path)
    trials, missing = planned(find("fig3-hint"), data_dir=tmp_path, changed={"dataset": "ads"})
    assert missing == []
    assert {t.dataset for t in trials} == {"ads"}
    with pytest.raises(UsageError, match=r"marvell/fig4-tradeoff: .*epoch"):
        planned(study, changed={"dataset": "ads", "epoch": 1})


def test_a_reproduction_resumes_and_writes_its_files(tmp_path):
    study = find("fig2-observations")
    changed = {**SMALL, "monitor_every": 3}
    first = reproduce(study, out=tmp_path, changed=changed, workers=1)
    seen = []
    again = reproduce(study, out=tmp_path, changed=changed, workers=1, observer=seen.append)
    assert seen[0].kept == seen[0].trials == 3
    assert again == first
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept == again
    page = (tmp_path / "page.html").read_text()
    assert "Observation 1" in page
    assert "scaled down" in page
    text = (tmp_path / "table.md").read_text()
    assert text == table_text(kept)
    assert (tmp_path / "rows.csv").read_text().count("\n") == 4


def test_the_command_lists_runs_and_prints(tmp_path, capsys):
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert {one["name"] for one in listed} == {s.full_name for s in studies()}
    words = [
        "--set",
        "dataset=breast_cancer",
        "--set",
        "model=mlp(hidden=8)",
        "--set=epochs=4",
        "--set=batch_size=16",
        "--set",
        "monitor_every=3",
        "--set",
        "rows=null",
    ]
    out = ["--out", str(tmp_path / "o"), "--workers", "1"]
    assert main(["reproduce", "fig6-norms", *words, *out, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "exploit/fig6-norms"
    assert "epochs = 4, set by hand" in record["scaled"]
    assert main(["reproduce", "fig6-norms", *words, *out]) == 0
    assert "positives typically" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["reproduce"], "NAME"),
        (["reproduce", "fig5-nose"], "fig5-noise"),
        (["reproduce", "beyond", "--quick", "--full"], "--full"),
        (["reproduce", "beyond", "--set", "epochs"], "FIELD=VALUE"),
        (["reproduce", "beyond", "--set", "epoch=1"], "epoch"),
        (["reproduce", "beyond", "--on", "moon"], "--on moon"),
    ],
)
def test_mistakes_exit_2_with_one_line(capsys, words, part):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_a_spread_keeps_its_count():
    assert str(Spread(mean=0.5, sd=0.25, count=2)) == "0.500 ± 0.250"


@pytest.fixture
def registered():
    """Register a protection with a parameter and an attack, and take both away again."""
    from tacit.protect.gaussian import Gaussian

    @final
    @dataclass(frozen=True)
    class Coin(Attack):
        """Score at random."""

        def score(self, prepared, rng, /):
            return torch.rand(len(prepared.rows), generator=rng)

    @final
    @dataclass(frozen=True)
    class Louder(Gaussian):
        """Add Gaussian noise, under a name of its own."""

    ATTACKS.register("test_coin")(Coin)
    PROTECTIONS.register("test_louder")(Louder)
    yield
    del ATTACKS.entries["test_coin"]
    del PROTECTIONS.entries["test_louder"]


def test_whatever_is_registered_appears_in_beyond(registered):
    study = find("beyond")
    cheap = ("norm", "test_coin")
    trials = study.plan(False)
    assert any(trial.get("protect") == "test_louder(sigma=1)" for trial in trials)
    assert all("test_coin" in trial["attacks"] for trial in trials)
    records = records_of(
        study,
        keep=lambda c: c.protect in ("none", "test_louder(sigma=1)") and c.labels is None,
        attacks=cheap,
        rows=200,
        epochs=2,
    )
    table, over_epochs = checked(study.read(records)).tables
    assert [row[0] for row in table.rows] == ["none", "test_louder(sigma=1)"]
    assert list(table.header[-2:]) == list(cheap)
    assert table.rows[0][-2].mean > table.rows[0][-1].mean  # norm finds more than a coin
    assert list(over_epochs.header) == ["protection", "epoch 1", "epoch 2"]


def test_a_mechanism_that_refuses_the_data_is_listed(registered):
    study = find("beyond")
    records = records_of(
        study,
        keep=lambda c: c.labels == "rr_prior(epsilon=1)",
        rows=200,
        epochs=1,
        attacks=("norm",),
    )
    assert "three classes" in records[0].results["refused"]
    assert any("rr_prior" in line for line in study.read(records).left_out)


RELEASED = [study for study in studies() if study.released is not None]


@pytest.mark.parametrize("study", RELEASED, ids=lambda s: s.name)
def test_as_released_changes_every_trial_and_says_how(study):
    given, found = (planned(study, released=r, changed=SMALL | {"model": "wdl"}) for r in (0, 1))
    assert len(given[0]) == len(found[0])
    assert study.released_differs
    for before, after in zip(study.trials(False), study.trials(False, released=True), strict=True):
        assert after["model"] == "wdl(l2=0.01)"
        assert {**after, "model": "", "protect": "", "attacks": ""} == {
            **before,
            "model": "",
            "protect": "",
            "attacks": "",
        }
        if before["protect"].startswith("iso") and study.paper == "hint":
            assert float(after["protect"][6:-1]) == float(before["protect"][6:-1]) ** 2


def test_a_study_runs_as_released(tmp_path):
    study = find("fig4-stream")
    changed = {**SMALL, **TINY["fig4-stream"], "epochs": 1, "seed": 0, "model": "wdl(l2=0.01)"}
    record = reproduce(study, out=tmp_path, released=True, changed=changed, workers=1)
    assert "hint attack" in record["departs"][2]
    assert {row[0] for row in record["tables"][0]["rows"]} >= {"iso(t=1)", "iso(t=4)"}
    assert all(row[-3] is not None for row in record["tables"][0]["rows"])


def test_what_has_no_released_procedure_is_refused():
    with pytest.raises(UsageError, match=r"--as-released: gafm/table1 has no"):
        planned(find("gafm/table1"), released=True)


def test_each_scale_has_a_key_of_its_own():
    study = find("beyond")
    config = planned(study, changed=SMALL)[0][0]
    assert key_of(config, study.task) != key_of(config, study.full_task)
