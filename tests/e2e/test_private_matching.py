"""Ids matched in private: what crosses the line, and a run that goes on with what it has."""

import shutil

import numpy as np
import pytest
import torch

import parties
from parties import Pair, Quartet, differences, train_here
from party_processes import Training
from tacit import data
from tacit.runtime.memory_line import memory_lines
from tacit.runtime.wrappers import Recording

SETTINGS = {"epochs": 2, "batch_size": 32, "save_every": 10, "matching": "private",
            "bank": {"protect": "marvell(s=4)", "attacks": []}}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kept(pair, party):
    """Return the ids that a party holds to be common, in the shared order."""
    name, role = ("labels.csv", "label") if party == "bank" else ("features.csv", "feature")
    table = data.load_party(pair.folder / party / name, role=role)
    return table.ids[np.load(pair.state(party) / "matching.npy")].tolist()


def listened(monkeypatch):
    """Return every frame of both directions, as it will have passed."""
    frames = []

    def dial(self):
        ours, theirs = memory_lines()
        self._lines.put(theirs)
        return Recording(ours, lambda _, frame: frames.append(frame))

    monkeypatch.setattr(parties._Meeting, "dial", dial)
    return frames


@pytest.mark.parametrize("matching", ["private", "clear"])
def test_no_id_crosses_the_line_in_private(tmp_path, monkeypatch, matching):
    frames = listened(monkeypatch)
    pair = Pair(tmp_path / "pair", **{**SETTINGS, "epochs": 1, "matching": matching})
    train_here(pair, monkeypatch)
    common = kept(pair, "platform")
    assert common == kept(pair, "bank")
    said = b"".join(frames)
    shown = [id_ for id_ in common if id_.encode() in said]
    assert len(shown) == (0 if matching == "private" else len(common))


def test_a_killed_run_goes_on_with_the_matching_that_it_has(tmp_path, monkeypatch):
    alone = Pair(tmp_path / "alone", **SETTINGS)
    run = alone.copy(tmp_path / "run")
    train_here(alone, monkeypatch)
    for party in ("bank", "platform"):
        run.state(party).mkdir(mode=0o700, exist_ok=True)
        for name in ("matching.npy", "matching.json"):
            shutil.copy(alone.state(party) / name, run.state(party))
    with Training(run) as training:
        for party in ("platform", "bank"):
            training.running["bank"].wait_for("steps to go")
            training.kill(party)
            training.start(party)
        training.finish()
    assert not differences(run, alone)


def test_another_matching_than_a_run_began_with_is_refused(tmp_path, monkeypatch):
    pair = Pair(tmp_path / "pair", **{**SETTINGS, "epochs": 1})
    train_here(pair, monkeypatch)
    parties.configure(pair.bank, epochs=2, wait=3)
    parties.configure(pair.platform, epochs=2, wait=3)
    (pair.state("platform") / "matching.json").unlink()
    with Training(pair) as training:
        training.running["bank"].wait_for("began with other common examples")


def test_three_feature_parties_share_one_order(tmp_path, monkeypatch):
    several = Quartet(tmp_path / "several", **SETTINGS)
    train_here(several, monkeypatch)
    orders = [kept(several, party) for party in ("bank", *several.features)]
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) < len(data.load_party(several.folder / "registry" / "features.csv",
                                                role="feature"))  # fmt: skip
    assert orders[0] != sorted(orders[0])
