"""Mutated messages in a running matching, from either side: refused or lost, never worse.

``python tests/integration/test_match_fuzz.py 5000`` does the same with more
tries and says what came out.
"""

import random
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from peers import dial_to, fresh_pair, listener
from tacit.errors import InputError, LostError, PeerError
from tacit.party.config import read_party_config
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.messages import Align, Hello
from tacit.wire.protocol.state_machine import Role
from tacit.wire.psi.align import Matching, find_common, join_common
from tacit.wire.transport.base import Transport
from tacit.wire.transport.memory import memory_transports

IDS = {"feature": 60, "label": 50}
TIMINGS = Timings(beat=0.5, silence=2, patience=4, greeting=2)
MEMORY = 64 << 20


class Mutating(Transport):
    """Changes one message of the matching on its way out."""

    def __init__(self, inner, rng, turn):
        self._inner, self._rng, self._left = inner, rng, turn
        self.changed = False

    @property
    def peer(self):
        return self._inner.peer

    def send(self, frame, *, timeout):
        message = decode(frame)
        if isinstance(message, Align):
            self._left -= 1
            if self._left == 0:
                made = mutated(frame, message, self._rng)
                self.changed = made != frame
                frame = made
        self._inner.send(frame, timeout=timeout)

    def receive(self, *, timeout):
        return self._inner.receive(timeout=timeout)

    def close(self):
        self._inner.close()


def mutated(frame, message, rng):
    """Return another frame: changed bytes, or a message by the rules with other content."""
    if rng.random() < 0.4:
        return bytes_of(frame, rng)
    with suppress(InputError):
        return encode(other(message, rng))
    return bytes_of(frame, rng)


def bytes_of(content, rng):
    made = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(made)), rng.choice((1, 2, 8, 32, 64))
        kind = rng.randrange(5)
        if kind == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at : at + size] = rng.randbytes(size)
        elif kind == 2:
            made[at : at + size] = bytes([rng.choice((0, 255))]) * size
        elif kind == 3:
            del made[at : at + size]
        else:
            made[at:at] = made[at : at + size]
        made = made or bytearray(1)
    return bytes(made)


def other(message, rng):
    """Return a well-formed message of the matching that says something else."""
    kind = rng.randrange(5)
    if kind == 0:
        return Align(count=rng.choice((0, 1, 10**6, 2**62)))
    if kind == 1:
        return Align(held=rng.randbytes(32).hex())
    if kind == 2:
        ids = [rng.choice((-(2**63), -1, 0, 1, 49, 2**62)) for _ in range(rng.randint(1, 70))]
        return Align(count=len(ids), ids=torch.tensor(ids))
    if message.sealed is not None:
        content = bytes_of(message.sealed.numpy().tobytes(), rng)
        return Align(sealed=torch.frombuffer(bytearray(content), dtype=torch.uint8))
    if isinstance(message.ids, torch.Tensor):
        ids = message.ids.numpy().copy()
        ids[rng.randrange(len(ids))] = rng.choice((-1, 0, 2**40))
        return Align(count=len(ids), ids=torch.from_numpy(ids))
    return Align(count=message.count + rng.choice((-1, 1)))


def converse(lines, private):
    """Match on both ends of a transport; return how each of them ended."""
    ended = {}
    hello = {"versions": (1,), "plan_digest": "0" * 64}
    ids = {name: np.arange(count) + 5 for name, count in IDS.items()}

    def feature():
        with Connection(lines["feature"], Role.FEATURE, timings=TIMINGS) as connection:
            connection.send(Hello(party="a", **hello))
            connection.receive(Hello)
            return join_common(connection, Matching(ids=ids["feature"], private=private))

    def label():
        with Connection(lines["label"], Role.LABEL, timings=TIMINGS) as connection:
            connection.receive(Hello)
            connection.send(Hello(party="b", **hello))
            return find_common([connection], Matching(ids=ids["label"], private=private))

    def run(name, act):
        try:
            ended[name] = act()
        except BaseException as error:
            ended[name] = error

    threads = [
        threading.Thread(target=run, args=pair, daemon=True)
        for pair in (("feature", feature), ("label", label))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a party hangs"
    return ended


def tried(seed, opened, *, hostile, private):
    """Let one message of one side be changed; return the name of what came of it at the other."""
    rng = random.Random(seed)  # noqa: S311
    ours, theirs = opened()
    lines = {"feature": ours, "label": theirs}
    lines[hostile] = changing = Mutating(lines[hostile], rng, rng.randint(1, 6))
    ended = converse(lines, private)
    honest = ended["label" if hostile == "feature" else "feature"]
    for name, outcome in ended.items():
        allowed = (PeerError, LostError, InputError) if name == hostile else (PeerError, LostError)
        if isinstance(outcome, BaseException) and not isinstance(outcome, allowed):
            raise AssertionError(f"seed {seed}, {name}: {outcome!r}") from outcome
    if isinstance(honest, PeerError):
        assert str(honest).isprintable(), honest
        return "refused"
    if isinstance(honest, LostError):
        return "lost"
    assert len(honest) <= min(IDS.values())
    return "changed and taken" if changing.changed else "not reached"


def fuzz(tries, *, first=0, opened=memory_transports):
    """Try many; return what came of them, and the most memory that Python objects took."""
    found = Counter()
    tracemalloc.start()
    for seed in range(first, first + tries):
        hostile, private = ("feature", "label")[seed % 2], seed % 4 < 2
        found[tried(seed, opened, hostile=hostile, private=private)] += 1
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, most


def test_mutated_matching_messages_are_refused_or_lost():
    found, most = fuzz(300)
    assert most < MEMORY
    assert found["refused"] > 100
    assert sum(found.values()) == 300


@contextmanager
def over_tls(folder):
    """Return what opens lines between two parties with certificates, through a real socket."""
    pair = fresh_pair(folder)
    with closing(listener(read_party_config(pair.bank), log=lambda _: None)) as accepting:

        def opened():
            ours = dial_to(pair)
            return ours, accepting.accept(timeout=30)

        yield opened


def test_the_same_over_tls(tmp_path):
    with over_tls(tmp_path / "pair") as opened:
        found, most = fuzz(40, opened=opened)
    assert most < MEMORY
    assert found["refused"] > 8
    assert sum(found.values()) == 40


@pytest.mark.parametrize("private", [True, False])
def test_an_unchanged_matching_finds_what_is_common(private):
    ours, theirs = memory_transports()
    ended = converse({"feature": ours, "label": theirs}, private)
    assert len(ended["feature"]) == len(ended["label"]) == 50


if __name__ == "__main__":
    sys.stdout.write(f"in memory: {fuzz(int(sys.argv[1]), first=1000)}\n")
    with tempfile.TemporaryDirectory() as folder, over_tls(Path(folder) / "pair") as transports:
        sys.stdout.write(
            f"over TLS: {fuzz(int(sys.argv[1]) // 10, first=1000, opened=transports)}\n"
        )
