"""The parts of a sweep, without running one: its trials, its store, its rows, its picture."""

import csv
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pyarrow.parquet as pq
import pytest

from sweep_examples import SMALL, sweep_records
from tacit.errors import SpecError, UsageError
from tacit.experiment import sweep
from tacit.experiment.config import TrainConfig
from tacit.experiment.export import row_of, write_csv, write_parquet
from tacit.experiment.grid import read_sweep, trials_of
from tacit.experiment.sweep_store import SweepStore, TrialRecord, key_of
from tacit.report import sweep_page, sweep_svg
from tacit.report.tradeoff import panels_of


def record(**changed):
    return TrialRecord(**{**sweep_records(failed=0)[0], **changed})


def test_grids_and_single_trials_are_written_out_once_each(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[base]\nmodel = "mlp"\nepochs = 2\n'
        '[[grid]]\nprotect = ["none", "iso(t=1)"]\nseed = [0, 1]\n'
        '[[grid]]\nlabels = ["rr(epsilon=1)"]\nepochs = [3]\n'
        '[[trial]]\nprotect = "iso( t = 1.0 )"\nseed = 1\n'
    )
    found = read_sweep(path)
    assert found.name == "mine"
    assert [(t.protect, t.labels, t.seed, t.epochs) for t in found.trials] == [
        ("none", None, 0, 2),
        ("none", None, 1, 2),
        ("iso(t=1)", None, 0, 2),
        ("iso(t=1)", None, 1, 2),  # the single trial is this one again
        ("none", "rr(epsilon=1)", 0, 3),
    ]
    assert {t.model for t in found.trials} == {"mlp"}


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"grid": {"protect": ["none", "marvel(s=4)"]}}, "did you mean 'marvell'"),
        ({"grid": {"labels": ["rrr(epsilon=1)"]}}, "unknown"),
        ({"grid": {"sed": [0]}}, "did you mean 'seed'"),
        ({"grid": {"model": ["mpl"]}}, "did you mean 'mlp'"),
        ({"grid": {"dataset": ["asd"]}}, "dataset = 'asd'"),
        ({"grid": {"objective": ["bec"]}}, "objective = 'bec'"),
        ({"grid": {"attacks": [["nrom"]]}}, "did you mean 'norm'"),
        ({"grid": {"epochs": [1, 0]}}, "epochs = 0"),
        ({"grid": {"seed": 3}}, "a grid lists values"),
        ({"grid": {"seed": []}}, "a grid lists values"),
        ({"grid": {"protect": "none"}}, "a grid lists values"),
        ({"grid": 3}, "is a table"),
        ({"trial": ["none"]}, "is a table"),
        ({"base": {"threads": 2}, "grid": {"seed": [0]}}, "one thread"),
        ({"gird": {"seed": [0]}}, "did you mean 'grid'"),
        ({"base": {"seed": 1}}, "holds no trial"),
        ({"grid": {"seed": list(range(400)), "rows": list(range(10, 400))}}, "at most 100000"),
    ],
)
def test_a_mistake_is_found_before_the_first_run(values, part):
    with pytest.raises((UsageError, SpecError)) as caught:
        trials_of(values)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_key_depends_on_settings_and_task_only():
    one = TrainConfig.of({**SMALL, "protect": "marvell(4)"})
    same = TrainConfig.of({**SMALL, "protect": "marvell( s = 4.0 )", "threads": 2, "data_dir": "x"})
    keys = {key_of(one, "a:b"), key_of(same, "a:b")}
    assert len(keys) == 1
    keys |= {key_of(one, "a:c"), key_of(TrainConfig.of({**SMALL, "seed": 1}), "a:b")}
    assert len(keys) == 3


def test_a_store_holds_what_several_writers_append(tmp_path):
    one, other = SweepStore(tmp_path / "s"), SweepStore(tmp_path / "s")
    one.append(record(key="a"))
    other.append(record(key="b"))
    one.append(record(key="c", state="failed", results=None, error="why"))
    assert {r.key for r in other.refresh()} == {"a", "b", "c"}
    assert other.refresh() == []
    assert other.records["a"] == record(key="a")
    other.append(record(key="c"))
    one.refresh()
    assert set(one.records) == set("abc")
    assert one.records["c"].done
    one.append(record(key="c", state="failed", results=None, error="late"))
    assert SweepStore(tmp_path / "s").records["c"].done
    assert len(list((tmp_path / "s" / "journal").iterdir())) == 2


def test_an_incomplete_last_line_is_ignored(tmp_path):
    store = SweepStore(tmp_path / "s")
    store.append(record(key="a"))
    store.append(record(key="b"))
    (journal,) = (tmp_path / "s" / "journal").iterdir()
    whole = journal.read_bytes()
    second = whole.index(b"\n") + 1
    for size in (second, second + 1, len(whole) - 2, len(whole) - 1):
        os.truncate(journal, 0)
        journal.write_bytes(whole[:size])
        again = SweepStore(tmp_path / "s")
        assert set(again.records) == {"a"}, size
        with journal.open("ab") as file:  # the rest arrives: another machine was still writing
            file.write(whole[size:])
        assert [r.key for r in again.refresh()] == ["b"]


