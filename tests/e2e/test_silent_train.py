"""``tacit train`` without gradients, with a head of its own, and beside silence."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file

from tacit import data, heads, measure, pretrain
from tacit.cli import main
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.heads import EmbeddedRows
from tacit.nets import Inputs

DOCS = Path(__file__).parents[2] / "docs" / "silent.md"
SMALL = ["--dataset", "breast_cancer", "--threads", "1"]
SILENT = [*SMALL, "--protect", "silent"]
QUICK = ["--pretrain", "pca(8)", "--epochs", "6", "--batch-size", "64"]
ENDING = {"dataset": "breast_cancer", "model": "mlp(hidden=16)", "epochs": 3, "batch_size": 64}


def tacit(capsys, *words):
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def printed(capsys, *words):
    code, out, err = tacit(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


# --- results ---


def test_the_results_have_the_form_of_all_others(capsys):
    found = printed(capsys, "train", *SILENT, *QUICK)
    sent = printed(capsys, "train", *SMALL, "--model", "mlp", "--epochs", "1", "--batch-size", "64")
    assert sent.keys() <= found.keys()
    assert found["protection"] == "silent"
    assert found["model"] == "silent: pca(width=8) -> net"
    assert (found["releases"], found["release_parameters"]) == (0, {})
    assert (sent["releases"], sum(sent["release_parameters"].values())) == (sent["steps"],) * 2
    assert (found["leak"], found["memory_leak"], found["ledger"]) == ({}, None, None)
    certificate = found["certificate"]
    assert certificate["assumption"] == "nothing that depends on labels is sent"
    assert (certificate["sum_kl"], certificate["auc_bound"]) == (0, 0.5)
    assert found["verdict"]["state"] == "within"
    assert "tacit audit --inputs" in found["verdict"]["text"]
    assert (found["pretrain"], found["width"]) == (["pca(width=8)"], 8)
    assert found["steps"] == found["head"]["steps"] == len(found["history"]) * 6  # of 358 rows
    assert found["selected"]["epoch"] == found["head"]["epoch"] <= len(found["history"]) <= 6
    assert found["test"] == found["history"][found["head"]["epoch"] - 1]["test"]


def test_an_estimator_has_one_entry_and_no_steps(capsys):
    found = printed(
        capsys, "train", *SILENT, "--pretrain", "pca(8)", "--head", "sklearn:GaussianNB"
    )
    assert (found["steps"], len(found["history"])) == (0, 1)
    assert found["model"] == "silent: pca(width=8) -> sklearn:GaussianNB"
    assert found["selected"] is None
    assert found["head"]["measure"] == "auc"


def test_silence_learns():
    """The bundled tumours are easy: 171 test rows, whose AUC is 0.99, give or take 0.01."""
    found = [
        run(TrainConfig.of({"dataset": "breast_cancer", "protect": "silent", "seed": seed}))[1]
        for seed in range(3)
    ]
    assert np.mean([one["test"]["auc"] for one in found]) > 0.95


def test_many_classes_and_several_parties():
    """Of 450 test rows 0.9 are right; one in ten by chance."""
    values = {"dataset": "digits", "protect": "silent", "parties": 2, "pretrain": "pca(8)"}
    trial, found = run(TrainConfig.of({**values, "epochs": 10}))
    assert found["objective"] == "ce"
    assert (found["pretrain"], found["width"]) == (["pca(width=8)"] * 2, 16)
    assert found["test"]["accuracy"] > 0.6
    alone = [party.embed(torch.arange(5)) for party in trial.parties]
    assert [z.shape for z in alone] == [(5, 8)] * 2
    assert not torch.equal(*alone)


def test_a_budget_is_accepted_and_nothing_is_charged(capsys):
    found = printed(capsys, "train", *SILENT, *QUICK, "--budget", "auc=0.6")
    assert (found["budget"], found["ledger"], found["planned"]) == ("auc=0.6", None, None)


def test_settings_of_gradients_say_nothing(capsys):
    plain = printed(capsys, "train", *SILENT, *QUICK)
    words = ["--model", "mlp", "--cut", "1", "--combine", "max", "--depth", "2"]
    other = printed(capsys, "train", *SILENT, *QUICK, *words, "--attack", "norm", "--bins", "4")
    for name in ("seconds", "steps_per_second", "depth"):
        del plain[name], other[name]
    assert other == plain


# --- nothing is learned of rows or labels that have no part in it ---


@pytest.fixture
def turned(monkeypatch):
    """Let the labels of chosen rows, or their columns, be others from now on."""
    real = data.load

    def turn(rows, *, labels=False, columns=False):
        def other(*words, **named):
            table = real(*words, **named)
            if labels:
                changed = np.array(table.labels)
                changed[rows] = 1 - changed[rows]
                object.__setattr__(table, "labels", changed)
            if columns:
                changed = np.array(table.numeric)
                changed[rows] *= -3
                object.__setattr__(table, "numeric", changed)
            return table

        monkeypatch.setattr(data, "load", other)

    return turn


def trained(**more):
    values = {"dataset": "breast_cancer", "protect": "silent", "epochs": 6, "batch_size": 64}
    return run(TrainConfig.of({**values, "pretrain": "masked(width=8, epochs=2)", **more}))


def tensors(files):
    return {name: load(content) for name, content in files.items()}


def same(one, other):
    return all(
        one[name].keys() == other[name].keys()
        and all(torch.equal(one[name][key], other[name][key]) for key in one[name])
        for name in one
    )


def test_what_is_sent_does_not_depend_on_labels(turned):
    trial, _ = trained()
    rows = torch.arange(len(trial.truth))
    sent = trial.parties[0].embed(rows)
    turned(trial.train_rows[::3], labels=True)
    other, _ = trained()
    assert not torch.equal(other.truth, trial.truth)
    assert torch.equal(other.parties[0].embed(rows), sent)
    files = [tensors({n: c for n, c in t.files().items() if "party" in n}) for t in (trial, other)]
    assert same(*files)


@pytest.mark.parametrize("part", ["labels", "columns"])
def test_test_rows_have_no_part_in_any_weight(turned, part):
    trial, _ = trained()
    turned(trial.test_rows, **{part: True})
    other, _ = trained()
    assert same(tensors(trial.files()), tensors(other.files()))


def test_rows_of_one_group_are_not_on_both_sides_of_held_out(monkeypatch):
    real = data.load

    def grouped(*words, **named):
        table = real(*words, **named)
        object.__setattr__(table, "groups", np.arange(len(table)) // 4)
        return table

    monkeypatch.setattr(data, "load", grouped)
    trial, found = trained()
    parts = [set(rows // 4) for rows in (trial.train_rows, trial.held_rows, trial.test_rows)]
    assert all(parts)
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert found["selected"]["rows"] == len(trial.held_rows)


# --- the run directory ---


def test_the_run_directory_repeats_the_run_and_its_files_give_its_predictions(capsys, tmp_path):
    out = tmp_path / "run"
    more = ["--parties", "2", "--embed-bits", "8", "--embed-noise", "0.05", "--record"]
    code, _, err = tacit(capsys, "train", *SILENT, *QUICK, *more, "--width", "6", "--out", str(out))
    assert code == 0
    assert "test AUC" in err
    assert "Nothing that depends on labels was sent." in err.replace("\n", " ")
    assert {path.name for path in out.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "results.json",
        "feature_party_0.safetensors",
        "feature_party_1.safetensors",
        "head.safetensors",
        "embeddings_0.npz",
        "embeddings_1.npz",
    }
    results = json.loads((out / "results.json").read_text())
    again = printed(capsys, "train", "--config", str(out / "config.toml"))
    assert again["test"] == results["test"]
    assert tomllib.loads((out / "config.toml").read_text())["hold_out"] == 0.1
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ends = [line["part"] for line in lines if "test" in line]
    assert ends == list(range(len(results["history"])))
    sent = [np.load(out / f"embeddings_{n}.npz", allow_pickle=False) for n in range(2)]
    assert [one["embeddings"].shape for one in sent] == [(569, 6)] * 2
    assert all(np.array_equal(one["ids"], np.arange(569)) for one in sent)
    rows = EmbeddedRows(embeddings=np.concatenate([one["embeddings"] for one in sent], axis=1))
    content = (out / "head.safetensors").read_bytes()
    head = heads.get("net").load(content, width=12, inputs=None, classes=2)
    table = data.load("breast_cancer")
    _, test = data.split(table, seed=0)
    probs = head.predict(rows, torch.from_numpy(test)).numpy()
    assert measure.auc(probs, np.asarray(table.labels)[test]) == results["test"]["auc"]


def test_a_saved_bottom_gives_what_was_sent(capsys, tmp_path):
    out = tmp_path / "run"
    assert tacit(capsys, "train", *SILENT, *QUICK, "--record", "--out", str(out))[0] == 0
    path = out / "feature_party_0.safetensors"
    with safe_open(path, framework="pt") as file:
        kept = json.loads(file.metadata()["tacit"])
    columns = Inputs(kept["inputs"]["numeric"], tuple(kept["inputs"]["cardinalities"]))
    bottom = pretrain.get(kept["pretrain"]).bottom(columns, load_file(path))
    table = data.load("breast_cancer")
    found = bottom(torch.from_numpy(np.array(table.numeric)))
    sent = np.load(out / "embeddings_0.npz", allow_pickle=False)["embeddings"]
    assert torch.allclose(found, torch.from_numpy(sent), atol=1e-5)


def test_a_saved_estimator_and_tensorboard(capsys, tmp_path):
    out = tmp_path / "run"
    head = ["--head", "sklearn:LogisticRegression(max_iter=300)"]
    words = ["train", *SILENT, "--pretrain", "pca(8)", *head, "--out", str(out), "--tensorboard"]
    assert tacit(capsys, *words)[0] == 0
    content = (out / "head.skops").read_bytes()
    spec = json.loads((out / "results.json").read_text())["head"]["spec"]
    assert heads.get(spec).load(content, width=8, inputs=None, classes=2).fitted.steps == 0
    (log,) = (out / "tensorboard").iterdir()
    assert all(name in log.read_bytes() for name in (b"train/loss", b"test/auc"))


def test_its_page(capsys, tmp_path):
    out, page = tmp_path / "run", tmp_path / "page.html"
    assert tacit(capsys, "train", *SILENT, *QUICK, "--out", str(out))[0] == 0
    assert tacit(capsys, "report", str(out), "--out", str(page))[0] == 0
    assert "Nothing that depends on labels was sent." in page.read_text()


def test_a_sweep_with_and_without_gradients(capsys, tmp_path):
    file = tmp_path / "both.toml"
    file.write_text(
        '[base]\ndataset = "breast_cancer"\nmodel = "mlp(hidden=8)"\nbatch_size = 64\n'
        'epochs = 2\n[grid]\nprotect = ["none", "silent"]\nseed = [0, 1]\n'
    )
    page = tmp_path / "page.html"
    words = ["sweep", str(file), "--store", str(tmp_path / "store"), "--workers", "2"]
    found = printed(capsys, *words, "--report", str(page))
    assert (found["trials"], found["failed"]) == (4, 0)
    assert [row["releases"] > 0 for row in found["rows"]] == [True, True, False, False]
    assert all(row["test.auc"] > 0.5 for row in found["rows"])
    assert "by construction" in page.read_text()


# --- a private head, and a comparison ---


def ended(**more):
    return run(TrainConfig.of({**ENDING, "seed": 1, **more}))


@pytest.mark.parametrize("protected", [{"labels": "rr(epsilon=0.8)"}, {"protect": "marvell(s=1)"}])
def test_a_private_head_changes_nothing_that_is_sent(tmp_path, protected):
    """Every release and every weight is the same, bit for bit; only predictions are the head's."""
    from tacit.tape import RecordedTape

    runs, seen = [], []
    for number, private in enumerate((False, True)):
        place = tmp_path / str(number)
        place.mkdir()
        config = TrainConfig.of({**ENDING, **protected, "parties": 2, "private_head": private})
        runs.append(run(config, record=place))
        seen.append(
            [view for n in range(2) for view in RecordedTape(place / f"feature_party_{n}.tape")]
        )
    (plain, before), (trial, found) = runs
    assert len(seen[0]) == len(seen[1]) == 2 * before["steps"] == before["releases"]
    assert all(torch.equal(a.grads, b.grads) for a, b in zip(*seen, strict=True))
    assert all(torch.equal(a.embeddings, b.embeddings) for a, b in zip(*seen, strict=True))
    files = [{n: load(c) for n, c in t.files().items() if "party" in n} for t in (plain, trial)]
    assert same(*files)
    assert found["public_test"] == before["test"]
    assert found["test"] != before["test"]
    assert before["public_test"] is before["head"] is None
    assert found["head"]["spec"] == "net"
    assert "head.safetensors" in trial.files()


