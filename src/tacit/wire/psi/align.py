"""Which examples all parties hold, found in private or in the clear, and sent to every party.

The label party matches its ids with those of each feature party, keeps the examples that all of
them have, and tells each which of the ids in common these are. With several feature parties, each
so learns which of its own ids all the others have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import InputError, LostError, TacitError, UsageError
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Align
from tacit.wire.psi.ecdh import PsiSide
from tacit.wire.psi.plaintext import hear_ids, show_ids
from tacit.wire.psi.pool import process_pool
from tacit.wire.psi.rounds import PeerSet, Rounds

Ids = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_PER_MESSAGE = 1 << 17  # in one message
_NOTHING = "the tables have no id in common: compare the id columns of all"
_FEW = 20_000  # ids for which other processes are not worth their start


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """The examples that all parties hold, in the order that all share.

    Attributes:
        ids: of the common examples.
        order: the row of each in this party's own table.
        digest: stands for this matching, the same at all parties.
    """

    ids: Ids
    order: Indices
    digest: str

    def __len__(self) -> int:
        return len(self.order)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Matching:
    """One party's side of the matching.

    Args:
        ids: of this party's table, each once.
        private: whether ids are matched without showing those that are not common.
        peers: the other parties by name, at the label party in the order of their connections.
        held: a matching that was done before, for which no other is done if all still have it.
        rounds: says which set of ids each peer may show; None where only ``held`` will do.
        log: called with the number of the round and how many ids each side has; the other side has
            learned the same.
    """

    ids: Ids
    private: bool
    peers: tuple[str, ...] = ()
    held: Alignment | None = None
    rounds: Rounds | None = field(default_factory=Rounds)
    log: Callable[[str], None] = lambda _: None

    def common(self, order: Indices, digest: str) -> Alignment:
        """Return common examples by their rows here."""
        if not len(order):
            raise InputError(_NOTHING)
        return Alignment(ids=self.ids[order], order=order, digest=digest)

    @contextmanager
    def round_with(self, number: int) -> Iterator[_Round]:
        """Open the round with one of the peers; log it if the round breaks off."""
        if self.rounds is None:
            raise LostError("the other party has another matching than worker 0 of this one")
        self.rounds.begin(self.ids)
        peer = self.peers[number] if number < len(self.peers) else f"party {number}"
        shown = self.rounds.with_peer(peer)
        again = ", which goes on with the same ids" if shown.repeated else ""
        self.log(f"matching {len(self.ids)} ids with {peer}, round {shown.number}{again}")
        try:
            yield _Round(matching=self, rounds=self.rounds, shown=shown)
        except TacitError:
            broken = f"broke off after {shown.seen} ids of {peer} were answered"
            self.log(f"round {shown.number} of matching with {peer} {broken}")
            raise


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Round:
    """One round of matching with one peer."""

    matching: Matching
    rounds: Rounds
    shown: PeerSet

    def rows(self, talk: Callable[[PsiSide], None], role: str) -> Indices:
        """Run a side of a private intersection with the peer; return the common rows."""
        ids = self.matching.ids
        order = np.argsort(ids, kind="stable")  # so that the same ids are shown in the same order
        with ExitStack() as stack:
            pool = stack.enter_context(process_pool()) if len(ids) > _FEW else None
            side = PsiSide(
                role,
                ids[order],
                executor=pool,
                secrets=self.rounds.secrets(self.shown.peer, role=role),
                shown=self.shown,
            )
            talk(side)
            rows: Indices = order[side.result().rows].astype(np.int64)
            return rows

    def settle(self, common: int) -> None:
        """Record and log the result."""
        self.shown.settle(common)
        there = f" and {self.shown.seen} there" if self.shown.seen else ""
        self.matching.log(
            f"round {self.shown.number} of matching with {self.shown.peer}: {common} ids are "
            f"common, of {len(self.matching.ids)} here{there}"
        )


def join_common(connection: Connection, matching: Matching) -> Alignment:
    """Do a feature party's side; return the examples that all parties have."""
    held = matching.held
    if held is not None:
        connection.send(Align(held=held.digest))
        if connection.receive(Align).held == held.digest:
            return held
    with connection.blamed(), matching.round_with(0) as current:
        if matching.private:
            rows = current.rows(partial(_ask, connection), "feature")
        else:
            rows = show_ids(connection, matching.ids)
        current.settle(len(rows))
    connection.send(Align(count=len(rows)))
    answer = connection.receive(Align)
    if answer.held is None:
        rows = rows[_indices(connection, answer.count, below=len(rows))]
        connection.send(Align(count=len(rows)))
        answer = connection.receive(Align)
    if answer.held is None:
        raise connection.wrong("the label party gave the matching no name")
    return matching.common(rows, answer.held)


