"""A feature party that breaks the rules: refused, told why, and the honest one trains as before."""

import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from peers import Bank, finished, honest, tensor, train
from tacit.cli import main
from tacit.errors import LostError, PeerError
from tacit.training.cut import Gradient
from tacit.wire.protocol.codec import encode
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Predict,
    Refuse,
)

HEADER = struct.Struct("<4sHHHBBIq4iq")
STOP = 6  # steps of the honest party before it is interrupted; the last checkpoint is of step 4


@pytest.fixture(scope="module", autouse=True)
def _surroundings(around):
    around.setattr("tacit.wire.psi.plaintext.MOST_IDS", 20_000)


def header(rogue, at, **changes):
    """Return a frame of a training step whose header says something else."""
    frame = bytearray(encode(train(at, tensor(*rogue.cut))))
    names = (
        "magic",
        "version",
        "kind",
        "flags",
        "dtype",
        "dims",
        "zero",
        "step",
        "a",
        "b",
        "c",
        "d",
        "length",
    )
    fields = dict(zip(names, HEADER.unpack_from(frame), strict=True)) | changes
    HEADER.pack_into(frame, 0, *fields.values())
    return bytes(frame)


def spoiled(rogue, step, value):
    """Return a frame of a training step with one value replaced, whatever it is."""
    frame = bytearray(encode(train(step, tensor(*rogue.cut))))
    struct.pack_into("<f", frame, HEADER.size + 40, value)
    return bytes(frame)


def at_start(*frames):
    """Say something instead of hello."""
    return lambda rogue: rogue.say(*(f(rogue) if callable(f) else f for f in frames))


def when_ready(make):
    """Do everything right up to the first step, then say something else."""

    def act(rogue):
        start = rogue.ready(STOP - 1)
        rogue.say(make(rogue, start))

    return act


def when_greeted(*messages):
    def act(rogue):
        rogue.greeted(STOP - 1)
        rogue.say(*messages)

    return act


def aligned(choose):
    """Say a right hello and show other ids."""

    def act(rogue):
        rogue.greeted(STOP - 1)
        rogue.align(choose(rogue.ids))

    return act


def align_without_end(rogue):
    rogue.greeted(STOP - 1)
    while True:
        ids = tuple(f"nobody-{n}" for n in range(1024))
        rogue.say(Align(count=len(ids), ids=ids))
        rogue.hear(Align)


def train_with(values):
    return when_ready(lambda rogue, start: train(start, values(*rogue.cut)))


def numbers(rogue, start):
    body = torch.ones(rogue.cut, dtype=torch.int64).numpy().tobytes()
    return header(rogue, start, dtype=5, length=len(body))[: HEADER.size] + body


@dataclass(frozen=True)
class Case:
    act: Any
    says: str