def test_a_private_head_is_of_any_kind_and_is_held_to_its_own_rows():
    trial, found = ended(
        labels="rr(epsilon=0.8)", private_head=True, head="sklearn:GaussianNB", hold_out=0.2
    )
    assert found["head"]["spec"] == "sklearn:GaussianNB"
    assert {"label_party.safetensors", "head.skops"} <= trial.files().keys()
    assert found["selected"]["judged_by"] == "randomised labels"


def test_true_labels_help_a_head_where_those_of_the_top_are_turned():
    """With 45% of labels turned round three epochs teach a top little; the head learns from all."""
    found = [
        ended(labels="rr(epsilon=0.2)", private_head=True, attacks=(), seed=seed)[1]
        for seed in range(3)
    ]
    gain = [one["test"]["auc"] - one["public_test"]["auc"] for one in found]
    assert np.mean(gain) > 0


def test_what_silence_would_have_given(capsys):
    words = ["--model", "mlp", "--epochs", "1", "--batch-size", "64", "--compare-silent"]
    more = ["--pretrain", "pca(8)"]
    code, _, err = tacit(capsys, "train", *SMALL, *words, *more)
    assert code == 0
    assert "With no gradient sent the test AUC is" in err
    found = printed(capsys, "train", *SMALL, *words, *more)
    alone = printed(capsys, "train", *SILENT, *more)
    assert found["silent"]["auc"] == alone["test"]["auc"]
    assert found["silent"]["gain"] == pytest.approx(found["test"]["auc"] - alone["test"]["auc"])
    worth = found["silent"]["gain"] > 0
    assert ("not worth sending" in found["silent"]["text"]) != worth
    bare = printed(capsys, "train", *SMALL, *words[:-1])
    assert bare["test"] == found["test"]
    assert bare["silent"] is None


