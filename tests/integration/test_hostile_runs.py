"""A feature party that plays with time: steps again, silence, floods, other examples."""

import random
import threading
from contextlib import suppress

import pytest
import torch

from parties import configure
from peers import (
    Bank,
    Rogue,
    finished,
    honest,
    short,
    tensor,
    train,
)
from tacit.cli import main
from tacit.errors import LostError, UsageError
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.messages import Align, Bye, Heartbeat
from tacit.wire.transport.wrappers import RecordingTransport

pytestmark = pytest.mark.usefixtures("around")


def overheard(bank, stop):
    """Run the honest party up to a step; return what it sent and got for each step, as bytes."""
    frames = {"sent": [], "received": []}

    def dial():
        return RecordingTransport(bank.dial(), lambda way, frame: frames[way].append(frame))

    honest(bank, stop=stop, dial=dial)
    asked = [f for f in frames["sent"] if isinstance(decode(f), Embedding)]
    answered = [f for f in frames["received"] if isinstance(decode(f), Gradient)]
    assert len(asked) == len(answered) == stop
    return list(zip(asked, answered, strict=True))


def answer(rogue, frame):
    rogue.say(frame)
    return encode(rogue.hear(Gradient))


def test_a_step_again_is_the_same_bytes_and_moves_nothing(pair, wanted):
    with Bank(pair) as bank:
        steps = overheard(bank, 5)
        before = bank.journal
        rogue = bank.rogue()
        assert rogue.ready(4) == 4
        for _ in range(3):
            assert answer(rogue, steps[4][0]) == steps[4][1]
        rogue.say(train(4, tensor(*rogue.cut)))
        assert "came again with another embedding" in rogue.refused()
        assert bank.journal == before
        finished(bank, wanted)


def test_after_a_restart_a_step_again_is_the_same_bytes(pair, wanted):
    with Bank(pair) as bank:
        steps = overheard(bank, 6)
        before = bank.journal
        bank.stop()
    with Bank(pair) as bank:
        rogue = bank.rogue()
        assert rogue.ready(5) == 4
        for _ in range(2):
            assert answer(rogue, steps[4][0]) == steps[4][1]
        nearly = torch.nextafter(decode(steps[4][0]).values, tensor(1))
        rogue.say(train(4, nearly))
        assert "came again with another embedding" in rogue.refused()
        assert bank.journal == before
        finished(bank, wanted)


def test_the_same_step_for_other_examples_tells_nothing(pair):
    """Equal labels would give equal bytes: whether they do is not for the peer to see.

    Not even where the label party has lost the record of what it has matched.
    """
    with Bank(pair) as bank:
        steps = overheard(bank, 2)
        before = bank.journal
        bank.stop()
    labels = (pair.bank.parent / "labels.csv").read_text().splitlines()[1:]
    common = sorted({*Rogue(None, pair).ids} & {line.split(",", 1)[0] for line in labels})
    more = sorted({line.split(",", 1)[0] for line in labels} - {*common})
    for left_out in random.Random(0).sample(common, 4):  # noqa: S311
        for file in pair.state("bank").glob("matching.*"):
            file.unlink()
        with Bank(pair) as bank:
            rogue = bank.rogue()
            assert rogue.greeted(2) == 0
            rogue.align((*(i for i in common if i != left_out), more[0]))
            rogue.compare()
            rogue.say(steps[0][0])
            assert "step 0 was released before" in rogue.refused()
            assert bank.journal == before
            bank.stop()


def test_other_examples_are_refused_before_the_first_step_too(pair, wanted):
    with Bank(pair) as bank:
        rogue = bank.rogue()
        rogue.ready()
        rogue.say(Bye())
        rogue.refused()
        for count in (200, 100, 284):
            rogue = bank.rogue()
            rogue.greeted()
            with pytest.raises(LostError, match="refused"):
                rogue.align(rogue.ids[:count])
            assert "platform shows other ids from number 1 on" in rogue.refused()
        finished(bank, wanted)


def flood(rogue, frame):
    """Send a frame until the transport is closed."""
    with suppress(LostError):
        while True:
            rogue.transport.send(frame, timeout=30)


def test_whoever_says_nothing_is_dropped_in_time(pair, wanted):
    with Bank(pair, timings=short(greeting=0.2)) as bank:
        for _ in range(3):
            heard = len(bank.lines)
            rogue = bank.rogue()
            bank.said("connection lost: nothing came from .* for 0.2 s", since=heard)
            assert rogue.refused() is None
        finished(bank, wanted)


def test_whoever_falls_silent_later_is_dropped_in_time(pair, wanted):
    with Bank(pair, timings=short(silence=0.3)) as bank:
        for act in (lambda rogue: rogue.greeted(), lambda rogue: rogue.ready()):
            heard = len(bank.lines)
            act(rogue := bank.rogue())
            bank.said("connection lost: nothing came from .* for 0.3 s", since=heard)
            rogue.refused()
        finished(bank, wanted)


@pytest.mark.parametrize("when", ["greeted", "ready"])
def test_signs_of_life_without_end_are_not_enough(pair, wanted, when):
    with Bank(pair, timings=short(patience=0.5)) as bank:
        rogue = bank.rogue()
        getattr(rogue, when)()
        flood(rogue, encode(Heartbeat()))
        bank.said("connection lost: .* gave no answer for 0.5 seconds")
        finished(bank, wanted)


def test_whoever_takes_no_answer_is_dropped_in_time(pair, wanted):
    with Bank(pair, timings=short(silence=0.3)) as bank:
        rogue = bank.rogue()
        rogue.greeted()
        flood(rogue, encode(Align(count=1, ids=("nobody",))))
        bank.said("connection lost: .* has taken nothing for 0.3 s|nothing came")
        bank.stop()
    assert main(["party", str(pair.bank), "--match-again"]) == 0
    with Bank(pair) as bank:
        finished(bank, wanted)


def test_many_at_once_are_refused_one_by_one(pair, wanted):
    with Bank(pair) as bank:
        rogues = [bank.rogue() for _ in range(40)]
        threads = [threading.Thread(target=r.say, args=(b"x" * n,)) for n, r in enumerate(rogues)]
        for thread in threads:
            thread.start()
        finished(bank, wanted)
        assert sum("at least 48 bytes" in line for line in bank.lines) == len(rogues)


@pytest.mark.parametrize(
    ("bank", "said"),
    [
        ({"labels": "rr(epsilon=1.0)", "budget": "auc=0.6"}, "rr.* alone is more"),
        ({"protect": "marvell(s=4)", "budget": "auc=0.9"}, "depends on the labels"),
        (
            {"protect": "marvell(sum_kl=0.1, covariance=full)", "budget": "sum_kl=0.1"},
            "at most 1 times .*: set epochs = 1 on both sides",
        ),
    ],
)
def test_what_a_budget_has_no_room_for_is_refused_before_anyone_is_let_in(pair, bank, said):
    configure(pair.bank, **bank)
    with pytest.raises(UsageError, match=f"budget {bank['budget']}: .*{said}"):
        Bank(pair)
    assert not pair.journal()
