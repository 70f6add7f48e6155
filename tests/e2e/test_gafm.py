"""GAFM through the one training loop: in one process, and between companies that come back."""

import csv
import json
from threading import Thread

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from parties import Pair, Quartet, configure, differences, same_bits, train_here
from tacit.cli import main
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.gafm_delta import DeltaRow, choose_delta, least_ratio, settled
from tacit.experiment.run import run
from tacit.measure import null_band
from tacit.party import checkpoint
from tacit.party.config import read_party_config
from tacit.party.predict import predict_rows

SMALL = {
    "dataset": "breast_cancer",
    "model": "gafm_net",
    "objective": "gafm",
    "epochs": 4,
    "batch_size": 64,
    "lr": 0.01,
    "monitor_every": 50,
}


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(**changed):
    return run(TrainConfig.of({**SMALL, **changed}))


def beyond_chance(values, labels):
    """Whether scores of several runs are better, on average, than what knows nothing.

    Such an AUC exceeds the band of the labels once in half a million draws; the mean of several
    independent ones stays within the band over their square root.
    """
    width = null_band(labels, level=0.999999).high - 0.5
    return np.mean(values) > 0.5 + width / len(values) ** 0.5


def test_a_run_says_what_the_gradients_do_not_show():
    aucs, leaks, joint = [], [], []
    for seed in range(3):
        trial, found = trained(seed=seed, epochs=20, lr=0.002)
        test, record = found["test"], found["objective_record"]
        assert record["claim"].startswith("empirical only")
        assert found["certificate"]["assumption"].startswith("empirical only")
        raw = 1 - test["auc"] if record["flipped"] else test["auc"]
        assert test["raw_auc"] == raw
        assert test["sign_free_auc"] == max(raw, 1 - raw)
        aucs.append(test["auc"])
        leaks.append(found["embedding_leak"])
        joint.append(found["components"]["joint_leak"])
        assert found["history"][-1]["embedding_leak"] == found["embedding_leak"]
        drawn = found["components"]
        assert set(drawn["gradients"]) == {"whole", "gan", "penalty"}
        assert len(drawn["label"]) == len(drawn["prediction"]) == len(drawn["gradients"]["gan"])
        assert all(0 <= value <= 1 for value in drawn["tvd"].values())
        assert trial.label.learner.record()["fallback_batches"] == 0
    truth = trial.table.labels[trial.test_rows]
    assert beyond_chance(aucs, truth)  # oriented by the labels it trained on
    assert beyond_chance(leaks, truth)
    assert beyond_chance(joint, drawn["label"])  # one epoch's gradients beside their embeddings


def test_a_plain_objective_claims_nothing_of_the_kind():
    _, found = trained(objective="bce", epochs=1)
    assert found["objective_record"] == {}
    assert "raw_auc" not in found["test"]
    assert set(found["components"]["gradients"]) == {"whole"}
    _, wide = trained(objective="bce", model="mlp", epochs=1)
    assert wide["embedding_leak"] is None
    assert wide["components"] is None


def test_marvell_can_follow_and_has_its_own_certificate():
    _, found = trained(protect="marvell(s=4)", epochs=2)
    assert found["certificate"]["sum_kl"] > 0
    assert found["objective_record"]["claim"].startswith("empirical only")


def test_three_feature_parties_are_averaged():
    """At a rate at which training settles: with a larger one the end is a matter of luck."""
    runs = [trained(parties=3, combine="mean", epochs=15, lr=0.002, seed=seed) for seed in range(3)]
    truth = runs[0][0].table.labels[runs[0][0].test_rows]
    assert beyond_chance([found["test"]["auc"] for _, found in runs], truth)
    with pytest.raises(UsageError, match="combine them by mean"):
        trained(parties=3, combine="sum")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--objective", "gafm(delta=0.7)"], "delta must be in [0, 0.5], or auto, got 0.7"),
        (["--dataset", "digits"], "10 classes and need ce"),
        (["--model", "mlp"], "one number wide"),
        (["--labels", "rr(epsilon=1, correction=forward)"], "correction=debiased"),
        (
            ["--objective", "gafm(delta=auto)", "--labels", "rr(epsilon=1)"],
            "give delta as a number",
        ),
    ],
)
def test_one_clear_line_for_what_does_not_fit(words, said, capsys):
    command = [
        "train",
        "--dataset",
        "breast_cancer",
        "--model",
        "gafm_net",
        "--objective",
        "gafm",
        "--batch-size",
        "64",
        "--epochs",
        "1",
        "--json",
        *words,
    ]
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_delta_of_least_ratio_among_those_that_learn():
    rows = [
        DeltaRow(delta=d, ratio=r, ratios={}, train_auc=a)
        for d, r, a in ((0.05, 0.7, 0.59), (0.1, 0.8, 0.6), (0.2, 0.9, 0.99))
    ]
    assert least_ratio(rows, tau=0.6) == 0.1
    with pytest.raises(UsageError, match=r"training AUC of 0.995.*0.990"):
        least_ratio(rows, tau=0.995)


