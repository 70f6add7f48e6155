"""Which examples both parties hold: ids matched in the clear, piece by piece.

The feature party shows its ids, and the label party answers each piece with those that it has too.
So the label party learns every id of the feature party, and the feature party learns which of its
ids the label party knows. Where there are several feature parties, each also learns which of those
the others have. Use it only where all may know that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import InputError
from tacit.runtime.connection import Connection
from tacit.runtime.dialogue import Align

__all__ = ["MOST_IDS", "Common", "common_to_all", "hear_ids", "offer_ids", "tell_common"]

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
    """Show the label party all ids and return the examples that all parties have."""
    found = []
    for piece in _pieces(own):
        connection.send(_message(piece))
        answer = _ids_of(connection, connection.receive(Align), like=own)
        if not np.isin(answer, piece).all() or len(np.unique(answer)) != len(answer):
            raise connection.wrong("the label party answered with ids that it was not asked about")
        found.append(answer)
    shared = np.sort(np.concatenate(found))
    count = _ask(connection, len(shared))
    if count.ids is not None or count.count > len(shared):
        raise connection.wrong(
            f"of {len(shared)} common ids, {count.count} cannot be common to all"
        )
    if count.count < len(shared):
        shared = shared[_kept(connection, len(shared), count.count)]
    return Common.of(_some(shared), own)


def hear_ids(connection: Connection, own: Ids) -> Ids:
    """Answer a feature party's ids with those that this party has too, and return them.

    It then waits for :func:`tell_common`.
    """
    found, offered, matched = [], 0, 0
    held = np.sort(own)
    while (message := connection.receive(Align)).ids is not None:
        ids = _ids_of(connection, message, like=own)
        offered += len(ids)
        if offered > MOST_IDS:
            raise connection.wrong(f"the feature party showed more than {MOST_IDS} ids")
        found.append(ids[_is_in(ids, held)])
        matched += len(found[-1])
        if matched > len(own):
            raise connection.wrong(_TWICE)
        connection.send(_message(found[-1]))
    shared = np.sort(np.concatenate(found)) if found else own[:0]
    if len(np.unique(shared)) != len(shared):
        raise connection.wrong(_TWICE)
    _check_count(connection, message, len(shared))
    return shared


def tell_common(connection: Connection, shared: Ids, common: Ids) -> None:
    """Tell a feature party which of the ids that it shares with this one all parties have."""
    connection.send(Align(count=len(common)))
    if len(common) in (0, len(shared)):
        return
    places = np.searchsorted(shared, common).astype(np.int64)
    for piece in _pieces(places):
        _check_count(connection, connection.receive(Align), len(shared))
        connection.send(_message(piece))


def common_to_all(several: Sequence[Ids], own: Ids) -> Common:
    """Return the examples that this party shares with every feature party."""
    return Common.of(_some(reduce(np.intersect1d, several)), own)


def _ask(connection: Connection, shared: int) -> Align:
    connection.send(Align(count=shared))
    return connection.receive(Align)


def _kept(connection: Connection, shared: int, count: int) -> Places:
    """Return the places of those common ids that other feature parties have too."""
    found: list[Places] = []
    while sum(map(len, found)) < count:
        message = _ask(connection, shared)
        if not isinstance(message.ids, torch.Tensor):
            raise connection.wrong("the label party did not say which ids all parties have")
        found.append(message.ids.numpy())
    places = np.concatenate(found)
    if len(places) != count or (np.diff(places, prepend=-1) <= 0).any() or places[-1] >= shared:
        raise connection.wrong(f"{count} rising places below {shared} were due, got others")
    return places


def _pieces(ids: Ids) -> Iterator[Ids]:
    size = _NUMBERS if ids.dtype.kind == "i" else _TEXTS
    return (ids[at : at + size] for at in range(0, len(ids), size))


def _message(ids: Ids) -> Align:
    if not len(ids):
        return Align(count=0)
    if ids.dtype.kind == "i":
        return Align(count=len(ids), ids=torch.from_numpy(ids.astype(np.int64)))
    return Align(count=len(ids), ids=tuple(map(str, ids.tolist())))


def _ids_of(connection: Connection, message: Align, *, like: Ids) -> Ids:
    """Return the ids in a message; text and numbers cannot be matched."""
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
    places = np.minimum(np.searchsorted(held, ids), len(held) - 1)
    same: npt.NDArray[np.bool_] = held[places] == ids
    return same


def _check_count(connection: Connection, message: Align, count: int) -> None:
    if message.ids is not None or message.count != count:
        raise connection.wrong(f"the parties must agree on {count} common ids, got {message.count}")


def _some(shared: Ids) -> Ids:
    if not len(shared):
        raise InputError("the tables have no id in common: compare the id columns of all parties")
    return shared
