"""``tacit audit --inputs`` as it is typed: files, runs, pages, and one line for each mistake."""

import json
import shutil

import numpy as np
import pytest

from tacit.cli import main

ROWS = 300


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Embeddings that were sent once, without gradients, and the features behind them."""
    folder = tmp_path_factory.mktemp("sent")
    x = np.random.default_rng(0).normal(size=(ROWS, 2))
    np.savez(folder / "embeddings_0.npz", embeddings=x @ [[1, 2], [2, -1]], ids=np.arange(ROWS))
    city = np.where(x[:, 0] > 0, "rome", "bern")
    lines = [f"{i},{a},{b},{c}" for i, (a, b), c in zip(range(ROWS), x, city, strict=True)]
    (folder / "f.csv").write_text("\n".join(["id,age,income,city", *lines]) + "\n")
    return folder


def said(capsys, *words):
    assert main(["audit", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *words):
    assert main(["audit", *map(str, words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_embeddings_alone_with_a_feature_file(sent, capsys):
    page = sent / "page.html"
    record = said(capsys, sent / "embeddings_0.npz", "--inputs", sent / "f.csv", "--out", page)
    assert {row["column"] for row in record["inputs"]} == {"age", "income", "city"}
    assert set(record["inputs"][0]) >= {"column", "kind", "r2", "accuracy", "baseline"}
    assert record["inputs"][0]["r2"] > 0.99
    assert record["state"] == "leaks"
    text = page.read_text()
    assert "What embeddings show of the inputs" in text
    assert "Leakage by attack" not in text
    assert main(["audit", str(sent / "embeddings_0.npz"), "--inputs", str(sent / "f.csv")]) == 0
    shown = capsys.readouterr().out
    assert "income" in shown
    assert "knew 150 rows; 150 others were judged" in shown


def test_a_recorded_run_with_its_data_set(tmp_path, capsys):
    words = ["train", "--dataset", "breast_cancer", "--epochs", "2", "--batch-size", "64"]
    run = tmp_path / "run"
    assert main([*words, "--record", "--out", str(run), "--json"]) == 0
    capsys.readouterr()
    both = said(capsys, run, "--inputs", "breast_cancer", "--attacks", "norm")
    assert [row["attack"] for row in both["table"]] == ["norm"]
    assert len(both["inputs"]) == len(both["inputs_all_epochs"]) == 30
    tape = run / "feature_party_0.tape"
    alone = said(capsys, tape, "--inputs", "breast_cancer")
    assert alone["inputs"] == both["inputs"]
    assert alone["table"] == []
    assert "--attacks norm" in complaint(
        capsys, tape, "--inputs", "breast_cancer", "--attacks", "norm"
    )


def test_a_party_is_asked_about_its_own_columns(tmp_path, capsys):
    words = ["train", "--dataset", "breast_cancer", "--epochs", "1", "--batch-size", "64"]
    run = tmp_path / "run"
    assert main([*words, "--parties", "2", "--record", "--out", str(run), "--json"]) == 0
    capsys.readouterr()
    found = [
        {
            row["column"]
            for row in said(
                capsys, run / f"feature_party_{party}.tape", "--inputs", "breast_cancer"
            )["inputs"]
        }
        for party in (0, 1)
    ]
    assert list(map(len, found)) == [15, 15]
    assert not found[0] & found[1]


def test_a_run_that_sent_no_gradients_is_found_by_its_directory(sent, tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    shutil.copy(sent / "embeddings_0.npz", tmp_path)
    record = said(capsys, tmp_path, "--inputs", sent / "f.csv")
    assert record["tape"]["source"] == str(tmp_path / "embeddings_0.npz")
    assert "was not recorded" in complaint(capsys, tmp_path)


def test_mistakes_are_one_line(sent, tmp_path, capsys):
    tape, features = sent / "embeddings_0.npz", sent / "f.csv"
    assert "--truth is missing" in complaint(capsys, tape)
    assert "no id column 'who'" in complaint(
        capsys, tape, "--inputs", features, "--id-column", "who"
    )
    assert "there is no such file" in complaint(capsys, tape, "--inputs", "missing.csv")
    assert "nor a data set" in complaint(capsys, tape, "--inputs", "credits")
    assert "leave it out" in complaint(capsys, tape, "--inputs", "credit", "--id-column", "id")
    truth = tmp_path / "labels.csv"
    truth.write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(ROWS)))
    assert "has no grads" in complaint(capsys, tape, "--truth", truth)
    other = tmp_path / "other.csv"
    other.write_text("id,age\n" + "".join(f"{i + 900},{i % 7}\n" for i in range(ROWS)))
    assert "has none of the 300 ids" in complaint(capsys, tape, "--inputs", other)
    few = tmp_path / "few.csv"
    few.write_text("id,age\n" + "".join(f"{i},{i % 7}\n" for i in range(99)))
    assert "at least 100" in complaint(capsys, tape, "--inputs", few)
    np.savez(tmp_path / "grads.npz", grads=np.ones((ROWS, 2)))
    assert "has no embeddings" in complaint(capsys, tmp_path / "grads.npz", "--inputs", features)
