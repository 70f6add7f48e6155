"""Silence on the pages of runs and sweeps: where it is drawn, and what is said beside it."""

import re

import pytest

from report_examples import RUNS, results
from sweep_examples import sweep_records
from tacit.experiment.config import TrainConfig
from tacit.party.silent_results import silent_results
from tacit.report import runs_page, sweep_page, sweep_plots
from tacit.report.tradeoff import below_silence, panels_of


def silent_run(auc=0.777, **changed):
    """Return the results of a silent run with two epochs."""
    config = TrainConfig.of({"protect": "silent", "dataset": "credit"})
    test = {"auc": auc, "loss": 0.44, "accuracy": 0.81, "nce": 0.83, "ace": 0.01}
    part = {"loss": 0.5, "test": test, "leak": {}, "memory_leak": None, "embedding_leak": None}
    found = silent_results(
        config,
        dataset="credit",
        classes=2,
        head={"spec": "net", "epochs": 2, "steps": 40, "epoch": 2, "measure": "auc", "score": 0.7},
        pretrain=["masked"],
        width=32,
        history=[{"part": number, **part} for number in range(2)],
        test=test,
    )
    return {"format": 1, "train": {"loss": 0.5}, "seconds": 2.5, **found, **changed}


def words(path):
    """Return the text of a page without its scripts and styles."""
    text = re.sub(r"<(script|style).*?</\1>", " ", path.read_text(), flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_the_page_of_a_silent_run_says_what_holds_and_what_it_costs(tmp_path):
    path = tmp_path / "a.html"
    runs_page(path, {"quiet": silent_run()})
    said = words(path)
    assert "Nothing that depends on labels was sent." in said
    assert "embeddings show inputs" in said
    assert "No attack ran" not in said
    assert "silent: masked -&gt; net" in said
    assert "Test AUC after each epoch" in path.read_text()
    assert "by construction" in said
    assert "another attack may find more" not in said
    assert "for honest batches" not in said


@pytest.mark.parametrize(("auc", "named"), [(0.777, True), (0.70, False)])
def test_of_several_runs_those_below_silence_are_named(tmp_path, auc, named):
    path = tmp_path / "a.html"
    runs_page(path, {**RUNS, "quiet": silent_run(auc)})
    said = words(path)
    assert ("Below quiet" in said) == named
    if named:
        told = said.split("Below quiet", 1)[1].split("not worth sending", 1)[0]
        assert "marvell, full (0.7760)" in told
        assert "no protection" not in told


def test_runs_on_other_data_are_not_compared_with_silence(tmp_path):
    path = tmp_path / "a.html"
    runs_page(path, {**RUNS, "quiet": silent_run(0.9, dataset="spambase")})
    assert "Below quiet" not in words(path)


def test_a_run_that_compared_itself_has_a_silent_row(tmp_path):
    path = tmp_path / "a.html"
    told = "With no gradient sent the test AUC is 0.7990: its gradients are not worth sending."
    run = {**RUNS["no protection"], "silent": {"auc": 0.799, "gain": -0.01, "text": told}}
    runs_page(path, {"mine": run})
    said = words(path)
    assert told in said
    assert re.search(r"\bsilent silent 0\.799\b", said)


def test_a_private_head_stands_beside_the_model_of_both_parties(tmp_path):
    path = tmp_path / "a.html"
    runs_page(path, {"mine": {**RUNS["no protection"], "public_test": {"auc": 0.7123}}})
    assert "of both parties" in words(path)
    assert "0.712" in words(path)
    runs_page(path, {"mine": RUNS["no protection"]})
    assert "of both parties" not in words(path)


# --- sweeps ---


def trials(spec, auc, *, seeds=2, **changed):
    """Return the records of a protection's trials, or of silent ones."""
    config = TrainConfig.of({"dataset": "credit", "protect": spec, **changed})
    run = silent_run(auc) if spec == "silent" else results(spec, {"cosine": 0.8}, auc)
    return [
        {
            "key": f"{spec}{seed}{changed}",
            "state": "done",
            "config": {**config.model_dump(mode="json"), "seed": seed},
            "results": run,
        }
        for seed in range(seeds)
    ]


def test_silent_trials_stand_at_a_half_beside_the_others_in_one_panel():
    """Their own number of epochs and learning rate do not make a setting of their own."""
    records = [*trials("none", 0.79), *trials("marvell(s=4)", 0.76), *trials("silent", 0.77)]
    (panel,) = panels_of(records)
    assert [family.name for family in panel.families] == ["marvell(s)", "none", "silent"]
    (silent,) = panel.families[2].strengths
    for axis in ("leak.cosine.pooled", "memory_leak", "layers.a.norm.mean"):
        assert silent.values(axis) == [0.5, 0.5]
    assert below_silence(panel) == [("marvell(s=4)", pytest.approx(0.76), pytest.approx(0.77))]
    (plot,) = sweep_plots(records, leak="leak.cosine.pooled", utility="test.auc")
    names = [trace["name"] for trace in plot.data]
    first = next(choice for choice in plot.choices if choice.axis == "x").options[0]
    assert first[1][names.index("silent")] == [0.5]


def test_several_widths_are_several_strengths_narrow_first():
    records = [
        *trials("none", 0.79),
        *trials("silent", 0.77, width=32),
        *trials("silent", 0.75, width=8),
    ]
    (panel,) = panels_of(records)
    assert [one.name for one in panel.families[1].strengths] == [
        "silent, width 8",
        "silent, width 32",
    ]


def test_silent_trials_are_in_every_panel_of_their_data():
    records = [
        *trials("none", 0.79, model="mlp"),
        *trials("none", 0.78, model="wdl"),
        *trials("silent", 0.77),
    ]
    found = panels_of(records)
    assert [panel.title for panel in found] == ["model mlp", "model wdl"]
    assert all("silent" in {family.name for family in panel.families} for panel in found)


def test_a_sweep_of_silence_alone_has_a_page(tmp_path):
    path = tmp_path / "a.html"
    sweep_page(path, trials("silent", 0.77), title="quiet")
    assert "by construction" in words(path)
    assert below_silence(panels_of(trials("silent", 0.77))[0]) == []


def test_the_page_of_a_sweep_names_what_is_below_silence(tmp_path):
    path = tmp_path / "a.html"
    records = [*trials("none", 0.79), *trials("marvell(s=4)", 0.76), *trials("silent", 0.77)]
    sweep_page(path, records, title="mine")
    assert "not worth sending: marvell(s=4) 0.7600." in words(path)
    sweep_page(path, sweep_records(), title="others")
    assert "worth sending" not in words(path)
    assert "silent" not in words(path).lower()