# --- bad input ---


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--labels", "rr(epsilon=1)"], "no label is sent"),
        (["--objective", "gafm(delta=0.1)"], "works through gradients"),
        (["--objective", "ce"], "need bce"),
        (["--stream"], "--stream does not go with"),
        (["--layers"], "--layers does not go with"),
        (["--augment"], "--augment does not go with"),
        (["--private-head"], "private already"),
        (["--compare-silent"], "silent itself"),
        (["--pretrain", "maskd"], "did you mean 'masked'"),
        (["--pretrain", "patches"], "needs images"),
        (["--width", "500"], "needs 500 rows or more"),
        (["--width", "0"], "width"),
        (["--pretrain", "concat(pca(2), pca(2))", "--width", "1"], "two parts"),
        (["--embed-bits", "5"], "32, 8 or 4"),
        (["--embed-noise", "-1"], "embed_noise"),
        (["--head", "sklearn:Lasso"], "need a classifier"),
        (["--head", "sklearn:LinearSVC"], "predicts no probabilities"),
        (["--head", "sklearn:GradientBosting"], "did you mean"),
        (["--head", "sklearn:GaussianNB(alpha=1)"], "no parameter 'alpha'"),
        (["--rows", "40", "--hold-out", "0.01"], "hold out more"),
        (["--record"], "--record needs --out"),
    ],
)
def test_what_silence_cannot_do_is_refused_in_one_line(capsys, tmp_path, words, part):
    out = [] if words == ["--record"] else ["--out", str(tmp_path / "run")]
    code, printed_, err = tacit(capsys, "train", *SILENT, *words, *out)
    assert (code, printed_) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert part in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--pretrain", "svd"], 'protect = "silent"'),
        (["--width", "8"], 'protect = "silent"'),
        (["--embed-bits", "8"], 'protect = "silent"'),
        (["--embed-noise", "0.1"], 'protect = "silent"'),
        (["--head", "net"], "private_head = true"),
        (["--protect", "silent | gaussian(1)"], "silent is a mode"),
    ],
)
def test_settings_of_silence_need_it(capsys, words, part):
    code, _, err = tacit(capsys, "train", *SMALL, *words)
    assert (code, err.count("\n")) == (2, 1), err
    assert part in err


