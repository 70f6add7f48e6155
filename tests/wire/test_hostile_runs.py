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
    fresh_pair,
    honest,
    short,
    surroundings,
    tensor,
    train,
    undisturbed,
)
from tacit.errors import LostError, TacitError
from tacit.runtime.dialogue import Align, Bye, Heartbeat, Release, Train
from tacit.runtime.frames import decode, encode
from tacit.runtime.wrappers import Recording


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory):
    with surroundings(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    return fresh_pair(tmp_path_factory.mktemp("fresh") / "pair")


@pytest.fixture(scope="module")
def wanted(fresh, tmp_path_factory):
    return undisturbed(fresh, tmp_path_factory.mktemp("wanted") / "pair")


@pytest.fixture
def pair(fresh, tmp_path):
    return fresh.copy(tmp_path / "pair")


def overheard(bank, stop):
    """Run the honest party up to a step; return what it sent and got for each step, as bytes."""
    frames = {"sent": [], "received": []}

    def dial():
        return Recording(bank.dial(), lambda way, frame: frames[way].append(frame))

    honest(bank, stop=stop, dial=dial)
    asked = [f for f in frames["sent"] if isinstance(decode(f), Train)]
    answered = [f for f in frames["received"] if isinstance(decode(f), Release)]
    assert len(asked) == len(answered) == stop
    return list(zip(asked, answered, strict=True))


def answer(rogue, frame):
    rogue.say(frame)
    return encode(rogue.hear(Release))


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
        nearly = torch.nextafter(decode(steps[4][0]).embedding.values, tensor(1))
        rogue.say(train(4, nearly))
        assert "came again with another embedding" in rogue.refused()
        assert bank.journal == before
        finished(bank, wanted)


def test_the_same_step_for_other_examples_tells_nothing(pair, wanted):
    """Equal labels would give equal bytes: whether they do is not for the peer to see."""
    with Bank(pair) as bank:
        steps = overheard(bank, 2)
        before = bank.journal
        bank.stop()
    labels = (pair.bank.parent / "labels.csv").read_text().splitlines()[1:]
    with Bank(pair) as bank:
        common = sorted({*Rogue(None, pair).ids} & {line.split(",", 1)[0] for line in labels})
        more = sorted({line.split(",", 1)[0] for line in labels} - {*common})
        for left_out in random.Random(0).sample(common, 8):  # noqa: S311
            rogue = bank.rogue()
            assert rogue.greeted(2) == 0
            rogue.align((*(i for i in common if i != left_out), more[0]))
            rogue.say(steps[0][0])
            assert "step 0 was released before" in rogue.refused()
        assert bank.journal == before
        finished(bank, wanted)


def test_other_examples_bind_nobody_before_the_first_step(pair, wanted):
    with Bank(pair) as bank:
        for count in (200, 100, 200):
            rogue = bank.rogue()
            rogue.greeted()
            rogue.align(rogue.ids[:count])
            rogue.say(Bye())
            rogue.refused()
        finished(bank, wanted)


def flood(rogue, frame):
    """Send a frame until the line is closed."""
    with suppress(LostError):
        while True:
            rogue.line.send(frame, timeout=30)


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
        finished(bank, wanted)


def test_many_at_once_are_refused_one_by_one(pair, wanted):
    with Bank(pair) as bank:
        rogues = [bank.rogue() for _ in range(40)]
        threads = [threading.Thread(target=r.say, args=(b"x" * n,)) for n, r in enumerate(rogues)]
        for thread in threads:
            thread.start()
        finished(bank, wanted)
        assert sum("at least 48 bytes" in line for line in bank.lines) == len(rogues)


def test_labels_that_are_too_much_for_the_budget_end_the_run_in_order(pair):
    configure(pair.bank, labels="rr(epsilon=1.0)", budget="auc=0.6")
    configure(pair.platform, wait=1)
    with Bank(pair) as bank:
        before = bank.journal
        with pytest.raises(TacitError, match=r"refused to go on|did not come within"):
            honest(bank)
        assert bank.end()["ended"].startswith("budget auc=0.6")
        assert bank.journal == before
