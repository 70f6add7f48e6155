"""The epoch that is kept: the best on held-out rows, by nothing but the labels in use."""

import dataclasses

import numpy as np
import pytest
import torch

from tacit import data, measure
from tacit.cli import main
from tacit.errors import UsageError
from tacit.experiment.batches import held_out
from tacit.experiment.config import TrainConfig
from tacit.experiment.model_selection import Selection
from tacit.experiment.run import Experiment, run
from tacit.guard import Guard
from tacit.training import predict

RR = "rr(epsilon=0.5754)"
SMALL = {
    "dataset": "breast_cancer",
    "model": "mlp(hidden=16)",
    "epochs": 4,
    "batch_size": 64,
    "lr": 1e-2,
    "attacks": (),
    "hold_out": 0.3,
}


def trained(**more):
    return run(TrainConfig.of({**SMALL, **more}))


def weights(trial):
    return [
        value
        for model in (trial.features[0].bottom, trial.label.top)
        for value in model.state_dict().values()
    ]


def held_scores(trial):
    """Return the model's scores of held-out rows."""
    places = torch.from_numpy(trial.held_rows)
    return predict(places, features=trial.features, label=trial.label).numpy()


def test_the_kept_weights_are_those_of_the_chosen_epoch():
    trial, results = trained(labels=RR, seed=3)
    chosen = results["selected"]
    assert 1 <= chosen["epoch"] < 4, "the seed is meant to choose an epoch before the last"
    assert chosen["step"] == chosen["epoch"] * (trial.steps // 4)
    assert results["steps"] == trial.steps
    assert results["test"] == results["history"][chosen["epoch"] - 1]["test"]
    assert results["test"] == trial.score(trial.test_rows)
    _, shorter = trained(labels=RR, seed=3, epochs=chosen["epoch"])
    assert shorter["selected"] == chosen


@pytest.mark.parametrize(("labels", "judge"), [(None, "true labels"), (RR, "randomised labels")])
def test_the_score_is_by_the_labels_that_the_label_party_trains_on(labels, judge):
    trial, results = trained(labels=labels)
    chosen = results["selected"]
    assert (chosen["measure"], chosen["judged_by"]) == ("auc", judge)
    truth = torch.from_numpy(np.array(trial.table.labels))
    if labels is not None:
        truth = trial.label.guard.labels(torch.arange(len(truth)), truth).hard
    expected = measure.auc(held_scores(trial), truth.numpy()[trial.held_rows])
    assert chosen["score"] == expected
    assert chosen["rows"] == len(trial.held_rows)


def other_truth(monkeypatch, **more):
    """Train with true labels of held-out rows turned round, their randomised ones as before."""
    held = Experiment(TrainConfig.of({**SMALL, **more})).held_rows
    load, randomise = data.load, Guard.labels

    def turned(*words, **named):
        table = load(*words, **named)
        labels = np.array(table.labels)
        labels[held] = 1 - labels[held]
        return dataclasses.replace(table, labels=labels)

    def as_before(guard, ids, y):
        first = y.clone()
        first[held] = 1 - first[held]
        return randomise(guard, ids, first)

    with monkeypatch.context() as patch:
        patch.setattr(data, "load", turned)
        patch.setattr(Guard, "labels", as_before)
        return trained(**more)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_one_group_are_held_out_as_one(seed):
    draws = np.random.default_rng(seed)
    groups = draws.integers(0, 120, 500)
    rows = draws.permutation(500)[:400]  # the training rows of the table, shuffled
    train, held = held_out(rows, 0.1, groups=groups)
    assert not set(groups[train]) & set(groups[held])
    assert 40 <= len(held) < 40 + np.bincount(groups).max()
    assert sorted([*train, *held]) == sorted(rows)


def test_groups_of_one_row_each_change_nothing():
    rows = np.random.default_rng(0).permutation(50)
    plain, grouped = held_out(rows, 0.1), held_out(rows, 0.1, groups=np.arange(50))
    assert all(np.array_equal(a, b) for a, b in zip(plain, grouped, strict=True))
    assert len(held_out(rows, None, groups=np.arange(50))[1]) == 0


def test_true_labels_of_held_out_rows_do_not_matter_where_labels_are_randomised(monkeypatch):
    trial, results = trained(labels=RR, seed=3)
    again, other = other_truth(monkeypatch, labels=RR, seed=3)
    assert not np.array_equal(trial.table.labels, again.table.labels)
    assert other["selected"] == results["selected"]
    assert all(torch.equal(a, b) for a, b in zip(weights(trial), weights(again), strict=True))


def test_they_do_matter_where_labels_are_not_randomised(monkeypatch):
    _, results = trained(seed=3)
    _, other = other_truth(monkeypatch, seed=3)
    assert other["selected"] != results["selected"]


def test_held_out_rows_are_neither_trained_on_nor_tested_on_and_are_charged_like_all():
    trial, results = trained(labels=RR, budget="epsilon=1")
    seen = np.unique(
        np.concatenate([b for part in trial.schedule.parts(first=0) for b in part.batches])
    )
    assert not np.intersect1d(seen, trial.held_rows).size
    assert not np.intersect1d(trial.test_rows, trial.held_rows).size
    assert results["ledger"]["examples"] == len(trial.table)
    assert results["label_certificate"]["epsilon"] == pytest.approx(0.5754)


def test_many_classes_are_judged_by_accuracy():
    _, results = trained(dataset="digits", epochs=1, labels="rr(epsilon=3)")
    assert results["selected"]["measure"] == "accuracy"


def test_without_held_out_rows_nothing_is_selected():
    assert trained(hold_out=None, epochs=1)[1]["selected"] is None


def test_the_summary_says_which_epoch_was_kept_and_by_which_labels(capsys):
    flags = ["--dataset", "breast_cancer", "--epochs", "1", "--batch-size", "64"]
    assert main(["train", *flags, "--hold-out", "0.3", "--labels", RR]) == 0
    assert "epoch kept, by randomised labels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--hold-out", "0.9"], "hold_out = 0.9"),
        (["--hold-out", "0.1", "--stream"], "--hold-out is for epochs"),
        (["--hold-out", "0.1", "--budget", "auc=0.7"], "needs --labels"),
        (["--hold-out", "0.0001", "--dataset", "breast_cancer"], "hold out more"),
        (["--weight-decay", "-1"], "weight_decay = -1"),
        (["--bins", "1"], "bins = 1"),
    ],
)
def test_misuse_is_refused_in_one_line(capsys, flags, reason):
    assert main(["train", *flags]) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1


