"""Mutated frames against connections and a label party's whole run: refused, or lost, never else.

A conversation begins by the rules, up to a random point; then come frames that were mutated. Two
targets: a bare connection of either role, and a label party with its guard, journal and
checkpoints, which must have released nothing new and must finish the run as if nothing had been.
"""

from __future__ import annotations

import argparse
import random
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch

from fuzz_target import (
    BATCH,
    PLAN,
    STEPS,
    TIMINGS,
    WIDTH,
    Script,
    Scripted,
    Target,
    compared,
    course,
    greeting,
    honest,
    start_of,
    values,
)
from tacit.errors import LostError, PeerError, SilenceError
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient
from tacit.wire.protocol.codec import encode
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.forms import kind_of
from tacit.wire.protocol.header import HEADER_BYTES, VERSION
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Message,
    Predict,
    Records,
    Refuse,
    Upload,
)
from tacit.wire.protocol.state_machine import Role

KNOWN = 7  # steps that are on record before anything is mutated
REACH = 5  # the last step that a conversation with mutated frames asks for
RECORDS = Records(count=KNOWN + 9, values=torch.arange(3 * RECORD_BYTES).to(torch.uint8))
RIGHT = [*greeting(0), *course(0, REACH + 1), encode(RECORDS)]


def mutated(rng: random.Random, frame: bytes, others: list[bytes]) -> bytes:
    """Return a frame after one to three edits: bits, bytes, fields of the header, lengths."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    if rng.random() < 0.1:
        return rng.choice(others)  # a right frame at the wrong time
    spoilt = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        _edit(rng, spoilt, others)
    if rng.random() < 0.3 and len(spoilt) >= HEADER_BYTES:  # past the length check
        struct.pack_into("<q", spoilt, HEADER_BYTES - 8, len(spoilt) - HEADER_BYTES)
    return bytes(spoilt)


def _edit(rng: random.Random, frame: bytearray, others: list[bytes]) -> None:
    body = len(frame) > HEADER_BYTES and rng.random() < 0.5
    at = rng.randrange(HEADER_BYTES if body else 0, len(frame)) if frame else 0
    match rng.randrange(7):
        case 0 if frame:
            frame[at] ^= 1 << rng.randrange(8)
        case 1 if frame:
            frame[at] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
        case 2:
            frame[at:at] = rng.randbytes(rng.randint(1, 9))
        case 3:
            del frame[at : at + rng.randint(1, 9)]
        case 4:
            frame[at:] = rng.choice(others)[at:]
        case 5 if len(frame) >= HEADER_BYTES:  # a whole field: step, shape or length
            offset, form = rng.choice([(16, "<q"), (24, "<i"), (28, "<i"), (40, "<q"), (6, "<H")])
            bits = 8 * struct.calcsize(form) - 1
            value = rng.choice([0, 1, 3, 9, 2**bits - 1, rng.randrange(2**bits)])
            struct.pack_into(form, frame, offset, value)
        case _ if len(frame) >= HEADER_BYTES + 4:  # a value in the body: NaN, infinity, huge
            offset = rng.randrange(HEADER_BYTES, len(frame) - 3)
            struct.pack_into("<I", frame, offset, rng.choice([0x7FC00000, 0x7F800000, 0x7F7FFFFF]))


def summary_of(error: str) -> str:
    """Return what a refusal is about, without the values in it."""
    text = re.sub(r"refused: |a frame was |the (feature|label) party broke the rules: ", "", error)
    text = re.sub(r"^\w+ is not allowed in state \w+", "not allowed in this state", text)
    text = re.sub(r"sent \w+, due was \w+", "sent what was not due", text)
    return re.split(r",? got |[\d\['\"(]|: every|: run", text)[0].strip(" :,-")[:60]


# --- a bare connection, of either role ---


def _talk() -> list[Message]:
    """Return one conversation from hello to goodbye; the feature party speaks first, in turns."""
    said: list[Message] = [
        Hello(versions=(VERSION,), party="platform", plan_digest=PLAN.digest()),
        Hello(versions=(VERSION,), party="bank", plan_digest=PLAN.digest()),
        Align(count=3, ids=("a", "b", "c")),
        Align(count=2, ids=("a", "c")),
        Align(count=2, ids=torch.tensor([5, -7])),
        Align(count=1),
        Align(count=2),
        Align(count=2),
        RECORDS,
        Records(count=KNOWN),
    ]
    for step in range(3):
        said += [
            Embedding(step=step, values=values(BATCH, WIDTH)),
            Gradient(step=step, values=values(BATCH, WIDTH), record=bytes(RECORD_BYTES)),
        ]
    said += [
        Evaluate(part=0, values=values(3, WIDTH)),
        Evaluate(part=0, note="test auc 0.70", record=bytes(RECORD_BYTES)),
        Predict(part=1, values=values(3, WIDTH)),
        Predict(part=1),
        Upload(part=0, bottom=PLAN.digest()),
        Upload(part=0),
        Upload(part=0, values=values(3, WIDTH)),
        Upload(part=1),
        Upload(part=1, codes=torch.arange(6).to(torch.uint8).reshape(3, 2)),
        Upload(part=2),
        CheckpointMessage(step=2),
        CheckpointMessage(step=2),
    ]
    return said


TALK = _talk()
TALK_FRAMES = [encode(m) for m in [*TALK, Heartbeat(), Bye(), Refuse(reason="no")]]


def fuzz_connection(rng: random.Random, counts: Counter[str]) -> int:
    """Lead one connection to a random point, then mutate; return how many of those it took."""
    role = rng.choice(list(Role))
    point, theirs = rng.randrange(len(TALK)), 1 if role is Role.FEATURE else 0
    taken: list[bytes] = []

    def script(_answers: list[bytes]) -> Iterator[bytes]:
        yield from TALK_FRAMES[:point][theirs::2]
        for _ in range(rng.randint(1, 4)):
            taken.append(mutated(rng, TALK_FRAMES[point], TALK_FRAMES))
            yield taken[-1]

    try:
        with Connection(Scripted(script), role, timings=TIMINGS) as connection:
            for turn, said in enumerate(TALK[:point]):
                if turn % 2 == theirs:
                    connection.receive(type(said))
                else:
                    connection.send(said)
            if point % 2 != theirs:
                connection.send(TALK[point])
            while True:
                message = connection.receive(type(rng.choice(TALK)))
                counts[f"taken: {kind_of(type(message)).word}"] += 1
    except SilenceError as error:
        raise AssertionError("a connection waited for what could not come") from error
    except (PeerError, LostError) as error:
        text = str(error)
    assert text.isprintable(), "a refusal must be one line"
    counts[summary_of(text)] += 1
    return len(taken)


# --- a label party's whole run ---


def hostile(rng: random.Random, sent: Counter[str]) -> Script:
    """Return a feature party that keeps the rules for a while."""
    offer = rng.randint(0, REACH)

    def script(answers: list[bytes]) -> Iterator[bytes]:
        hellos = greeting(offer)
        early = rng.random() < 0.3
        point = rng.randrange(len(hellos)) if early else len(hellos)
        yield from hellos[:point]
        if not early and rng.random() < 0.2:
            sent["mutated"] += 1
            yield mutated(rng, encode(RECORDS), RIGHT)
        elif not early:
            yield from compared(answers)
        said = hellos[point:] if early else course(start_of(answers), REACH + 1)
        then = 0 if early else rng.randrange(len(said))
        yield from said[:then]
        for _ in range(rng.randint(1, 3)):
            sent["mutated"] += 1
            yield mutated(rng, said[then], RIGHT)
        yield from said[then + 1 :]

    return script


def fuzz_run(seed: int, conversations: int, counts: Counter[str]) -> int:
    """Let rogues talk to a label party; return how many frames were mutated."""
    rng, sent = random.Random(seed), Counter[str]()  # noqa: S311 - not a secret
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        quiet, target = (Target(folder=Path(folder), log=[]) for folder in (one, two))
        assert quiet.serve_scripts(iter([honest(0, STEPS)])) == "finished", quiet.log
        assert target.serve_scripts(iter([honest(0, KNOWN)])) == "over", target.log
        before, heard = target.journal.path.read_bytes(), len(target.log)
        scripts = (hostile(rng, sent) for _ in range(conversations))
        assert target.serve_scripts(scripts) == "over", target.log[-1]
        assert target.journal.path.read_bytes() == before, "something new was released"
        for line in target.log[heard:]:
            if not re.search("is here, .* steps to go", line):
                counts[summary_of(line)] += 1
        assert target.serve_scripts(iter([honest(REACH, STEPS)])) == "finished", target.log[-1]
        pairs = zip(quiet.weights(), target.weights(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), "the run ended elsewhere"
        assert quiet.journal.path.read_bytes() == target.journal.path.read_bytes()
        for each in (quiet, target):
            each.journal.close()
    return sent["mutated"]


def fuzz(*, seed: int, frames: int, conversations: int) -> tuple[int, int, Counter[str]]:
    """Mutate so many frames for connections, and let so many rogues talk to a label party."""
    counts: Counter[str] = Counter()
    rng, done = random.Random(seed), 0  # noqa: S311 - not a secret
    while done < frames:
        done += fuzz_connection(rng, counts)
    return done, fuzz_run(seed, conversations, counts), counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--conversations", type=int, default=5_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begun = perf_counter()
    frames, in_runs, counts = fuzz(
        seed=asked.seed, frames=asked.frames, conversations=asked.conversations
    )
    for kind, count in counts.most_common():
        print(f"{count:8,}  {kind}")
    print(
        f"{frames:,} mutated frames at connections, {in_runs:,} in {asked.conversations:,} "
        f"conversations with a label party; nothing but refusals and lost connections; seed "
        f"{asked.seed}, {perf_counter() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
