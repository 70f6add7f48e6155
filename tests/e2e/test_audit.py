"""Record, audit, report: the commands as an auditor types them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tacit.cli import main
from tacit.tape import RecordedTape

EXAMPLE = Path(__file__).parents[2] / "examples" / "record_foreign_loop.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    common = ["train", "--dataset", "ads", "--rows", "6000", "--epochs", "2", "--batch-size", "512"]
    common += ["--model", "mlp", "--protect", "marvell(s=4)"]
    assert main([*common, "--out", str(place / "plain"), "--json"]) == 0
    assert main([*common, "--out", str(place / "kept"), "--record", "--json", "--layers"]) == 0
    return place


def test_recording_changes_nothing(run):
    for name in ("feature_party_0.safetensors", "label_party.safetensors"):
        plain, kept = load_file(run / "plain" / name), load_file(run / "kept" / name)
        assert all(torch.equal(plain[key], kept[key]) for key in plain)


def test_the_tape_holds_what_the_feature_party_saw(run):
    results = json.loads((run / "kept" / "results.json").read_text())
    tape = RecordedTape(run / "kept" / "feature_party_0.tape")
    views = list(tape)
    assert [view.step for view in views] == list(range(results["steps"]))
    assert {view.epoch for view in views} == {0, 1}
    layer = list(RecordedTape(run / "kept" / "feature_party_0.tape", layer="layer1"))
    assert layer[0].grads.shape[0] == 512
    assert 0.5 < results["memory_leak"] <= 1
    stored = b"".join(path.read_bytes() for path in (run / "kept").glob("*.tape/*"))
    assert b"label" not in stored


@pytest.mark.slow
def test_a_run_is_audited_by_its_directory(run, capsys):
    page = run / "report.html"
    attacks = ["norm", "energy(share=0.5)", "memory", "kmeans(by=direction)"]
    assert (
        main(["audit", str(run / "kept"), "--out", str(page), "--json", "--attacks", *attacks]) == 0
    )
    record = json.loads(capsys.readouterr().out)
    rows = {row["attack"]: row for row in record["table"]}
    assert list(rows) == ["norm", "energy", "memory", "kmeans(by=direction)"]
    assert record["certificate"]["spec"] == "marvell(s=4)"
    assert rows["energy"]["bound"] == pytest.approx(record["certificate"]["auc_bound"])
    assert len(record["reference"]) == 2
    assert json.loads(embedded(page)) == record
    assert main(["audit", str(run / "kept"), "--attacks", "norm"]) == 0
    assert "norm" in capsys.readouterr().out


def test_a_recorded_stream_has_the_labels_of_every_row(tmp_path, capsys):
    words = ["train", "--dataset", "ads", "--rows", "3000", "--model", "mlp", "--stream"]
    words += ["--batch-size", "32", "--record", "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    assert main(["audit", str(tmp_path / "run"), "--attacks", "norm", "--json"]) == 0
    assert "norm" in capsys.readouterr().out


def embedded(page):
    text = page.read_text()
    start = text.index(">", text.index('id="record"')) + 1
    return text[start : text.index("</script>", start)].replace("<\\/", "</")


def test_an_audited_run_gets_a_page(run, capsys):
    page = run / "runs.html"
    assert main(["report", str(run / "plain"), str(run / "kept"), "--out", str(page)]) == 0
    assert "marvell(s=4)" in page.read_text()
    capsys.readouterr()


@pytest.mark.slow
def test_a_foreign_loop_is_recorded_and_audited(tmp_path):
    """The example of the documentation, as it stands."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Labels leak" in done.stdout


def test_an_npz_with_labels_in_row_order(tmp_path, capsys):
    rng = np.random.default_rng(0)
    y = np.arange(3000) % 5 == 0
    grads = np.where(y, -0.8, 0.2)[:, None] * rng.normal(1, 0.1, size=(3000, 16))
    np.savez(tmp_path / "x.npz", grads=grads)
    np.save(tmp_path / "y.npy", y)
    where = [str(tmp_path / "x.npz"), "--truth", str(tmp_path / "y.npy")]
    assert main(["audit", *where, "--attacks", "norm", "--attacks", "principal", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in record["table"]] == ["leaks", "leaks"]
    assert record["worst"] in ("norm", "principal")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.npz", "--truth", "y.npy"], "no such tape"),
        (["x.npz"], "--truth is missing"),
        (["x.npz", "--truth", "none.csv"], "no such file of labels"),
        (["x.npz", "--truth", "y.npy", "--attacks", "enrgy"], "did you mean 'energy'"),
        (["x.npz", "--truth", "y.npy", "--attacks", "hint(k=3"], "parenthesis is not closed"),
        (["x.npz", "--truth", "y.npy", "norm"], "named after --attacks"),
        (["x.npz", "--truth", "y.npy", "--out", "no/where/a.html"], "there is no directory"),
        (["x.npz", "--truth", "short.npy"], "has 3 labels for 40 rows"),
        (["x.npz", "--truth", "y.npy", "--certificate", "y.npy"], "not a readable JSON file"),
        (["x.npz", "--truth", "y.npy", "--certificate", "odd.json"], "holds no certificate"),
        (["x.npz", "--truth", "y.npy", "--out", "."], "is a directory"),
        (["x.npz", "--truth", "y.npy", "--threshold", "70"], "between 0.5 and 1"),
    ],
)
def test_mistakes_get_one_line_and_exit_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", grads=np.random.default_rng(0).normal(size=(40, 3)))
    np.save("y.npy", np.arange(40) % 2)
    np.save("short.npy", np.arange(3) % 2)
    Path("odd.json").write_text("[1]")
    assert main(["audit", *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