def find_common(
    connections: Sequence[Connection],
    matching: Matching,
    settle: Callable[[Alignment], None] = lambda _: None,
) -> Alignment:
    """Do the label party's side with every feature party; return what all have.

    ``settle`` raises UsageError where these will not do. Then they are sent to nobody, and a party
    that did not come with the matching of before is to blame: the others find theirs as it was.
    """
    asked = [connection.receive(Align) for connection in connections]
    held = matching.held
    others = [
        c for c, m in zip(connections, asked, strict=True) if held is None or m.held != held.digest
    ]
    if held is not None and not others:
        settle(held)
        for connection in connections:
            connection.send(Align(held=held.digest))
        return held
    rows = []
    for number, (connection, message) in enumerate(zip(connections, asked, strict=True)):
        with connection.blamed(), matching.round_with(number) as current:
            rows.append(_heard(connection, current, _anew(connection, message)))
            if not len(rows[-1]):
                raise connection.wrong(_NOTHING)
    chosen = rows[0][np.all([np.isin(rows[0], other) for other in rows], axis=0)]
    digest = _digest(matching.ids, chosen, private=matching.private)
    common = matching.common(chosen, digest)
    try:
        settle(common)
    except UsageError as error:
        raise others[0].wrong(str(error)) from error
    for connection, shared in zip(connections, rows, strict=True):
        _send_chosen(connection, shared, chosen, digest)
    return common


def _anew(connection: Connection, message: Align) -> Align:
    """Return the first message of a new matching, also from a peer that still has an old one."""
    if message.held is None:
        return message
    connection.send(Align())
    return connection.receive(Align)


def _ask(connection: Connection, side: PsiSide) -> None:
    """Find the common ids in private, as the feature party, which sends first."""
    message: bytes | None = side.start()
    while message is not None:
        connection.send(Align(sealed=_sealed(message)))
        message = side.answer(_opened(connection, connection.receive(Align)))


def _heard(connection: Connection, current: _Round, first: Align) -> Indices:
    """Find the common ids in private, as the label party, which answers."""
    matching, last = current.matching, first
    if not matching.private:
        rows = hear_ids(connection, matching.ids, first, current.shown)
        current.settle(len(rows))
        return rows

    def answer(side: PsiSide) -> None:
        nonlocal last
        done = False
        while not done:
            said, done = side.answer(_opened(connection, last)), side.done
            if done:
                current.settle(len(side.result()))
            connection.send(Align(sealed=_sealed(said or b"")))
            last = connection.receive(Align)

    rows = current.rows(answer, "label")
    if last.count != len(rows):
        raise connection.wrong(f"{len(rows)} ids are common, the feature party has {last.count}")
    return rows


def _send_chosen(connection: Connection, shared: Indices, chosen: Indices, digest: str) -> None:
    """Tell a feature party which of the examples shared with it everyone has, and in which order.

    Nothing is sent where these are all of them, in the order that the peer has.
    """
    if not np.array_equal(shared, chosen):
        where = np.argsort(shared)
        indices = where[np.searchsorted(shared, chosen, sorter=where)].astype(np.int64)
        connection.send(Align(count=len(indices)))
        for at in range(0, len(indices), _PER_MESSAGE):
            connection.receive(Align)
            piece = torch.from_numpy(indices[at : at + _PER_MESSAGE])
            connection.send(Align(ids=piece))
        connection.receive(Align)
    connection.send(Align(held=digest))


def _indices(connection: Connection, count: int, *, below: int) -> Indices:
    """Return where the examples that everyone has are among those shared with the label party."""
    if count > below:  # before anything is asked for: the peer does not decide about memory
        raise connection.wrong(f"of {below} ids in common, {count} cannot be everyone's")
    found: list[Indices] = []
    while sum(map(len, found)) < count:
        connection.send(Align(count=below))
        message = connection.receive(Align)
        if not isinstance(message.ids, torch.Tensor):
            raise connection.wrong("the label party did not say which examples everyone has")
        found.append(message.ids.numpy())
    indices = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    fits = len(np.unique(indices)) == len(indices) == count
    if not fits or (count and not 0 <= indices.min() <= indices.max() < below):
        raise connection.wrong(f"{count} indices below {below} were due, got others")
    return indices


def _digest(ids: Ids, chosen: Indices, *, private: bool) -> str:
    """Return a digest that names a matching; only parties with all of its ids get it."""
    state = hashlib.sha256(b"tacit matching" + bytes([private]))
    for id_ in ids[chosen].tolist():
        state.update(f"{id_}\n".encode())
    return state.hexdigest()


def _sealed(message: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def _opened(connection: Connection, message: Align) -> bytes:
    if message.sealed is None:
        raise connection.wrong("ids are matched in private here: set matching the same there")
    return message.sealed.numpy().tobytes()