def test_a_feature_party_of_constant_columns_is_refused(capsys, tmp_path):
    path = tmp_path / "flat.csv"
    path.write_text("y,a,b\n" + "".join(f"{row % 2},{row % 7},5\n" for row in range(100)))
    schema = 'label = "y"\nnumeric = ["a", "b"]\n[parties]\none = ["a"]\ntwo = ["b"]\n'
    path.with_name("flat.csv.schema.toml").write_text(schema)
    words = ["--dataset", str(path), "--protect", "silent", "--pretrain", "random(2)"]
    code, _, err = tacit(capsys, "train", *words, "--out", str(tmp_path / "run"))
    assert (code, err.count("\n")) == (2, 1), err
    assert "constant" in err
    assert not (tmp_path / "run").exists()


COMMANDS = re.findall(
    r"^\$ tacit (.*)$",
    DOCS.read_text().split("## In one process", 1)[1].split("```python", 1)[0],
    re.M,
)


def test_there_are_commands_to_copy():
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_documentation_run(capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    words = shlex.split(line)
    more = ["--epochs", "3", "--threads", "1"] if words[0] == "train" else []
    code, _, err = tacit(capsys, *words, *more)
    assert code == 0, err


def test_the_list_of_heads(capsys):
    rows = printed(capsys, "list", "heads")["heads"]
    assert [row["name"] for row in rows] == ["net", "sklearn"]
    code, out, _ = tacit(capsys, "list", "heads")
    assert code == 0
    assert "sklearn:Name" in out
