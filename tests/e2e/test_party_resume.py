"""Processes that are killed in the middle of a training, and the run that ends as if none was."""

import os

import pytest

from parties import Pair, differences, train_here
from party_processes import Running, Training, both_end, wait_until
from tacit.cli import main

STEP = r"step \d+ of \d+"
MOMENTS = [
    ("platform", r"steps to go"),
    ("bank", STEP),
    ("platform", STEP),
    ("bank", r"epoch \d+: test"),
]


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pairs(tmp_path):
    """Two pairs of the same companies: one to disturb, one to compare with."""
    bank = {"protect": "marvell(s=4)", "attacks": ["norm"], "monitor_every": 4}
    disturbed = Pair(tmp_path / "one", rows=1000, epochs=2, batch_size=16, save_every=12, bank=bank)
    return disturbed, disturbed.copy(tmp_path / "other")


def test_killed_at_every_kind_of_moment(pairs, monkeypatch):
    """One side at a time, then both at once; each of them comes back where it was."""
    disturbed, alone = pairs
    with Training(disturbed) as training:
        for party, moment in MOMENTS:
            training.running[party].wait_for(moment)
            training.kill(party)
            training.start(party)
        for party in ("bank", "platform"):
            training.running[party].wait_for(STEP)
        training.kill("bank", "platform")
        for party in ("bank", "platform"):
            training.start(party)
        training.finish()
    train_here(alone, monkeypatch)
    assert not differences(disturbed, alone)


def test_killed_while_it_saves(pairs, monkeypatch):
    """The label party dies with a checkpoint half written, the feature party with a whole one."""
    disturbed, alone = pairs
    saved = {party: disturbed.state(party) / "checkpoints" for party in ("bank", "platform")}
    with Training(disturbed) as training:
        wait_until(lambda: saved["bank"].is_dir() and _asides(saved["bank"]))
        training.kill("bank")
        training.start("bank").wait_for(STEP)
        wait_until(lambda: any(saved["platform"].glob("step-*")))
        training.kill("platform")
        training.start("platform")
        training.finish()
    train_here(alone, monkeypatch)
    assert not differences(disturbed, alone)
    assert not _asides(saved["bank"])


def _asides(folder):
    return [name for name in os.listdir(folder) if name.startswith(".aside-")]


def test_a_finished_run_is_finished_again(pairs, monkeypatch):
    """Both can be started once more, or one alone: nothing is released, the results stay."""
    pair, _ = pairs
    train_here(pair, monkeypatch)
    journal, before = pair.journal(), pair.read("bank", "results.json")
    with Running(pair.bank) as bank:
        bank.wait_for("listening on")
        with Running(pair.platform) as platform:
            both_end(bank, platform)
    together = pair.read("bank", "results.json")
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    assert main(["party", str(pair.bank)]) == 0
    alone = pair.read("bank", "results.json")
    assert pair.journal() == journal
    assert alone["ended"] == "finished; not every feature party said goodbye"
    kept = (
        "steps",
        "test",
        "history",
        "ledger",
        "allowed_again",
        "leak",
        "memory_leak",
        "certificate",
    )
    for name in kept:
        assert together[name] == alone[name] == before[name]
