"""Which examples both parties hold: ids matched in the clear, piece by piece.

The feature party shows its ids, and the label party answers each piece with those that it has too.
So the label party learns every id of the feature party, and the feature party learns which of its
ids the label party knows. Use it only where both may know that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import InputError, PeerError
from tacit.runtime.connection import Connection
from tacit.runtime.dialogue import Align

__all__ = ["MOST_IDS", "Common", "match_ids", "offer_ids"]

Ids = npt.NDArray[Any]
Places = npt.NDArray[np.int64]

MOST_IDS = 50_000_000
_NUMBERS = 1 << 17  # ids in one message
_TEXTS = 1 << 10
_TWICE = "the feature party showed an id twice: every example has its own"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Common:
    """The examples that both hold, in the order that both share: ascending by id.

    Attributes:
        ids: of the common examples.
        order: the row of each in this party's own table.
    """

    ids: Ids
    order: Places

    def __len__(self) -> int:
        return len(self.ids)

    def digest(self) -> str:
        """Return what stands for these ids in this order."""
        state = hashlib.sha256(str(self.ids.dtype.kind).encode())
        for id_ in self.ids.tolist():
            state.update(f"{id_}\n".encode())
        return state.hexdigest()

    @classmethod
    def of(cls, shared: Ids, own: Ids) -> Common:
        """Return where the shared ids are in this party's table."""
        order = np.argsort(own, kind="stable")
        ids = np.sort(shared)
        places = order[np.searchsorted(own, ids, sorter=order)]
        return cls(ids=ids, order=places.astype(np.int64))


def offer_ids(connection: Connection, own: Ids) -> Common:
    """Show the label party all ids and return the examples that it has too."""
    found = []
    for piece in _pieces(own):
        connection.send(_message(piece))
        answer = _ids_of(connection.receive(Align), like=own)
        if not np.isin(answer, piece).all() or len(np.unique(answer)) != len(answer):
            raise PeerError("the label party answered with ids that it was not asked about")
        found.append(answer)
    shared = np.concatenate(found)
    connection.send(Align(count=len(shared)))
    _check_count(connection.receive(Align), len(shared))
    return Common.of(_some(shared), own)


def match_ids(connection: Connection, own: Ids) -> Common:
    """Answer the feature party's ids with those that this party has too, and return them."""
    found, offered, matched = [], 0, 0
    held = np.sort(own)
    while (message := connection.receive(Align)).ids is not None:
        ids = _ids_of(message, like=own)
        offered += len(ids)
        if offered > MOST_IDS:
            raise PeerError(f"the feature party showed more than {MOST_IDS} ids")
        found.append(ids[_is_in(ids, held)])
        matched += len(found[-1])
        if matched > len(own):
            raise PeerError(_TWICE)
        connection.send(_message(found[-1]))
    shared = np.concatenate(found) if found else own[:0]
    if len(np.unique(shared)) != len(shared):
        raise PeerError(_TWICE)
    _check_count(message, len(shared))
    connection.send(Align(count=len(shared)))
    return Common.of(_some(shared), own)


def _pieces(ids: Ids) -> Iterator[Ids]:
    size = _NUMBERS if ids.dtype.kind == "i" else _TEXTS
    return (ids[at : at + size] for at in range(0, len(ids), size))


def _message(ids: Ids) -> Align:
    if not len(ids):
        return Align(count=0)
    if ids.dtype.kind == "i":
        return Align(count=len(ids), ids=torch.from_numpy(ids.astype(np.int64)))
    return Align(count=len(ids), ids=tuple(map(str, ids.tolist())))


def _ids_of(message: Align, *, like: Ids) -> Ids:
    """Return the ids in a message; text and numbers cannot be matched."""
    if message.ids is None:
        return like[:0]
    numbers = isinstance(message.ids, torch.Tensor)
    if numbers != (like.dtype.kind == "i"):
        kinds = ("numbers", "text") if numbers else ("text", "numbers")
        raise PeerError(f"ids are {kinds[0]} there and {kinds[1]} here: make both columns the same")
    if isinstance(message.ids, torch.Tensor):
        return message.ids.numpy()
    # An array is as wide as its longest text. A longer one than any here is cut off where it is
    # still longer: it fits nothing either way, and the peer does not decide about memory.
    return np.array(message.ids, dtype=f"U{like.dtype.itemsize // 4 + 1}")


def _is_in(ids: Ids, held: Ids) -> npt.NDArray[np.bool_]:
    """Return which ids are among the sorted ones."""
    if not len(held):
        return np.zeros(len(ids), dtype=bool)
    places = np.minimum(np.searchsorted(held, ids), len(held) - 1)
    same: npt.NDArray[np.bool_] = held[places] == ids
    return same


def _check_count(message: Align, count: int) -> None:
    if message.ids is not None or message.count != count:
        raise PeerError(f"the parties must agree on {count} common ids, got {message.count}")


def _some(shared: Ids) -> Ids:
    if not len(shared):
        raise InputError("the two tables have no id in common: compare the id columns of both")
    return shared