OTHER = "platform shows other ids from number 1 on than before: .*--match-again"
UNKNOWN = Align(count=2, ids=("nobody", "nobody either"))
CASES = {
    "another plan": Case(at_start(lambda r: r.hello(plan_digest="0" * 64)), "the plans differ"),
    "an old version": Case(at_start(lambda r: r.hello(versions=(65000,))), "run the same release"),
    "our name": Case(at_start(lambda r: r.hello(party="bank")), "both parties are called 'bank'"),
    "another protocol": Case(at_start(b"GET / HTTP/1.1\r\n\r\n"), "at least 48 bytes, got 18"),
    "garbage": Case(at_start(bytes(range(256)) * 9), "a frame begins with b'TACT'"),
    "no bytes": Case(at_start(b""), "at least 48 bytes, got 0"),
    "half a header": Case(at_start(lambda r: encode(r.hello())[:30]), "it was cut short"),
    "half a hello": Case(at_start(lambda r: encode(r.hello())[:-3]), "the body must have"),
    "no hello": Case(at_start(UNKNOWN), "align is not allowed in state start"),
    "heartbeats first": Case(at_start(Heartbeat()), "heartbeat is not allowed in state start"),
    "a goodbye first": Case(at_start(Bye()), "bye is not allowed in state start"),
    "a refusal": Case(at_start(Refuse(reason="no")), "refused to go on: no"),
    "hello twice": Case(lambda r: when_greeted(r.hello())(r), "hello is not allowed in state open"),
    "a step before ids": Case(
        when_greeted(train(STOP - 1, tensor(32, 32))), "train is not allowed in state open"
    ),
    "a gradient": Case(
        when_greeted(Gradient(step=0, values=tensor(32, 32))),
        "release is not allowed",
    ),
    "goodbye at once": Case(when_greeted(Bye()), "ended the conversation"),
    "ids twice": Case(
        aligned(lambda ids: (*ids, ids[0], *ids)), "showed an id twice: every example has its own"
    ),
    "ids twice in one message": Case(
        aligned(lambda ids: ids[:9] * 2), "showed an id twice: every example has its own"
    ),
    "numbers as ids": Case(
        when_greeted(Align(count=2, ids=torch.tensor([1, 2]))), "ids are numbers there and text"
    ),
    "another count": Case(when_greeted(Align(count=999)), "must agree on 0 common ids, got 999"),
    "a negative shape": Case(
        when_ready(lambda r, step: header(r, step, a=-32)), "every dimension must be 1 or more"
    ),
    "a huge shape": Case(
        when_ready(lambda r, step: header(r, step, a=2**31 - 1, b=2**31 - 1)),
        "at most 1048576 rows, got 2147483647",
    ),
    "a huge length": Case(
        when_ready(lambda r, step: header(r, step, length=2**62)), "has at most 67108864 bytes"
    ),
    "a negative length": Case(
        when_ready(lambda r, step: header(r, step, length=-1)), "the body length must be"
    ),
    "a negative step": Case(
        when_ready(lambda r, step: header(r, step, step=-1)), "a step must be a whole number"
    ),
    "another width": Case(
        train_with(lambda rows, width: tensor(rows, width + 1)), r"\(32, 32\) by the plan, got"
    ),
    "fewer rows": Case(
        train_with(lambda rows, width: tensor(rows - 1, width)), r"by the plan, got .*\(31, 32\)"
    ),
    "more dimensions": Case(
        train_with(lambda rows, width: tensor(rows, width, 1)), r"by the plan, got .*, 1\)"
    ),
    "float64": Case(
        train_with(lambda *cut: tensor(*cut).double()), "by the plan, got torch.float64"
    ),
    "float16": Case(train_with(lambda *cut: tensor(*cut).half()), "by the plan, got torch.float16"),
    "whole numbers": Case(when_ready(numbers), "train values must be float32 .*got torch.int64"),
    "a NaN": Case(
        when_ready(lambda r, step: spoiled(r, step, float("nan"))), "values must be finite"
    ),
    "an infinity": Case(
        when_ready(lambda r, step: spoiled(r, step, float("-inf"))), "values must be finite"
    ),
    "huge values": Case(
        train_with(lambda *cut: 3e38 * tensor(*cut).sign()), "must be at most 1e.09 in size"
    ),
    "a skipped step": Case(
        when_ready(lambda r, step: train(step + 1, tensor(*r.cut))), "skips step"
    ),
    "an evaluation": Case(
        when_ready(lambda r, _: Evaluate(part=0, values=tensor(*r.cut))), "sent evaluate, due was"
    ),
    "a prediction": Case(
        when_ready(lambda r, _: Predict(part=0, values=tensor(*r.cut))), "sent predict, due was"
    ),
    "an evaluation of nothing": Case(
        when_ready(lambda _, __: Evaluate(part=0)), "evaluate carries embeddings from the feature"
    ),
    "a checkpoint": Case(
        when_ready(lambda _, step: CheckpointMessage(step=max(0, step - 1))),
        "sent checkpoint, due was train|a checkpoint is of the last step",
    ),
    "ids again": Case(when_ready(lambda _, __: UNKNOWN), "sent align, due was train"),
}
LATER = {
    "a step again with another embedding": Case(
        train_with(tensor), "was released before with another embedding"
    ),
    "the first step again": Case(
        lambda r: r.say(train(r.ready(0), tensor(*r.cut))), "step 0 was released before"
    ),
    "a step that lies back": Case(
        when_ready(lambda r, step: train(step - 1, tensor(*r.cut))), "goes back behind step"
    ),
    "other examples": Case(aligned(lambda ids: ids[:200]), OTHER),
    "unknown ids": Case(aligned(lambda _: ("x", "y")), OTHER),
    "more ids": Case(aligned(lambda ids: (*ids, *map(str, range(1024)))), OTHER),
    "other ids without end": Case(align_without_end, OTHER),
}
FIRST = {
    "nothing in common": Case(aligned(lambda _: ("x", "y")), "have no id in common"),
    "too little in common": Case(aligned(lambda ids: ids[:9]), "fewer than one batch"),
    "ids without end": Case(align_without_end, "showed more than 20000 ids"),
}


def refuse(bank, case):
    """Let a rogue act and see it refused, in the log and to its face, with nothing released."""
    before, heard = bank.journal, len(bank.lines)
    rogue = bank.rogue()
    with suppress(LostError):
        case.act(rogue)
    reason = rogue.refused()
    line = bank.said(case.says, since=heard)
    assert line.startswith(("refused: ", "connection lost: "))
    if reason is not None:
        assert reason.isprintable()
    assert bank.journal == before


def test_a_rogue_before_the_run_changes_nothing(fresh, wanted, tmp_path):
    with Bank(fresh.copy(tmp_path / "pair")) as bank:
        for case in CASES.values():
            refuse(bank, case)
        finished(bank, wanted)


@pytest.mark.parametrize("name", FIRST)
def test_the_first_ids_are_the_only_ones_until_the_operator_says_otherwise(
    fresh, wanted, tmp_path, name
):
    """Every other set would be one more question about who is in the label party's table."""
    pair = fresh.copy(tmp_path / "pair")
    with Bank(pair) as bank:
        refuse(bank, FIRST[name])
        with pytest.raises(PeerError, match=r"shows other ids .* tacit party CONFIG --match-again"):
            honest(bank)
        bank.stop()
    with Bank(pair) as bank:  # nor after a restart
        with pytest.raises(PeerError, match="shows other ids"):
            honest(bank)
        bank.stop()
    assert main(["party", str(pair.bank), "--match-again"]) == 0
    with Bank(pair) as bank:
        finished(bank, wanted)
        assert bank.said("round 2 of matching with platform: 270 ids are common, of 285 here")


@pytest.mark.parametrize("name", CASES | LATER)
def test_a_rogue_in_the_middle_of_the_run_changes_nothing(fresh, wanted, tmp_path, name):
    with Bank(fresh.copy(tmp_path / "pair")) as bank:
        honest(bank, stop=STOP)
        refuse(bank, (CASES | LATER)[name])
        finished(bank, wanted)


def test_a_rogue_after_a_restart_changes_nothing(fresh, wanted, tmp_path):
    pair = fresh.copy(tmp_path / "pair")
    with Bank(pair) as bank:
        honest(bank, stop=STOP)
        bank.stop()
    with Bank(pair) as bank:
        for case in (CASES | LATER).values():
            refuse(bank, case)
        finished(bank, wanted)
