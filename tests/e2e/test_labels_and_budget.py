"""Label mechanisms and budgets as flags of a training."""

import json

import numpy as np
import pytest

from tacit.cli import main
from tacit.data import load
from tacit.measure import null_band

SMALL = [
    "--dataset",
    "ads",
    "--rows",
    "4000",
    "--model",
    "mlp",
    "--batch-size",
    "512",
    "--threads",
    "1",
]


def train(capsys, *words):
    code = main(["train", *SMALL, *words, "--json"])
    out, err = capsys.readouterr()
    return code, (json.loads(out) if code == 0 else None), err


@pytest.mark.parametrize("spec", ["rr(epsilon=0.575)", "rr(epsilon=0.575, correction=forward)"])
def test_randomised_labels_do_not_wear_out(capsys, spec):
    """The AUC of one randomised label, and what the draw of the examples and flips allows."""
    last = []
    for seed in range(3):
        code, found, _ = train(capsys, "--labels", spec, "--epochs", "6", "--seed", str(seed))
        assert code == 0
        assert found["labels"] == spec
        assert found["label_certificate"]["auc"] == pytest.approx(0.64, abs=0.001)
        last.append(found["history"][-1]["memory_leak"])
    rows = load("ads", rows=4000).labels
    room = null_band(rows, level=0.999999).high - 0.5  # wider than that of an AUC of 0.64
    assert np.mean(last) < 0.64 + room / len(last) ** 0.5


def test_a_budget_ends_training_before_it_is_overrun(capsys):
    spec = "marvell(sum_kl=0.2, covariance=full)"
    words = ("--protect", spec, "--budget", "auc=0.85", "--epochs", "9")
    code, found, _ = train(capsys, *words)
    assert code == 0
    assert found["planned"]["allowed"] == 4  # of sum_kl 0.2 each, within 0.818
    assert found["steps"] == 4 * 7
    assert found["ledger"]["auc_bound"] <= 0.85
    assert "the budget auc=0.85 has room for 4 epochs" in found["stopped"]
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
        "marvell(sum_kl=0.2, covariance=full)",
        "--budget",
        "sum_kl=0.4",
        "--epochs",
        "3",
    ]
    assert main(["train", *SMALL, *words]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "3 epochs of sumKL 0.2" in shown
    assert "the budget sum_kl=0.4 has room for 2 epochs" in shown
    assert "or labels rr(epsilon=" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "rr(epsilon=0)"], "epsilon"),
        (["--labels", "r(epsilon=1)"], "did you mean 'rr'"),
        (["--labels", "rr_prior(epsilon=1, stages=2)"], "needs three classes or more"),
        (["--budget", "auc=2"], "auc"),
        (["--stream"], "no day of ads has so many rows"),
        (["--budget", "money=1"], "auc=0.70, sum_kl=0.5 or epsilon=1"),
        (["--labels", "rr(epsilon=2)", "--budget", "epsilon=1"], "rr(epsilon=2) alone is more"),
        (["--protect", "iso(t=1)", "--budget", "auc=0.9"], "iso(t=1) claims nothing"),
        (["--protect", "none", "--budget", "auc=0.9"], "none claims nothing"),
        (["--protect", "marvell(s=4, covariance=full)", "--budget", "auc=0.9"], "sum_kl=0.244"),
        (["--protect", "marvell(sum_kl=0.05)", "--budget", "auc=0.9"], "covariance=full"),
        (["--protect", "marvell(sum_kl=1, covariance=full)", "--budget", "auc=0.6"], "first step"),
    ],
)
def test_mistakes_get_one_line(capsys, words, message):
    code, _, err = train(capsys, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_lists_and_recommendations(capsys):
    assert main(["list", "labels", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["labels"]]
    assert names == ["rr", "gaussian_labels", "rr_prior"]
    assert main(["recommend", "--target", "0.65", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendations"]
    assert found[0]["protect"] == "marvell(sum_kl=0.0148, covariance=full)"
    assert found[0]["budget"] == "auc=0.736"
    assert found[1]["labels"] == "rr(epsilon=0.619)"
    assert found[1]["budget"] == "epsilon=0.619"


def test_what_is_recommended_runs_to_its_end_under_the_budget_beside_it(capsys):
    assert main(["recommend", "--target", "0.65", "--epochs", "3", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["recommendations"][0]
    words = ("--protect", first["protect"], "--budget", first["budget"], "--epochs", "3")
    code, found, _ = train(capsys, *words)
    assert code == 0
    assert found["stopped"] is None
    assert found["steps"] == 3 * 7
