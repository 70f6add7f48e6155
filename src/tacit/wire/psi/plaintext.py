"""Ids matched in the clear, piece by piece.

The feature party shows its ids, and the label party answers each piece with those that it has too.
So the label party learns every id of the feature party, and the feature party learns which of its
ids the label party knows. Use it only where both may know that; ``psi`` reveals neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Align
from tacit.wire.psi.rounds import PeerSet

Ids = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

MOST_IDS = 50_000_000
_NUMBERS = 1 << 17  # ids in one message
_TEXTS = 1 << 10
_TWICE = "the feature party showed an id twice: every example has its own"


def show_ids(connection: Connection, own: Ids) -> Indices:
    """Show the label party all ids; return the rows of those that it has too, ascending by id.

    They are shown in ascending order, so that the same ids are the same pieces.
    """
    found = []
    for piece in _pieces(np.sort(own)):
        connection.send(_message(piece))
        answer = _ids_of(connection, connection.receive(Align), like=own)
        if not np.isin(answer, piece).all() or len(np.unique(answer)) != len(answer):
            raise connection.wrong("the label party answered with ids that it was not asked about")
        found.append(answer)
    return _rows(np.concatenate(found), own)


def hear_ids(connection: Connection, own: Ids, first: Align, shown: PeerSet) -> Indices:
    """Answer a feature party's ids with those that this party has too; return the same.

    What it shows is on record before it is answered. The feature party then says how many it
    found, which is not answered here.
    """
    found, offered, matched, message = [], 0, 0, first
    held = np.sort(own)
    while message.ids is not None:
        ids = _ids_of(connection, message, like=own)
        offered += len(ids)
        if offered > MOST_IDS:
            raise connection.wrong(f"the feature party showed more than {MOST_IDS} ids")
        found.append(ids[_is_in(ids, held)])
        matched += len(found[-1])
        if matched > len(own) or len(np.unique(found[-1])) != len(found[-1]):
            raise connection.wrong(_TWICE)
        shown.show(_as_bytes(ids), len(ids))
        connection.send(_message(found[-1]))
        message = connection.receive(Align)
    shared = np.concatenate(found) if found else own[:0]
    if len(np.unique(shared)) != len(shared):
        raise connection.wrong(_TWICE)
    if message.sealed is not None or message.held is not None or message.count != len(shared):
        raise connection.wrong(
            f"the parties must agree on {len(shared)} common ids, got {message.count}"
        )
    return _rows(shared, own)


def _as_bytes(ids: Ids) -> bytes:
    """Return ids as bytes that differ where ids do: numbers, or text that holds no line ends."""
    if ids.dtype.kind == "i":
        return ids.astype("<i8").tobytes()
    return "\n".join(ids.tolist()).encode()


def _rows(shared: Ids, own: Ids) -> Indices:
    """Return where ids are in this party's table, ascending by id."""
    order = np.argsort(own, kind="stable")
    rows: Indices = order[np.searchsorted(own, np.sort(shared), sorter=order)].astype(np.int64)
    return rows


def _pieces(ids: Ids) -> Iterator[Ids]:
    size = _NUMBERS if ids.dtype.kind == "i" else _TEXTS
    return (ids[at : at + size] for at in range(0, len(ids), size))


def _message(ids: Ids) -> Align:
    if not len(ids):
        return Align(count=0)
    if ids.dtype.kind == "i":
        return Align(ids=torch.from_numpy(ids.astype(np.int64)))
    return Align(ids=tuple(map(str, ids.tolist())))


def _ids_of(connection: Connection, message: Align, *, like: Ids) -> Ids:
    """Return the ids in a message; text and numbers cannot be matched."""
    if message.sealed is not None or message.held is not None:
        raise connection.wrong("ids are matched in the clear here: set matching the same there")
    if message.ids is None:
        return like[:0]
    numbers = isinstance(message.ids, torch.Tensor)
    if numbers != (like.dtype.kind == "i"):
        kinds = ("numbers", "text") if numbers else ("text", "numbers")
        raise connection.wrong(
            f"ids are {kinds[0]} there and {kinds[1]} here: make both columns the same"
        )
    if isinstance(message.ids, torch.Tensor):
        return message.ids.numpy()
    # An array is as wide as its longest text. A longer one than any here is cut off where it is
    # still longer: it fits nothing either way, and the peer does not decide about memory.
    return np.array(message.ids, dtype=f"U{like.dtype.itemsize // 4 + 1}")


def _is_in(ids: Ids, held: Ids) -> npt.NDArray[np.bool_]:
    """Return which ids are among the sorted ones."""
    if not len(held):
        return np.zeros(len(ids), dtype=bool)
    indices = np.minimum(np.searchsorted(held, ids), len(held) - 1)
    same: npt.NDArray[np.bool_] = held[indices] == ids
    return same
