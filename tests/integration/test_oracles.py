"""Answers are given once: evaluations again, and a label party whose state is from a copy."""

import shutil
from contextlib import suppress
from math import log2

import pytest
import torch

from parties import configure
from peers import (
    Bank,
    finished,
    honest,
    tensor,
    train,
)
from tacit.errors import LostError
from tacit.party.journal import digest
from tacit.party.schedule import Schedule
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.messages import (
    Align,
    CheckpointMessage,
    Evaluate,
    Records,
)
from tacit.wire.transport.wrappers import RecordingTransport

EPOCH = 6  # steps; checkpoints are after 4, 6, 8 and 12 of them


pytestmark = pytest.mark.usefixtures("around")


# --- evaluations ---


def to_evaluation(bank, offer):
    """Lead a rogue to the evaluation after the first epoch, always with the same embeddings."""
    rogue = bank.rogue()
    for step in range(rogue.ready(offer), EPOCH):
        rogue.say(train(step, tensor(*rogue.cut, seed=step)))
        rogue.hear(Gradient)
        if step == 3:
            rogue.say(CheckpointMessage(step=3))
            rogue.hear(CheckpointMessage)
    return rogue


def evaluated(bank, rogue, seed):
    """Ask for the evaluation of embeddings and go away before the checkpoint."""
    plan = bank.party.plan
    rows = len(Schedule.of(plan, len(bank.party._common)).test)
    rogue.say(Evaluate(part=0, values=tensor(rows, *plan.cut, seed=seed)))
    with suppress(LostError):
        answer = rogue.hear(Evaluate)
        rogue.transport.close()
        return answer.note, answer.record
    return rogue.refused()


@pytest.mark.parametrize("shared", [True, False])
def test_an_evaluation_is_answered_for_one_set_of_embeddings_only(pair, shared):
    configure(pair.bank, share_metrics=shared)
    with Bank(pair) as bank:
        first = evaluated(bank, to_evaluation(bank, 0), seed=1)
        assert (first[0] is not None) == shared
        before = bank.journal
        for seed in (2, 3, 4):
            answer = evaluated(bank, to_evaluation(bank, 4), seed=seed)
            assert "after step 5 was answered before for other embeddings" in answer
        assert evaluated(bank, to_evaluation(bank, 4), seed=1) == first
        bank.stop()
    with Bank(pair) as bank:
        answer = evaluated(bank, to_evaluation(bank, 4), seed=5)
        assert "after step 5 was answered before for other embeddings" in answer
        assert evaluated(bank, to_evaluation(bank, 4), seed=1) == first
        assert bank.journal == before
        bank.stop()


def test_nothing_more_is_told_by_changing_the_setting_later(pair):
    with Bank(pair) as bank:
        first = evaluated(bank, to_evaluation(bank, 0), seed=1)
        bank.stop()
    configure(pair.bank, share_metrics=True)
    with Bank(pair) as bank:
        assert evaluated(bank, to_evaluation(bank, 4), seed=1) == first
        assert first[0] is None
        bank.stop()


def test_what_is_told_is_rounded_and_counted_in_a_row_of_its_own(pair):
    configure(pair.bank, share_metrics=True)
    said = []
    with Bank(pair) as bank:
        honest(bank, log=said)
        results = bank.end()
    told = [line for line in said if "test" in line]
    exact = [epoch["test"] for epoch in results["history"]]
    assert told == [
        f"epoch {n}: test auc {e['auc']:.2f}, test accuracy {e['accuracy']:.2f}"
        for n, e in enumerate(exact, start=1)
    ]
    assert results["ledger"]["measures"] == 2
    assert results["ledger"]["measure_bits"] == pytest.approx(2 * 2 * log2(102))


def test_what_is_told_is_counted_once_however_often_it_is_asked_for(pair):
    configure(pair.bank, share_metrics=True)
    with Bank(pair) as bank:
        honest(bank, stop=EPOCH + 1)
        bank.stop()
    with Bank(pair) as bank:
        honest(bank)
        assert bank.end()["ledger"]["measures"] == 2


def test_nothing_is_told_or_counted_by_default(wanted):
    ledger = wanted.read("bank", "results.json")["ledger"]
    assert (ledger["measures"], ledger["measure_bits"]) == (0, 0.0)


# --- a state folder from a copy ---


class Restored:
    """A label party's state folder that is set back to what it was some steps before."""

    def __init__(self, pair, *, copied, stop):
        self.pair, self.frames = pair, []
        with Bank(pair) as bank:
            honest(bank, stop=copied, dial=lambda: self._heard(bank))
            bank.stop()
        shutil.copytree(pair.state("bank"), pair.folder / "copy")
        with Bank(pair) as bank:
            honest(bank, stop=stop, dial=lambda: self._heard(bank))
            self.journal = bank.journal
            bank.stop()
        shutil.rmtree(pair.state("bank"))
        (pair.folder / "copy").rename(pair.state("bank"))

    def _heard(self, bank):
        return RecordingTransport(bank.dial(), lambda way, frame: self.frames.append(frame))

    def asked(self, step):
        """Return the embeddings that were sent for a step, and the release that came back."""
        found = [m for m in map(decode, self.frames) if isinstance(m, Embedding | Gradient)]
        sent = {m.step: m for m in found if isinstance(m, Embedding)}
        got = {m.step: m for m in found if isinstance(m, Gradient)}
        return sent[step], got[step]


