"""Which examples all parties hold, found in private or in the clear, and told to everyone.

The label party matches its ids with those of each feature party, keeps the examples that all of
them have, and tells each which of the ids in common these are. With several feature parties, each
so learns which of its own ids all the others have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import InputError, UsageError
from tacit.runtime.clear_ids import hear_ids, show_ids
from tacit.runtime.connection import Connection
from tacit.runtime.dialogue import Align
from tacit.runtime.psi import Matched, PsiSide, workers

__all__ = ["Common", "Matching", "find_common", "join_common"]

Ids = npt.NDArray[Any]
Places = npt.NDArray[np.int64]

_PLACES = 1 << 17  # in one message
_NOTHING = "the tables have no id in common: compare the id columns of all"
_FEW = 20_000  # ids for which other processes are not worth their start


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Common:
    """The examples that all parties hold, in the order that all share.

    Attributes:
        ids: of the common examples.
        order: the row of each in this party's own table.
        digest: stands for this matching, the same at all parties.
    """

    ids: Ids
    order: Places
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
        held: a matching that was done before, for which no other is done if all still have it.
        log: hears how many ids each side has; the other side has learned the same.
    """

    ids: Ids
    private: bool
    held: Common | None = None
    log: Callable[[str], None] = lambda _: None

    def common(self, order: Places, digest: str) -> Common:
        """Return common examples by their rows here."""
        if not len(order):
            raise InputError(_NOTHING)
        return Common(ids=self.ids[order], order=order, digest=digest)


def join_common(connection: Connection, matching: Matching) -> Common:
    """Do a feature party's side; return the examples that all parties have."""
    held = matching.held
    if held is not None:
        connection.send(Align(held=held.digest))
        if connection.receive(Align).held == held.digest:
            return held
    if matching.private:
        matching.log(f"matching {len(matching.ids)} ids in private")
        rows = _meet(connection, matching)
    else:
        rows = show_ids(connection, matching.ids)
    connection.send(Align(count=len(rows)))
    answer = connection.receive(Align)
    if answer.held is None:
        rows = rows[_places(connection, answer.count, below=len(rows))]
        connection.send(Align(count=len(rows)))
        answer = connection.receive(Align)
    if answer.held is None:
        raise connection.wrong("the label party gave the matching no name")
    return matching.common(rows, answer.held)


def find_common(
    connections: Sequence[Connection],
    matching: Matching,
    settle: Callable[[Common], None] = lambda _: None,
) -> Common:
    """Do the label party's side with every feature party; return what all have.

    ``settle`` raises UsageError where these will not do. Then nobody is told of them, and a party
    that did not come with the matching of before is to blame: the others find theirs as it was.
    """
    asked = [connection.receive(Align) for connection in connections]
    held = matching.held
    others = [c for c, m in zip(connections, asked, strict=True)
              if held is None or m.held != held.digest]  # fmt: skip
    if held is not None and not others:
        settle(held)
        for connection in connections:
            connection.send(Align(held=held.digest))
        return held
    rows = []
    for connection, message in zip(connections, asked, strict=True):
        first = _anew(connection, message)
        with connection.blamed():
            rows.append(
                _host(connection, matching, first)
                if matching.private
                else hear_ids(connection, matching.ids, first)
            )
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
        _tell(connection, shared, chosen, digest)
    return common


def _anew(connection: Connection, message: Align) -> Align:
    """Return the first message of a new matching, also from who still has an old one."""
    if message.held is None:
        return message
    connection.send(Align())
    return connection.receive(Align)


def _meet(connection: Connection, matching: Matching) -> Places:
    """Find the common ids in private, as the one who asks."""
    with ExitStack() as stack:
        pool = stack.enter_context(workers()) if len(matching.ids) > _FEW else None
        side = PsiSide("feature", matching.ids, executor=pool)
        message: bytes | None = side.start()
        with connection.blamed():
            while message is not None:
                connection.send(Align(sealed=_sealed(message)))
                message = side.answer(_opened(connection, connection.receive(Align)))
        return _told(side.result(), matching)


def _host(connection: Connection, matching: Matching, first: Align) -> Places:
    """Find the common ids in private, as the one who answers; the last count stays unanswered."""
    with ExitStack() as stack:
        pool = stack.enter_context(workers()) if len(matching.ids) > _FEW else None
        side, message = PsiSide("label", matching.ids, executor=pool), first
        while True:
            answer = side.answer(_opened(connection, message))
            connection.send(Align(sealed=_sealed(answer or b"")))
            message = connection.receive(Align)
            if side.done:
                break
        rows = _told(side.result(), matching)
    if message.count != len(rows):
        raise connection.wrong(f"{len(rows)} ids are common, the feature party has {message.count}")
    return rows


def _told(found: Matched, matching: Matching) -> Places:
    matching.log(f"{len(found)} ids are common, of {found.own_count} here and "
                 f"{found.peer_count} there")  # fmt: skip
    return found.rows


def _tell(connection: Connection, shared: Places, chosen: Places, digest: str) -> None:
    """Tell a feature party which of the examples shared with it everyone has, and in which order.

    Where these are all of them, in the order that it knows, there is nothing to tell.
    """
    if not np.array_equal(shared, chosen):
        where = np.argsort(shared)
        places = where[np.searchsorted(shared, chosen, sorter=where)].astype(np.int64)
        connection.send(Align(count=len(places)))
        for at in range(0, len(places), _PLACES):
            connection.receive(Align)
            piece = torch.from_numpy(places[at : at + _PLACES])
            connection.send(Align(count=len(piece), ids=piece))
        connection.receive(Align)
    connection.send(Align(held=digest))


def _places(connection: Connection, count: int, *, below: int) -> Places:
    """Return where the examples that everyone has are among those shared with the label party."""
    if count > below:  # before anything is asked for: the peer does not decide about memory
        raise connection.wrong(f"of {below} ids in common, {count} cannot be everyone's")
    found: list[Places] = []
    while sum(map(len, found)) < count:
        connection.send(Align(count=below))
        message = connection.receive(Align)
        if not isinstance(message.ids, torch.Tensor):
            raise connection.wrong("the label party did not say which examples everyone has")
        found.append(message.ids.numpy())
    places = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    fits = len(np.unique(places)) == len(places) == count
    if not fits or (count and not 0 <= places.min() <= places.max() < below):
        raise connection.wrong(f"{count} places below {below} were due, got others")
    return places


def _digest(ids: Ids, chosen: Places, *, private: bool) -> str:
    """Return the name of a matching: only those hear it who know all of its ids."""
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
