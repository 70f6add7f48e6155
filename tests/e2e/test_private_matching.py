"""Ids matched in private: what crosses the line, and a run that goes on with what it has."""

import shutil
import socket

import numpy as np
import pytest
import torch

import parties
from parties import Pair, Quartet, differences, train_here
from party_processes import Running, Training, wait_until
from peers import Rogue, dial_to
from tacit import data
from tacit.errors import LostError
from tacit.wire.protocol.messages import Align
from tacit.wire.psi.ecdh import PsiSide
from tacit.wire.psi.messages import Secrets
from tacit.wire.transport.memory import memory_transports
from tacit.wire.transport.wrappers import RecordingTransport

SETTINGS = {
    "epochs": 2,
    "batch_size": 32,
    "save_every": 10,
    "matching": "private",
    "bank": {"protect": "marvell(s=4)", "attacks": []},
}


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
        ours, theirs = memory_transports()
        self._accepted.put(theirs)
        return RecordingTransport(ours, lambda _, frame: frames.append(frame))

    monkeypatch.setattr(parties.MemoryListener, "dial", dial)
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
    for config in (pair.bank, pair.platform):
        parties.configure(config, epochs=2, wait=60)
    for file in pair.state("platform").glob("matching.*"):
        file.unlink()
    with Training(pair) as training:
        training.running["bank"].wait_for(
            "refused: round 1 of matching: platform shows 570 ids under another commitment than "
            "570 before: a state folder matches one set of ids"
        )
        assert training.running["platform"].end() == 1


def ask(pair, ids, secrets, *, messages=99):
    """Match ids as a feature party that keeps no rules; return how far it got."""
    rogue, side = Rogue(dial_to(pair), pair), PsiSide("feature", ids, secrets=secrets)
    try:
        rogue.greeted()
        message = side.start()
        while message is not None and messages:
            content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            rogue.say(Align(sealed=content))
            message = side.answer(rogue.hear(Align).sealed.numpy().tobytes())
            messages -= 1
        return "answered" if messages == 0 or side.done else "refused"
    except LostError:
        return rogue.reason
    finally:
        rogue.transport.close()


def test_a_label_party_killed_in_the_middle_of_a_matching_answers_the_same_ids_only(tmp_path):
    """A process that ends by SIGKILL after its first answer knows later what it has answered."""
    pair = Pair(tmp_path / "pair", **SETTINGS)
    ids, secrets = Rogue(None, pair).ids, Secrets()
    for messages in (2, 3, 99):
        with Running(pair.bank) as bank:
            bank.wait_for("listening on")
            assert ask(pair, ids, secrets, messages=messages) == "answered"
            for others in (ids[:300], ids[1:]):
                assert "under another commitment" in ask(pair, others, Secrets())
            bank.kill()
    with Running(pair.bank) as bank:
        bank.wait_for("listening on")
        assert ask(pair, ids, secrets) == "answered"
        bank.wait_for("round 1 of matching with platform: 540 ids are common, of 570 here and 570")


def test_a_prediction_is_one_round_of_matching(tmp_path, monkeypatch):
    pair = Pair(tmp_path / "pair", **{**SETTINGS, "epochs": 1})
    train_here(pair, monkeypatch)
    steps = pair.checkpoint("bank")[1]
    ids, rows = Rogue(None, pair).ids, pair.bank.parent / "labels.csv"
    words = ["predict", str(pair.bank), "--data", str(rows), "--out", str(tmp_path / "scores.csv")]
    for number in (1, 2):
        secrets = Secrets()
        with Running(pair.bank, words=words) as bank:
            wait_until(lambda: "listening" in bank.said or listens(pair))
            assert predicting(pair, ids[:300], secrets, steps) == "answered"
            assert "under another commitment" in predicting(pair, ids[300:], Secrets(), steps)
            bank.wait_for(f"round {number} of matching with platform: .* here and 300 there")


def listens(pair):
    host, port = pair.address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def predicting(pair, ids, secrets, steps):
    """Match ids for a prediction."""

    class Predicting(Rogue):
        def greeted(self):
            self.plan = self.config.plan(classes=2, purpose="predict")
            return super().greeted(steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Rogue", Predicting)
        return ask(pair, ids, secrets)


def test_three_feature_parties_share_one_order(tmp_path, monkeypatch):
    several = Quartet(tmp_path / "several", **SETTINGS)
    train_here(several, monkeypatch)
    orders = [kept(several, party) for party in ("bank", *several.features)]
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) < len(
        data.load_party(several.folder / "registry" / "features.csv", role="feature")
    )
    assert orders[0] != sorted(orders[0])