def test_a_copy_catches_up_and_releases_nothing_a_second_time(pair, wanted):
    """The feature party hands its records back, and dies; another one asks for other releases."""
    restored = Restored(pair, copied=5, stop=9)
    with Bank(pair) as bank:
        honest(bank, stop=6)
        bank.said(r"\d+ records of answers were missing here and were handed back")
        assert bank.journal == restored.journal
        rogue = bank.rogue()
        start = rogue.ready(8)
        for step in range(start, 8):
            asked, sent = restored.asked(step)
            rogue.say(asked)
            got = rogue.hear(Gradient)
            assert torch.equal(got.values, sent.values)
            assert got.record == sent.record
            if step in (3, 5, 7):
                evaluate_or_save(rogue, bank, step, restored)
        rogue.say(train(8, tensor(*rogue.cut, seed=99)))
        assert "step 8 was released before with another embedding" in rogue.refused()
        assert bank.journal == restored.journal
        finished(bank, wanted)


def evaluate_or_save(rogue, bank, step, restored):
    if step == EPOCH - 1:
        rogue.say(next(m for m in map(decode, restored.frames) if isinstance(m, Evaluate)))
        rogue.hear(Evaluate)
    rogue.say(CheckpointMessage(step=step))
    rogue.hear(CheckpointMessage)


def test_the_end_of_the_journal_lost_in_a_power_cut_comes_back(pair, wanted):
    with Bank(pair) as bank:
        honest(bank, stop=10)
        whole = bank.journal
        bank.stop()
    (pair.state("bank") / "journal").write_bytes(whole[: -RECORD_BYTES - 30])
    with Bank(pair) as bank:
        bank.said("bytes of a last record that was never finished were cut off")
        finished(bank, wanted)
        assert bank.journal[: len(whole)] == whole


def test_a_feature_party_that_lost_its_records_gets_them_again(pair, wanted):
    with Bank(pair) as bank:
        honest(bank, stop=7)
        (pair.state("platform") / "records").unlink()
        honest(bank, stop=8)
        records = (pair.state("platform") / "records").read_bytes()[256:]
        assert records == bank.journal[256:]
        finished(bank, wanted)


def handing_back(change):
    """Do everything right, then hand back records that are not right."""

    def act(rogue, restored):
        rogue.greeted(4)
        rogue.align(rogue.ids)
        start = 256 + RECORD_BYTES * 5
        right = restored.journal[start:]
        count = (len(restored.journal) - 256) // RECORD_BYTES
        rogue.say(records(count, restored.journal[-RECORD_BYTES:]))
        rogue.hear(Records)
        rogue.say(records(count, change(right)))

    return act


def records(count, data):
    values = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else None
    return Records(count=count, values=values)


def flipped(data, at):
    spoilt = bytearray(data)
    spoilt[at] ^= 1
    return bytes(spoilt)


def claims_other_records(rogue, restored):
    rogue.greeted(4)
    rogue.align(rogue.ids)
    rogue.say(records(5, restored.journal[256 : 256 + RECORD_BYTES]))


FORGED = {
    "none": (handing_back(lambda _: b""), "record 5 was due and none was handed back"),
    "a changed step": (handing_back(lambda r: flipped(r, 16)), "record 5 that was handed back"),
    "a changed mark": (handing_back(lambda r: flipped(r, 40)), "record 5 that was handed back"),
    "a changed code": (handing_back(lambda r: flipped(r, 111)), "record 5 that was handed back"),
    "a later change": (handing_back(lambda r: flipped(r, 230)), "record 7 that was handed back"),
    "another order": (
        handing_back(lambda r: r[RECORD_BYTES : 2 * RECORD_BYTES] + r[:RECORD_BYTES]),
        "record 5",
    ),
    "one left out": (handing_back(lambda r: r[RECORD_BYTES:]), "record 5 that was handed back"),
    "one twice": (handing_back(lambda r: r[:RECORD_BYTES] * 2), "record 6 that was handed back"),
    "zeros": (handing_back(lambda r: bytes(len(r))), "record 5 that was handed back"),
    "another last one": (claims_other_records, "record 4 of the label party's journal is another"),
}


def test_records_that_are_not_its_own_are_refused_and_change_nothing(pair, wanted):
    restored = Restored(pair, copied=5, stop=9)
    with Bank(pair) as bank:
        before = bank.journal
        for name, (act, says) in FORGED.items():
            rogue = bank.rogue()
            with suppress(LostError):
                act(rogue, restored)
            assert says in rogue.refused(), name
            assert bank.journal == before, name
        rogue = bank.rogue()
        rogue.greeted(4)
        rogue.align(rogue.ids)
        rogue.say(records(2**62, restored.journal[-RECORD_BYTES:]))  # far more than there can be
        rogue.hear(Records)
        rogue.say(Align(count=1))
        assert "sent align, due was records" in rogue.refused()
        finished(bank, wanted)


def test_a_state_that_is_behind_its_witness_serves_only_who_brings_it_up(pair, wanted):
    configure(pair.bank, witness="bank.witness")
    restored = Restored(pair, copied=5, stop=9)
    with Bank(pair) as bank:
        bank.said(r"bank\.witness: 10 answers were recorded, and .* has 5 of them")
        before = bank.journal
        for _ in range(2):
            rogue = bank.rogue()
            rogue.greeted(4)
            rogue.align(rogue.ids)
            rogue.say(Records(count=0))
            reason = rogue.refused()
            assert "has lost records of answers that it gave" in reason
            assert str(pair.folder) not in reason
        assert bank.journal == before
        honest(bank, stop=5)
        assert bank.journal == restored.journal
        finished(bank, wanted)


def test_records_show_nothing_that_the_peer_could_compare(pair):
    """A record is known to the feature party, and its marks are not digests of anything plain."""
    restored = Restored(pair, copied=2, stop=3)
    for step in range(3):
        asked, sent = restored.asked(step)
        record = sent.record
        assert restored.journal[256 + step * RECORD_BYTES :][:RECORD_BYTES] == record
        for values in (asked.values, sent.values):
            assert digest(values) not in record