def test_damage_and_other_versions_are_refused_in_one_line(tmp_path):
    place = tmp_path / "s"
    SweepStore(place).append(record(key="a"))
    (journal,) = (place / "journal").iterdir()
    kept = journal.read_text()
    journal.write_text("{not json\n" + kept)
    with pytest.raises(UsageError, match=r"line 1: is damaged .*; delete that line"):
        SweepStore(place)
    journal.write_text(kept.replace('"format": 1', '"format": 2'))
    with pytest.raises(UsageError, match="has format 2, this tacit reads format 1"):
        SweepStore(place)
    journal.write_text(kept)
    (place / "store.json").write_text('{"format": 9}')
    with pytest.raises(UsageError, match="has format 9, this tacit reads format 1"):
        SweepStore(place)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="taken by something else"):
        SweepStore(other)
    begun = tmp_path / "begun"  # killed before it was made, or another process is just making it
    (begun / "journal").mkdir(parents=True)
    (begun / ".store-1").write_text("{")
    assert SweepStore(begun).records == {}
    with pytest.raises(UsageError, match=r"no store\.json"):
        SweepStore(tmp_path / "none", create=False)


def test_rows_read_back_from_parquet_and_csv(tmp_path):
    rows = [row_of(TrialRecord(**found)) for found in sweep_records()]
    write_parquet(tmp_path / "r.parquet", rows)
    write_csv(tmp_path / "r.csv", rows)
    table = pq.read_table(tmp_path / "r.parquet")
    assert json.loads(table.schema.metadata[b"tacit sweep"]) == {"format": 1}
    read = table.to_pylist()
    assert [r["test.auc"] for r in read] == [r.get("test.auc") for r in rows]
    assert read[0]["attacks"] == ["norm", "cosine", "energy"]
    assert read[0]["objective"] == "bce"  # what was chosen where nothing was asked for
    assert read[-1]["error"] == "<i>batch</i> is too large"
    with (tmp_path / "r.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(r["leak.norm.q95"]) for r in lines[:-1]] == [
        r["leak.norm.q95"] for r in rows[:-1]
    ]
    assert lines[-1]["leak.norm.q95"] == ""


def test_families_run_over_their_strength_and_panels_over_the_rest():
    records = sweep_records(protections=("marvell(s=16)", "marvell(s=4)", "none"))
    other = [{**r, "config": {**r["config"], "dataset": "ads"}} for r in records]
    (panel,) = panels_of(records)
    assert panel.title == ""
    assert [f.name for f in panel.families] == ["marvell(s)", "none"]
    assert [s.name for s in panel.families[0].strengths] == ["marvell(s=4)", "marvell(s=16)"]
    strength = panel.families[0].strengths[0]
    aucs = strength.values("test.auc")
    assert len(aucs) == 3
    assert strength.mean("test.auc") == pytest.approx(sum(aucs) / 3)
    assert [p.title for p in panels_of(records + other)] == [
        "dataset breast_cancer",
        "dataset ads",
    ]


def test_the_picture_has_a_mark_for_every_run_and_every_mean():
    records = sweep_records()
    text, width, height = sweep_svg(records, leak="leak.norm.mean", utility="test.loss")
    root = ET.fromstring(text)  # noqa: S314 - our own text
    assert (root.get("width"), root.get("height")) == (str(width), str(height))
    marks = [e for e in root.iter() if "scale(" in (e.get("transform") or "")]
    families = 4
    assert len(marks) == 6 * 3 + 6 + families  # runs, means, legend
    said = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "leak AUC of norm, mean over batches" in said
    assert "marvell(s)" in said
    with pytest.raises(SpecError, match=r"--leak leak\.nrom\.mean: no trial has it: did you mean"):
        sweep_svg(records, leak="leak.nrom.mean")
    with pytest.raises(UsageError, match="nothing to draw"):
        sweep_svg(sweep_records(protections=()))


def test_a_page_of_failures_alone_says_so(tmp_path):
    sweep_page(tmp_path / "p.html", sweep_records(protections=()), title="none")
    text = (tmp_path / "p.html").read_text()
    assert "No trial ran to its end" in text
    assert "&lt;i&gt;batch&lt;/i&gt; is too large" in text


def test_a_sweep_has_as_many_workers_as_the_group_was_given_cores(monkeypatch):
    monkeypatch.setattr(sweep, "cores", lambda: 3)
    assert sweep._runner("local", workers=None, address=None).slots == 3
    assert sweep._runner("local", workers=5, address=None).slots == 5


def test_the_process_that_hands_out_trials_does_not_load_torch():
    code = "import sys, tacit.experiment.sweep; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
