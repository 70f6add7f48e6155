"""Runs that could only mislead are refused before they begin, and leave nothing behind."""

import json
import tomllib

import numpy as np
import pytest
import torch

from parties import Pair, Quartet, configure, train_here
from party_processes import Running, Training
from tacit.accounting import recommend
from tacit.cli import main
from tacit.cli.init import make_pair
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import key_of
from tacit.experiment.sweep_worker import TRAIN, perform

ROWS = 120


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def table(folder, *, parties=False, days=None):
    """Write a table of four columns, which may say who owns them and when its rows were made."""
    rng = np.random.default_rng(0)
    rows = [[*rng.normal(size=4).round(4).tolist(), n % 2] for n in range(ROWS)]
    header, schema = "a,b,c,d,y", 'label = "y"\nnumeric = ["a", "b", "c", "d"]\n'
    if days is not None:
        header += ",t"
        rows = [[*row, 86_400 * day] for row, day in zip(rows, days, strict=True)]
        schema += 'time = "t"\n'
    if parties:
        schema += '[parties]\nshop = ["a", "b", "c"]\nbureau = ["d"]\n'
    path = folder / "table.csv"
    path.write_text(f"{header}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    (folder / "table.csv.schema.toml").write_text(schema)
    return str(path)


def train(capsys, *words):
    code = main(["train", "--epochs", "1", "--threads", "1", *map(str, words)])
    return (code, *capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "days", "said"),
    [
        (["--batch-size", 500], None, "so there would be no step: take --batch-size"),
        (["--batch-size", 100, "--hold-out", 0.4], None, "so there would be no step"),
        (["--batch-size", 64, "--parties", 7], None, "from 1 to 4 parties, got 7"),
        (["--batch-size", 16, "--stream"], None, "leave it out, or name the column"),
        (["--batch-size", 64, "--stream"], 4, "no day of table.csv has so many rows: take"),
        (["--batch-size", 64, "--stream"], 1, "only one day of table.csv has so many rows"),
        (["--batch-size", 16, "--protect", "none", "--budget", "auc=0.7"], None, "claims nothing"),
        (["--batch-size", 16, "--model", "mlp", "--layers", "--parties", 2], None, "--parties 1"),
    ],
)
@pytest.mark.parametrize("record", [[], ["--record"]])
def test_a_refused_run_exits_2_and_leaves_nothing(tmp_path, capsys, words, days, said, record):
    split = None if days is None else [n * days // ROWS for n in range(ROWS)]
    out = tmp_path / "run"
    given = ["--dataset", table(tmp_path, days=split), "--out", out, *record, *words]
    code, shown, err = train(capsys, *given)
    assert (code, shown) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_way_out_of_a_stream_trains_and_tests(tmp_path, capsys):
    path = table(tmp_path, days=[n * 3 // ROWS for n in range(ROWS)])
    _, _, err = train(capsys, "--dataset", path, "--stream", "--batch-size", 64)
    size = err.split("take --batch-size ")[1].split()[0]
    code, out, _ = train(capsys, "--dataset", path, "--stream", "--batch-size", size, "--json")
    found = json.loads(out)
    assert (code, found["steps"]) == (0, 3)
    assert [part["test"] is None for part in found["history"]] == [True, False, False]


def test_a_trial_of_a_sweep_without_steps_fails_with_the_way_out(tmp_path):
    config = {"dataset": table(tmp_path), "batch_size": 500, "epochs": 1}
    ended = perform({"task": TRAIN, "config": config})
    assert ended["state"] == "failed"
    assert "take --batch-size" in ended["error"]


@pytest.mark.parametrize("model", [[], ["--model", "mlp(hidden=4)"]])
@pytest.mark.parametrize("parties", [[], ["--parties", 2]])
def test_a_schema_that_names_two_parties_trains_with_both(tmp_path, capsys, model, parties):
    out = tmp_path / "run"
    words = ["--dataset", table(tmp_path, parties=True), "--batch-size", 16, *model, *parties]
    code, _, err = train(capsys, *words, "--out", out)
    assert code == 0, err
    assert json.loads((out / "results.json").read_text())["parties"] == 2
    assert {p.name for p in out.glob("feature_party_*")} == {
        "feature_party_0.safetensors",
        "feature_party_1.safetensors",
    }
    again, _, err = train(capsys, "--config", out / "config.toml")
    assert again == 0, err


@pytest.mark.parametrize("parties", [1, 3])
def test_another_number_than_the_schema_names_is_refused(tmp_path, capsys, parties):
    words = ["--dataset", table(tmp_path, parties=True), "--batch-size", 16, "--parties", parties]
    code, _, err = train(capsys, *words, "--out", tmp_path / "run")
    assert code == 2
    assert f"names 2 parties, got {parties}: ask for 2" in err
    assert not (tmp_path / "run").exists()


def test_a_sweep_finds_what_was_kept_before_parties_could_be_left_out():
    assert key_of(TrainConfig(), TRAIN) == key_of(TrainConfig(parties=1), TRAIN)
    assert key_of(TrainConfig(), TRAIN) != key_of(TrainConfig(parties=2), TRAIN)


def test_a_run_that_leaks_says_so_in_its_log_and_in_its_results(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--dataset", table(tmp_path), "--batch-size", 16, "--monitor-every", 1]
    code, _, err = train(capsys, *words, "--epochs", 3, "--out", out)
    assert code == 0
    verdict = json.loads((out / "results.json").read_text())["verdict"]
    assert verdict["state"] == "leaks"
    assert verdict["text"].startswith("Labels leak after 3 epochs: ")
    assert recommend(target=0.65, epochs=3, examples=1)[0].protect in verdict["text"]
    assert verdict["text"] in err


# --- between companies ----------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["bank", "platform"])
@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_table_that_cannot_fill_a_batch_is_refused_before_anyone_is_waited_for(
    tmp_path, capsys, party, check
):
    pair = Pair(tmp_path / "run", rows=200, batch_size=512, wait=600)
    assert main(["party", str(pair.folder / party / "party.toml"), *check]) == 2
    said = capsys.readouterr().err
    assert "fewer than one batch of 512, so there would be no step" in said


def test_two_feature_parties_with_one_number_are_refused(tmp_path):
    run = Quartet(
        tmp_path / "run",
        bank={"protect": "none", "attacks": []},
        epochs=1,
        batch_size=32,
    )
    configure(run.folder / "bureau" / "party.toml", number=0)
    with Training(run) as training:
        assert training.running["bureau"].end() == 2
        assert "bureau has number 0, and is number 1 of platform, bureau, registry" in (
            training.running["bureau"].said
        )
        assert not run.releases()
        configure(run.folder / "bureau" / "party.toml", number=1)
        training.start("bureau")
        training.finish()


def test_the_sample_is_protected_for_all_of_its_epochs(tmp_path):
    bank, platform = make_pair(tmp_path / "trial", address="127.0.0.1:1", rows=200)
    settings = tomllib.loads(bank.read_text())
    assert tomllib.loads(platform.read_text())["epochs"] == settings["epochs"]
    noise, labels = recommend(target=0.65, epochs=settings["epochs"], examples=200)
    assert settings["protect"] == noise.protect
    text = bank.read_text()
    assert f"tacit recommend --target 0.65 --epochs {settings['epochs']} --examples 200" in text
    for line in (f'labels = "{labels.labels}"', f'budget = "{noise.budget}"'):
        assert f"# {line}" in text
    # What stands there as a comment can be uncommented.
    from tacit.party.budget_plan import plan_party
    from tacit.party.config import read_party_config

    bank.write_text(text.replace("# budget", "budget"))
    assert plan_party(read_party_config(bank), classes=2).allowed == settings["epochs"]


def test_a_party_without_protection_is_told_one_for_its_epochs(tmp_path, capsys):
    pair = Pair(tmp_path / "run", epochs=7)
    configure(pair.bank, protect=None)
    assert main(["party", str(pair.bank)]) == 2
    advised = recommend(target=0.65, epochs=7, examples=1)[0].protect
    assert f'write protect = "{advised}", which is planned for 7 epochs' in capsys.readouterr().err


def test_a_label_party_says_in_the_end_what_leaked_and_keeps_it(tmp_path, monkeypatch):
    bank = {"protect": "none", "attacks": ["norm"], "monitor_every": 1}
    pair = Pair(tmp_path / "run", bank=bank, epochs=2, batch_size=32)
    train_here(pair, monkeypatch)
    kept = pair.read("bank", "results.json")
    verdict = kept["verdict"]
    assert verdict["state"] == "leaks"
    assert "memory reaches" in verdict["text"]
    assert recommend(target=0.65, epochs=2, examples=1)[0].protect in verdict["text"]
    assert "verdict" not in pair.read("platform", "results.json")
    # A process that starts after the end has seen no release, and still does not forget it.
    with Running(pair.bank) as again:
        assert again.end() == 0
    assert "Labels leak after 2 epochs: memory reaches" in again.said
    assert pair.read("bank", "results.json")["memory_leak"] == kept["memory_leak"]
