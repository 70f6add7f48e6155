"""A label party that breaks the rules: the feature party stops with a clear error, and soon."""

import struct
import threading
from contextlib import closing, suppress

import pytest
import torch

from peers import (
    LONG,
    Rogue,
    dial_to,
    honest,
    listener,
    short,
    tensor,
)
from tacit.errors import LostError, PeerError, UsageError
from tacit.party.config import read_party_config
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient
from tacit.wire.protocol.codec import encode
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Records,
    Refuse,
)
from tacit.wire.transport.memory import memory_transports

pytestmark = pytest.mark.usefixtures("around")


class Liar(Rogue):
    """A label party that says what it is told to."""

    def greet(self, **changes):
        self.hear(Hello)
        self.say(self.hello(**{"party": "bank", **changes}))

    def match(self):
        """Have every id that is shown."""
        while (asked := self.hear(Align)).ids is not None:
            self.say(asked)
        self.say(Align(held=asked.held or "0" * 64))

    def begin(self):
        """Do everything right up to the first step and return it."""
        self.greet()
        self.match()
        self.say(Records(count=self.hear(Records).count))
        return self.hear(Embedding)

    def serve(self, steps):
        """Answer so many steps by the rules."""
        train = self.begin()
        for step in range(steps):
            self.say(gradient(step, torch.zeros_like(train.values)))
            train = self.hear()
        return train


def gradient(step, values):
    return Gradient(step=step, values=values)


def spoiled(step, value):
    frame = bytearray(encode(gradient(step, tensor(32, 32))))
    struct.pack_into("<f", frame, len(frame) - 8, value)
    return bytes(frame)


class Lies:
    """What the honest party dials: each transport has a lying label party at its other end."""

    def __init__(self, pair, act):
        self.pair, self._act, self.dialled = pair, act, 0

    def dial(self):
        self.dialled += 1
        ours, theirs = memory_transports()
        threading.Thread(target=self._lie, args=(Liar(theirs, self.pair),), daemon=True).start()
        return ours

    def _lie(self, liar):
        with suppress(LostError):
            self._act(liar)
            while True:
                liar.hear()


def instead_of_hello(*things):
    return lambda liar: (liar.hear(Hello), liar.say(*things))


def as_gradient(*things):
    return lambda liar: (liar.begin(), liar.say(*things))


def as_ids(answer):
    def act(liar):
        liar.greet()
        liar.say(answer(liar.hear(Align)))

    return act


def as_count(*answers):
    """Have every id that is shown, then answer how many are common to all, and which."""

    def act(liar):
        liar.greet()
        while (asked := liar.hear(Align)).ids is not None:
            liar.say(asked)
        for answer in answers:
            liar.say(answer)

    return act


def after(steps, *things):
    return lambda liar: (liar.serve(steps), liar.say(*things))


def compared(*answers):
    """Do everything right up to the records, and then answer otherwise."""

    def act(liar):
        liar.greet()
        liar.match()
        for answer in answers:
            liar.hear(Records)
            liar.say(answer)

    return act


def numbered(number):
    """Return the bytes of a record that only looks like one."""
    return number.to_bytes(8, "little") + bytes(RECORD_BYTES - 8)


def records(count, *numbers):
    values = torch.frombuffer(bytearray(b"".join(map(numbered, numbers))), dtype=torch.uint8)
    return Records(count=count, values=values)


def recorded(number):
    return Gradient(step=0, values=tensor(32, 32), record=numbered(number))


