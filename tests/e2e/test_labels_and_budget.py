"""Label mechanisms and budgets as flags of a training."""

import json

import pytest

from tacit.cli import main

SMALL = ["--dataset", "ads", "--rows", "4000", "--model", "mlp", "--batch-size", "512",
         "--threads", "1"]  # fmt: skip


def train(capsys, *words):
    code = main(["train", *SMALL, *words, "--json"])
    out, err = capsys.readouterr()
    return code, (json.loads(out) if code == 0 else None), err


@pytest.mark.parametrize("spec", ["rr(epsilon=0.575)", "rr(epsilon=0.575, correction=forward)"])
def test_randomised_labels_do_not_wear_out(capsys, spec):
    code, found, _ = train(capsys, "--labels", spec, "--epochs", "6")
    assert code == 0
    assert found["labels"] == spec
    assert found["label_certificate"]["auc"] == pytest.approx(0.64, abs=0.001)
    grown = [part["memory_leak"] for part in found["history"]]
    assert max(grown) < 0.68  # 0.64 and what 360 positives allow, after one epoch and after six


def test_a_budget_ends_training_before_it_is_overrun(capsys):
    words = ("--protect", "marvell(s=4, covariance=full)", "--budget", "auc=0.85", "--epochs", "9")
    code, found, _ = train(capsys, *words)
    assert code == 0
    assert 0 < found["steps"] < 9 * 7
    assert found["ledger"]["auc_bound"] <= 0.85
    assert "auc=0.85" in found["stopped"]
    assert not found["interrupted"]


def test_a_budget_covers_labels_for_any_number_of_epochs(capsys):
    words = ("--labels", "rr(epsilon=0.5)", "--budget", "epsilon=0.5", "--epochs", "2")
    code, found, _ = train(capsys, *words)
    assert code == 0
    assert found["stopped"] is None
    assert found["ledger"]["epsilon"] == pytest.approx(0.5)


def test_the_plan_is_told_beforehand(capsys):
    words = [
        "--protect",
        "marvell(s=4, covariance=full)",
        "--budget",
        "sum_kl=100",
        "--epochs",
        "3",
    ]
    assert main(["train", *SMALL, *words]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "3 epochs of sumKL" in shown
    assert "or rr(epsilon=" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "rr(epsilon=0)"], "epsilon"),
        (["--labels", "r(epsilon=1)"], "did you mean 'rr'"),
        (["--labels", "rr_prior(epsilon=1, stages=2)"], "needs three classes or more"),
        (["--budget", "auc=2"], "auc"),
        (["--budget", "money=1"], "auc=0.70, sum_kl=0.5 or epsilon=1"),
        (["--labels", "rr(epsilon=2)", "--budget", "epsilon=1"], "epsilon"),
    ],
)
def test_mistakes_get_one_line(capsys, words, message):
    code, _, err = train(capsys, *words)
    assert code in (1, 2)
    assert message in err
    assert err.count("\n") == 1


def test_a_protection_without_a_certificate_is_refused_by_name(capsys):
    code, found, _ = train(capsys, "--protect", "iso(t=1)", "--budget", "auc=0.9")
    assert code == 0
    assert found["steps"] == 0
    assert "iso(t=1)" in found["stopped"]


def test_lists_and_recommendations(capsys):
    assert main(["list", "labels", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["labels"]]
    assert names == ["rr", "gaussian_labels", "rr_prior"]
    assert main(["recommend", "--target", "0.65", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendations"]
    assert found[0]["protect"] == "marvell(sum_kl=0.0148, covariance=full)"
    assert found[1]["labels"] == "rr(epsilon=0.619)"
