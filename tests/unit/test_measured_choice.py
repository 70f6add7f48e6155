"""Which way to protect labels comes first, out of what was measured."""

import json

import pytest

from tacit.audit.measured_choice import SILENT, UNPROTECTED, MeasuredChoice, ranked, ways
from tacit.cli import main


def choice(name, *, auc, leak=0.6, low=None):
    return MeasuredChoice(
        name=name,
        settings={},
        auc=auc,
        leak=leak,
        leak_low=leak - 0.02 if low is None else low,
        attack="memory",
        shown=2,
        columns=4,
        worst_input=("age", 0.9),
        seconds=1.0,
    )


FOUND = (
    choice(UNPROTECTED, auc=0.81, leak=1.0),
    choice(SILENT, auc=0.78, leak=0.5),
    choice("planned Marvell", auc=0.79),
    choice("randomised labels", auc=0.75, leak=0.7, low=0.69),
)


def order(**given):
    settings = {"target": 0.65, "hide_inputs": False, "images": False, **given}
    return [(one.name, one.rank) for one in ranked(FOUND, **settings)]


def test_silence_comes_first_on_tables_and_what_leaks_more_than_the_target_has_no_rank():
    assert order() == [
        (SILENT, 1),
        ("planned Marvell", 2),
        (UNPROTECTED, None),
        ("randomised labels", None),
    ]


def test_a_leak_whose_interval_reaches_the_target_is_not_ruled_out():
    assert dict(order(target=0.695))["randomised labels"] == 3


def test_on_images_the_best_model_within_the_target_comes_first():
    assert order(images=True)[0] == ("planned Marvell", 1)


def test_a_user_whose_features_are_secret_gets_no_silence():
    found = ranked(FOUND, target=0.65, hide_inputs=True, images=False)
    assert [one.name for one in found if one.rank] == ["planned Marvell"]
    (silent,) = [one for one in found if one.name == SILENT]
    assert silent.why == "ruled out: its embeddings show inputs"


def test_reasons_give_the_distance_to_the_best_and_what_was_found():
    why = {one.name: one.why for one in ranked(FOUND, target=0.65, hide_inputs=False, images=False)}
    assert why[SILENT].endswith("0.010 below the best AUC")
    assert why["randomised labels"] == "memory finds 0.700, above the target of 0.65"


def test_noise_is_planned_for_the_epochs_and_many_classes_have_no_noise():
    two = ways(target=0.65, epochs=20, examples=1000, classes=2)
    assert two["planned Marvell"]["protect"] == "marvell(sum_kl=0.0148, covariance=full)"
    assert two["planned Marvell"]["epochs"] == 20
    assert "planned Marvell" not in ways(target=0.65, epochs=20, examples=1000, classes=10)


@pytest.mark.slow
def test_the_command_measures_every_way_on_a_table(capsys):
    words = ["--dataset", "breast_cancer", "--epochs", "2", "--seed", "3"]
    assert main(["recommend", "--measure", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["measured"]
    assert {one["name"] for one in found} == {
        UNPROTECTED,
        SILENT,
        "planned Marvell",
        "randomised labels",
    }
    (silent,) = [one for one in found if one["name"] == SILENT]
    assert silent["leak"] == 0.5
    assert silent["attack"] == ""
    assert silent["rank"] == 1
    assert all(one["columns"] == 30 for one in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--measure"], "--measure needs --dataset"),
        (["--dataset", "ads"], "are for --measure"),
        (["--hide-inputs"], "are for --measure"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words, said, capsys):
    assert main(["recommend", *words]) == 2
    assert said in capsys.readouterr().err
