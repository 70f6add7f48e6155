"""GAFM through the one training loop: in one process, and between companies that come back."""

import csv
import json

import numpy as np
import pytest
import torch

from parties import Pair, Quartet, configure, differences, same_bits, train_here
from tacit.cli import main
from tacit.errors import UsageError
from tacit.study.config import TrainConfig
from tacit.study.delta import DeltaRow, choose_delta, least_ratio, settled
from tacit.study.trial import run

SMALL = {"dataset": "breast_cancer", "model": "gafm_net", "objective": "gafm", "epochs": 4,
         "batch_size": 64, "lr": 0.01, "monitor_every": 50}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(**changed):
    return run(TrainConfig.of({**SMALL, **changed}))


def test_a_run_says_what_the_gradients_do_not_show():
    for seed in range(2):
        trial, found = trained(seed=seed, epochs=20, lr=0.002)
        test, record = found["test"], found["objective_record"]
        assert record["claim"].startswith("empirical only")
        assert found["certificate"]["assumption"].startswith("empirical only")
        raw = 1 - test["auc"] if record["flipped"] else test["auc"]
        assert test["raw_auc"] == raw
        assert test["sign_free_auc"] == max(raw, 1 - raw)
        assert test["auc"] > 0.8  # oriented by the labels it trained on
        assert found["embedding_leak"] > 0.8
        assert found["history"][-1]["embedding_leak"] == found["embedding_leak"]
        drawn = found["components"]
        assert set(drawn["gradients"]) == {"whole", "gan", "penalty"}
        assert len(drawn["label"]) == len(drawn["prediction"]) == len(drawn["gradients"]["gan"])
        assert all(0 <= value <= 1 for value in drawn["tvd"].values())
        assert drawn["joint_leak"] > 0.9  # one epoch's gradients beside their embeddings
        assert trial.label.learner.record()["fallback_batches"] == 0


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
    _, found = trained(parties=3, combine="mean", epochs=15)
    assert found["test"]["auc"] > 0.8
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
    command = ["train", "--dataset", "breast_cancer", "--model", "gafm_net", "--objective", "gafm",
               "--batch-size", "64", "--epochs", "1", "--json", *words]  # fmt: skip
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_delta_of_least_ratio_among_those_that_learn():
    rows = [DeltaRow(delta=d, ratio=r, ratios={}, train_auc=a)
            for d, r, a in ((0.05, 0.7, 0.59), (0.1, 0.8, 0.6), (0.2, 0.9, 0.99))]  # fmt: skip
    assert least_ratio(rows, tau=0.6) == 0.1
    with pytest.raises(UsageError, match=r"training AUC of 0.995.*0.990"):
        least_ratio(rows, tau=0.995)


def test_auto_is_replaced_by_what_trial_runs_choose():
    config = TrainConfig.of({**SMALL, "dataset": "ads", "rows": 900, "epochs": 8, "lr": 0.05,
                             "objective": "gafm(delta=auto, sigma=0.1)"})  # fmt: skip
    heard = []
    choice = choose_delta(config, deltas=(0.05, 0.5), repeats=2, tau=0.0, tell=heard.append)
    assert choice.delta == min(choice.rows, key=lambda row: row.ratio).delta
    assert len(heard) == 2
    for row in choice.rows:
        assert row.ratio == pytest.approx(np.mean(list(row.ratios.values())))
        assert 0.5 <= row.train_auc <= 1
    same, nothing = settled(TrainConfig.of(SMALL), tell=heard.append)
    assert (same.objective, nothing) == ("gafm", None)


BANK = {"protect": "marvell(s=4)", "objective": "gafm(delta=0.1)", "attacks": ["norm"],
        "monitor_every": 4}  # fmt: skip


def pair(folder, **more):
    return Pair(folder, rows=400, batch_size=32, save_every=5, model="gafm_net", epochs=2,
                bank={**BANK, **more})  # fmt: skip


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
    four = Quartet(tmp_path / "four", rows=300, batch_size=64, model="gafm_net", epochs=1,
                   combine="mean", bank=BANK)  # fmt: skip
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


def test_new_rows_are_scored_the_right_way_round(tmp_path, monkeypatch):
    """``tacit predict`` has the orientation that training ended with."""
    from threading import Thread

    from tacit.study.party_config import read_party_config
    from tacit.study.predicting import predict_rows

    companies = pair(tmp_path / "pair", protect="none")
    for file in (companies.bank, companies.platform):
        configure(file, epochs=4, lr=0.01, wait=30)
    train_here(companies, monkeypatch)
    results = companies.read("bank", "results.json")
    monkeypatch.undo()
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    out, found = tmp_path / "scores.csv", {}

    def work(file, rows):
        config = read_party_config(file)
        found[config.role] = predict_rows(config, rows, out, log=lambda _: None)

    sides = [Thread(target=work, args=(companies.bank, companies.bank.parent / "labels.csv")),
             Thread(target=work, args=(companies.platform,
                                       companies.platform.parent / "features.csv"))]  # fmt: skip
    for side in sides:
        side.start()
    for side in sides:
        side.join(timeout=60)
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == found["label"]["rows"]
    assert found["label"]["test"]["auc"] > 0.5
    json.dumps(results)