def test_auto_is_replaced_by_what_trial_runs_choose():
    config = TrainConfig.of(
        {
            **SMALL,
            "dataset": "ads",
            "rows": 900,
            "epochs": 8,
            "lr": 0.05,
            "objective": "gafm(delta=auto, sigma=0.1)",
        }
    )
    heard = []
    choice = choose_delta(config, deltas=(0.05, 0.5), repeats=2, tau=0.0, tell=heard.append)
    assert choice.delta == min(choice.rows, key=lambda row: row.ratio).delta
    assert len(heard) == 2
    for row in choice.rows:
        assert row.ratio == pytest.approx(np.mean(list(row.ratios.values())))
        assert 0.5 <= row.train_auc <= 1
    same, nothing = settled(TrainConfig.of(SMALL), tell=heard.append)
    assert (same.objective, nothing) == ("gafm", None)


BANK = {
    "protect": "marvell(s=4)",
    "objective": "gafm(delta=0.1)",
    "attacks": ["norm"],
    "monitor_every": 4,
}


def pair(folder, **more):
    return Pair(
        folder,
        rows=400,
        batch_size=32,
        save_every=5,
        model="gafm_net",
        epochs=2,
        bank={**BANK, **more},
    )


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, monkeypatch):
    """The discriminator, its optimiser and the orientation come back from the checkpoint."""
    whole = pair(tmp_path / "whole")
    parted = whole.copy(tmp_path / "parted")
    for file in (parted.bank, parted.platform):
        configure(file, epochs=1)
    train_here(parted, monkeypatch)
    held, _ = parted.checkpoint("bank")
    assert "discriminator.lean" in held["model"]
    for file in (parted.bank, parted.platform):
        configure(file, epochs=2)
    train_here(parted, monkeypatch)
    train_here(whole, monkeypatch)
    assert not differences(parted, whole)
    other = whole.checkpoint("bank")[0]["model"]
    assert not same_bits(held["model"], other)
    results = whole.read("bank", "results.json")
    assert results["objective"] == "gafm(delta=0.1)"
    assert results["objective_record"]["claim"].startswith("empirical only")
    assert results["embedding_leak"] == whole.history()["1"]["embedding_leak"] is not None
    assert set(results["test"]) >= {"auc", "raw_auc", "sign_free_auc"}


def test_companies_that_are_averaged_and_settings_that_do_not_fit(tmp_path, monkeypatch):
    four = Quartet(
        tmp_path / "four",
        rows=300,
        batch_size=64,
        model="gafm_net",
        epochs=1,
        combine="mean",
        bank=BANK,
    )
    train_here(four, monkeypatch)
    assert four.read("bank", "results.json")["ended"] == "finished"
    for number, (setting, said) in enumerate(
        (
            ({"combine": "sum"}, "combine them by mean"),
            ({"objective": "gafm(delta=auto)"}, "tacit train"),
            ({"model": "mlp"}, "one number wide"),
        )
    ):
        wrong = four.copy(tmp_path / f"wrong {number}")
        configure(wrong.bank, **setting)
        with pytest.raises(UsageError, match=said):
            train_here(wrong, monkeypatch)


def turn_round(pair):
    """Write the other orientation into the label party's last checkpoint."""
    folder = max(pair.state("bank").glob("checkpoints/step-*"))
    files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    held = load(files["model.safetensors"])
    held["discriminator.lean"] = np.asarray(-held["discriminator.lean"])
    files["model.safetensors"] = save(held)
    facts = json.loads((folder / "manifest.json").read_text())
    kept = {name: fact for name, fact in facts.items() if name not in ("digest", "files")}
    (folder / "model.safetensors").write_bytes(files["model.safetensors"])
    (folder / "manifest.json").write_bytes(checkpoint._manifest(kept, files))


def scored(pair, out):
    """Let both companies score their own files; return the scores and the label party's record."""
    found = {}

    def work(file, rows):
        config = read_party_config(file)
        found[config.role] = predict_rows(config, rows, out, log=lambda _: None)

    files = ((pair.bank, "labels.csv"), (pair.platform, "features.csv"))
    sides = [Thread(target=work, args=(file, file.parent / name)) for file, name in files]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    with out.open() as file:
        scores = {row["id"]: float(row["score"]) for row in csv.DictReader(file)}
    return scores, found["label"]


def test_new_rows_are_scored_the_right_way_round(tmp_path, monkeypatch):
    """``tacit predict`` has the orientation that training ended with."""
    companies = pair(tmp_path / "pair", protect="none")
    for file in (companies.bank, companies.platform):
        configure(file, wait=60)
    train_here(companies, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    scores, found = scored(companies, tmp_path / "scores.csv")
    assert len(scores) == found["rows"] > 0
    turn_round(companies)
    other, turned = scored(companies, tmp_path / "other.csv")
    assert other == pytest.approx({id_: 1 - score for id_, score in scores.items()}, abs=1e-6)
    assert turned["test"]["auc"] == pytest.approx(1 - found["test"]["auc"], abs=1e-6)
    assert not all(score == 0.5 for score in scores.values())