RIGHT = gradient(0, tensor(32, 32))
LIES = {
    "garbage": (instead_of_hello(b"SSH-2.0-OpenSSH_9.6\r\n"), "a frame was refused"),
    "another version": (lambda liar: liar.greet(versions=(9,)), "run the same release"),
    "another plan": (lambda liar: liar.greet(plan_digest="1" * 64), "the plans differ"),
    "our name": (lambda liar: liar.greet(party="platform"), "both parties are called"),
    "a later step": (lambda liar: liar.greet(resume_point=6), "but only 0 were offered"),
    "no hello": (instead_of_hello(Align(count=0)), "align is not allowed in state greeted"),
    "ids not asked about": (
        as_ids(lambda asked: Align(count=1, ids=("nobody",))),
        "ids that it was not asked about",
    ),
    "an id twice": (
        as_ids(lambda asked: Align(count=2, ids=asked.ids[:1] * 2)),
        "was not asked about",
    ),
    "a longer id": (
        as_ids(lambda asked: Align(count=1, ids=(asked.ids[0] + "0" * 9,))),
        "was not asked about",
    ),
    "numbers as ids": (
        as_ids(lambda asked: Align(count=1, ids=torch.tensor([1]))),
        "ids are numbers there",
    ),
    "more than there are": (as_count(Align(count=10**9)), "1000000000 cannot be everyone's"),
    "indices that are none": (
        as_count(Align(count=2), Align(count=2, ids=torch.tensor([0, -1]))),
        "indices below",
    ),
    "an index twice": (
        as_count(Align(count=2), Align(count=2, ids=torch.tensor([3, 3]))),
        "indices below",
    ),
    "no name": (
        as_count(Align(count=1), Align(count=1, ids=torch.tensor([3])), Align(count=1)),
        "gave the matching no name",
    ),
    "a goodbye for ids": (
        as_ids(lambda asked: CheckpointMessage(step=0)),
        "checkpoint is not allowed",
    ),
    "another width": (as_gradient(gradient(0, tensor(32, 31))), "like its embedding, got"),
    "more rows": (as_gradient(gradient(0, tensor(33, 32))), "like its embedding, got"),
    "float64": (as_gradient(gradient(0, tensor(32, 32).double())), "like its embedding, got"),
    "a NaN": (as_gradient(spoiled(0, float("nan"))), "values must be finite"),
    "an infinity": (as_gradient(spoiled(0, float("inf"))), "values must be finite"),
    "another step": (as_gradient(gradient(1, tensor(32, 32))), "must be of step 0, got step 1"),
    "half a gradient": (as_gradient(encode(RIGHT)[:-1]), "the body must have"),
    "no gradient": (as_gradient(Evaluate(part=0)), "evaluate is not allowed in state training"),
    "a gradient twice": (as_gradient(RIGHT, RIGHT), "release is not allowed|must be of step 1"),
    "a later gradient": (after(3, gradient(4, tensor(32, 32))), "must be of step 3, got step 4"),
    "a receipt for nothing": (after(4, Evaluate(part=0)), "evaluate is not allowed"),
    "more records, unseen": (
        compared(Records(count=3)),
        "neither takes those that it lacks nor sends",
    ),
    "the same records without end": (
        compared(records(9, 0), records(9, 0)),
        "neither takes those that it lacks nor sends",
    ),
    "records with a gap": (compared(records(9, 0, 2)), "record 2 of .* came where 1 was due"),
    "records from the middle": (compared(records(9, 7)), "record 7 of .* came where 0 was due"),
    "a release with another record": (as_gradient(recorded(4)), "record 4 of .* where 0 was due"),
    "another checkpoint": (after(4, CheckpointMessage(step=2)), "of the last step, 3, got 2"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_label_party_that_breaks_the_rules_is_left(fresh, tmp_path, name):
    act, says = LIES[name]
    lies = Lies(fresh.copy(tmp_path / "pair"), act)
    with pytest.raises(PeerError, match=says) as caught:
        honest(lies)
    assert str(caught.value).isprintable()
    assert lies.dialled == 1


def test_a_refusal_of_hello_is_shown_beside_the_plan(fresh, tmp_path):
    lies = Lies(fresh.copy(tmp_path / "pair"), instead_of_hello(Refuse(reason="not today")))
    with pytest.raises(UsageError, match="not today; the plan here is"):
        honest(lies)


def test_refusals_later_on_are_believed_in_the_end(fresh, tmp_path):
    lies = Lies(fresh.copy(tmp_path / "pair"), as_gradient(Refuse(reason="not today")))
    with pytest.raises(PeerError, match="refused to go on: not today"):
        honest(lies)
    assert lies.dialled == 4


def test_an_early_goodbye_is_an_end(fresh, tmp_path):
    lies = Lies(fresh.copy(tmp_path / "pair"), after(3, Bye()))
    assert honest(lies)["ended"] == "ended by the label party"


def flood_of(frame):
    def act(liar):
        liar.begin()
        while True:
            liar.transport.send(frame, timeout=LONG)

    return act


@pytest.mark.parametrize(
    ("act", "timings"),
    [
        (lambda liar: liar.hear(), short(greeting=0.1)),
        (lambda liar: liar.begin(), short(silence=0.1, beat=9)),
        (flood_of(encode(Heartbeat())), short(patience=0.2)),
    ],
    ids=["silence for hello", "silence for a gradient", "heartbeats without end"],
)
def test_a_label_party_that_never_answers_is_given_up(fresh, tmp_path, act, timings):
    pair = fresh.copy(tmp_path / "pair")
    for config in (pair.bank, pair.platform):
        config.write_text(config.read_text().replace("wait = 60", "wait = 1"))
    with pytest.raises(LostError, match="did not come within 1 seconds"):
        honest(Lies(pair, act), timings=timings)


def test_a_name_that_is_not_the_certificates(fresh, tmp_path):
    pair = fresh.copy(tmp_path / "pair")
    with closing(listener(read_party_config(pair.bank), log=lambda _: None)) as accepting:

        def lie():
            with suppress(LostError), accepting.accept(timeout=LONG) as transport:
                Liar(transport, pair).greet(party="mallory")
                transport.receive(timeout=LONG)

        thread = threading.Thread(target=lie)
        thread.start()
        lies = Lies(pair, act=None)
        with pytest.raises(PeerError, match="bank calls itself mallory: names are bound to"):
            honest(lies, dial=lambda: dial_to(pair))
        thread.join()