def test_held_out_rows_of_one_class_are_refused():
    trial, _ = trained(hold_out=None, epochs=1)
    positives = np.flatnonzero(np.asarray(trial.table.labels) == 1)
    labels = torch.from_numpy(np.array(trial.table.labels))
    with pytest.raises(UsageError, match="one class only: hold out more"):
        Selection(positives[:9], labels, features=trial.features, label=trial.label)


def test_weight_decay_is_a_penalty_on_both_sides():
    plain, _ = trained(hold_out=None, epochs=2)
    small, _ = trained(hold_out=None, epochs=2, weight_decay=0.5)
    for a, b in zip(weights(plain), weights(small), strict=True):
        if a.dim() == 2:
            assert b.norm() < a.norm()


@pytest.mark.parametrize("correction", ["debiased", "forward"])
def test_three_hundred_epochs_on_randomised_labels_do_not_explode(correction):
    labels = f"rr(epsilon=0.5754, correction={correction})"
    trial, results = trained(labels=labels, epochs=300, batch_size=256, lr=1e-3, hold_out=None)
    losses = np.array([part["loss"] for part in results["history"]])
    keep = 1 / (1 + np.exp(-0.5754))
    least = -10 * (1 - keep) / (2 * keep - 1) if correction == "debiased" else 0
    assert ((losses > least - 1e-3) & (losses < 2)).all()
    assert max(float(value.abs().max()) for value in weights(trial)) < 3
