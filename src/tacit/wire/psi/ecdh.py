"""Which examples both parties hold, found without showing the others: private set intersection.

Each side turns its ids into points of secp256k1, multiplies them by a secret of its own and sends
them in a secret order. The other side multiplies them by its secret too and sends them back in
the order in which they came. A point multiplied by both secrets is the same whoever came first, so
equal ids, and only they, give equal values; without both secrets a value reveals nothing.

Guarantee: between parties that follow the rules, under the decisional Diffie-Hellman assumption on
secp256k1 with SHA-256 as a random oracle, each side learns which of its own ids the other has
too, how many ids the other has, and nothing more. Not covered: a party that puts ids into its set
which it merely guesses learns which of them the other has, and one that breaks the rules in what
it sends back can make ids look common that it does not have, or hide common ones.

References: Meadows, 1986; Huberman, Franklin and Hogg, 1999.

The sides only turn messages into messages: the feature party asks, the label party answers. ::

    message = side.start()                      while not side.done:
    while message is not None:                      send(side.answer(receive()))
        send(message)
        message = side.answer(receive())
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from tacit.errors import InputError, PeerError, UsageError
from tacit.wire.psi.curve import POINT
from tacit.wire.psi.messages import Open, Points, Reveal, Secrets, commitment, common_seed, proof
from tacit.wire.psi.pool import InlineExecutor, OwnPoints, blind_again
from tacit.wire.psi.rounds import PeerSet
from tacit.wire.psi.values import (
    Ids,
    Indices,
    Values,
    as_values,
    common_indices,
    first_repeat,
    hash_ids,
    shared_order,
    shuffled,
)

CHUNK = 8192
"""Points of each sort in one message; part of the format, both sides have the same."""
MOST_IDS = 10_000_000
_OTHER = {"feature": "label", "label": "feature"}


@final
class _Stage(StrEnum):
    NEW = "new"
    OPENING = "opening"
    POINTS = "points"
    REVEALING = "revealing"
    DONE = "done"
    FAILED = "failed"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """What an intersection found.

    Attributes:
        rows: of the common ids in this party's own table, in the order that both parties share.
        digest: stands for the common ids in this order, the same on both sides; another
            intersection has another order and another digest, even of the same tables.
        own_count: how many ids this party has; the peer has learned it.
        peer_count: how many ids the peer has.
    """

    rows: Indices
    digest: str
    own_count: int
    peer_count: int

    def __len__(self) -> int:
        return len(self.rows)


@final
class PsiSide:
    """One party's side of one intersection: messages in, messages out.

    A call out of turn is a UsageError. What the peer does against the rules is a PeerError, and
    after any error the side answers nothing more: begin again with a new one on both sides.

    Args:
        role: "feature", who asks, or "label", who answers.
        ids: whole numbers or texts, each once.
        executor: does the arithmetic; ``process_pool()`` for all cores, or else this thread.
        most: refuse sets that are larger, own or the peer's; about 400 bytes of memory per id.
        secrets: fresh ones, unless an intersection of the same ids is taken up again.
        shown: called with what the peer has sent, before it is answered; raises to refuse it.

    >>> feature, label = PsiSide("feature", [17, 4, 9]), PsiSide("label", ["9", "x", "17"])
    >>> mine, theirs = converse(feature, label)
    >>> sorted(zip(mine.rows.tolist(), theirs.rows.tolist()))
    [(0, 2), (2, 0)]
    """

    def __init__(
        self,
        role: str,
        ids: Ids,
        *,
        executor: Executor | None = None,
        most: int = MOST_IDS,
        secrets: Secrets | None = None,
        shown: PeerSet | None = None,
    ) -> None:
        if role not in _OTHER:
            raise UsageError(f"a role is one of {', '.join(_OTHER)}, got {role!r}")
        if not 1 <= len(ids) <= most:
            raise InputError(
                f"an intersection takes 1 to {most} ids, got {len(ids)}: "
                "split the table, or allow more on both sides"
            )
        self._role, self._peer = str(role), f"the {_OTHER[role]} party"
        self._executor = InlineExecutor() if executor is None else executor
        self._most = most
        self._shown = shown
        self._secrets = Secrets() if secrets is None else secrets
        self._order = shuffled(len(ids), self._secrets.shuffle)
        hashes = hash_ids(ids)[self._order]
        self._points = OwnPoints(self._executor, self._secrets.scalar, hashes, chunk=CHUNK)
        self._sent = 0  # own points
        self._own = bytearray()  # those that came back, by both secrets, in the order sent
        self._others = bytearray()  # the peer's, by both secrets
        self._peer_count = 0
        self._peer_commitment = b""
        self._indices: Indices = self._order[:0]  # of common ids, by the order sent
        self._matched: Matched | None = None
        self._stage = _Stage.NEW if role == "feature" else _Stage.OPENING

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._stage is _Stage.DONE

    def start(self) -> bytes:
        """Return the feature party's first message."""
        if self._stage is not _Stage.NEW:
            raise UsageError(
                f"only a new feature side starts, this {self._role} side is "
                f"{self._stage}: use answer()"
            )
        self._stage = _Stage.OPENING
        return self._open().pack()

    def answer(self, message: bytes) -> bytes | None:
        """Take the peer's message; return the one to send, None where the feature party is done."""
        steps: dict[_Stage, Callable[[bytes], bytes | None]] = {
            _Stage.OPENING: self._take_open,
            _Stage.POINTS: self._take_points,
            _Stage.REVEALING: self._take_reveal,
        }
        if self._stage not in steps:
            raise UsageError(
                f"a side that is {self._stage} takes no message: "
                "start() comes first, and a new side after an end"
            )
        step, self._stage = steps[self._stage], _Stage.FAILED  # unless it says otherwise
        return step(message)

    def result(self) -> Matched:
        """Return what was found, once the side is done."""
        if self._matched is None:
            raise UsageError(f"the result is there when a side is done, this one is {self._stage}")
        return self._matched

    def _open(self) -> Open:
        return Open(count=len(self._order), commitment=commitment(self._role, self._secrets.nonce))

    def _take_open(self, message: bytes) -> bytes:
        theirs = Open.unpack(message)
        if not 1 <= theirs.count <= self._most:
            raise PeerError(
                f"{self._peer} must have 1 to {self._most} ids, got {theirs.count}: "
                "split the table, or allow more on both sides"
            )
        if self._shown is not None:
            self._shown.declare(theirs.count, theirs.commitment)
        self._peer_count, self._peer_commitment = theirs.count, theirs.commitment
        self._stage = _Stage.POINTS
        return self._next_points(b"") if self._role == "feature" else self._open().pack()

    def _take_points(self, message: bytes) -> bytes:
        """Take the peer's next points and the own ones that come back; answer likewise."""
        received = len(self._others) // POINT
        due = min(CHUNK, self._peer_count - received)
        back = self._sent - len(self._own) // POINT
        theirs = Points.unpack(message, own=due, returned=back)
        self._own += theirs.returned
        again = blind_again(self._executor, self._secrets.scalar, theirs.own, first=received)
        if self._shown is not None:
            self._shown.show(theirs.own, due)
        self._others += again
        if self._role == "feature" and self._complete() and not again:
            self._indices = self._compare()
            self._stage = _Stage.REVEALING
            return self._reveal().pack()
        return self._next_points(again)

    def _next_points(self, again: bytes) -> bytes:
        own = next(self._points)
        self._sent += len(own) // POINT
        # Once the label party has everything, only the feature party's reveal can come.
        ending = self._role == "label" and self._complete()
        self._stage = _Stage.REVEALING if ending else _Stage.POINTS
        return Points(own=own, returned=again).pack()

    def _take_reveal(self, message: bytes) -> bytes | None:
        theirs, other = Reveal.unpack(message), _OTHER[self._role]
        if not hmac.compare_digest(commitment(other, theirs.nonce), self._peer_commitment):
            raise PeerError(f"{self._peer} revealed another seed than it had committed to")
        if self._role == "label":
            self._indices = self._compare()
        common = as_values(self._own)[self._indices]
        if not hmac.compare_digest(self._proof(other), theirs.proof):
            raise PeerError(f"{self._peer} found other common ids than the {len(common)} here")
        mine = self._reveal()
        nonces = (mine.nonce, theirs.nonce)
        seed = common_seed(*(nonces if self._role == "feature" else reversed(nonces)))
        self._matched = self._ordered(common, seed)
        self._stage = _Stage.DONE
        return mine.pack() if self._role == "label" else None

    def _complete(self) -> bool:
        """Whether all own points have come back, and all of the peer's have come."""
        here, there = len(self._order), self._peer_count
        return len(self._own) == here * POINT and len(self._others) == there * POINT

    def _compare(self) -> Indices:
        """Return which own points are common, by the order sent, ascending by value."""
        own, others = as_values(self._own), as_values(self._others)
        for values, what in ((own, "sent back"), (others, "sent")):
            repeat = first_repeat(values)
            if repeat is not None:
                raise PeerError(
                    f"{self._peer} {what} point {repeat[1] + 1}, the same as point "
                    f"{repeat[0] + 1}: every id may be there once"
                )
        return common_indices(own, others)

    def _reveal(self) -> Reveal:
        return Reveal(nonce=self._secrets.nonce, proof=self._proof(self._role))

    def _proof(self, role: str) -> bytes:
        counts = len(self._order), self._peer_count
        if self._role == "label":
            counts = counts[::-1]
        return proof(role, counts, as_values(self._own)[self._indices])

    def _ordered(self, common: Values, seed: bytes) -> Matched:
        order = shared_order(common, seed)
        digest = hashlib.sha256(b"tacit psi v1 digest\x00" + seed + common[order].tobytes())
        return Matched(
            rows=self._order[self._indices[order]],
            digest=digest.hexdigest(),
            own_count=len(self._order),
            peer_count=self._peer_count,
        )


def converse(
    feature: PsiSide, label: PsiSide, *, tap: Callable[[bytes], object] | None = None
) -> tuple[Matched, Matched]:
    """Run both sides in memory; ``tap`` is called with every message."""
    message = feature.start()
    while True:
        answer = label.answer(message)
        assert answer is not None  # noqa: S101 - the label party always answers
        if tap is not None:
            tap(message)
            tap(answer)
        following = feature.answer(answer)
        if following is None:
            return feature.result(), label.result()
        message = following
