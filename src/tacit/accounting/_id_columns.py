"""Numbers per example, found by id: columns of numpy arrays with a compact index.

Ids from 0 up are positions in the columns (dense). Once an id lies outside that range, ids are
scrambled into keys that spread evenly and kept sorted, so that the leading bits of a key lead to a
handful of positions; new ones wait in a small sorted part that is merged now and then.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError
from tacit.measure._arrays import Ints, Values

Array = npt.NDArray[Any]

_DENSE = 1 << 25  # ids below it are positions; untouched pages of a column take no memory
_RECENT = 1 << 16

_NEAR = np.arange(8)

Keys = npt.NDArray[np.uint64]


def id_numbers(ids: Values) -> Ints:
    """Return ids as whole numbers; strings by a digest, where sharing one overcounts at worst."""
    array: Array = np.asarray(ids.detach().cpu() if hasattr(ids, "detach") else ids)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"ids must be one per example, got shape {array.shape}: flatten them")
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and int(array.max()) >= 2**63:
            raise InputError(f"ids must be below 2^63, got {array.max()}: pass strings")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind in "UT":
        joined = b"".join(hashlib.blake2b(t.encode(), digest_size=8).digest() for t in array)
        return np.frombuffer(joined, dtype="<i8").astype(np.int64)
    raise InputError(f"ids must be whole numbers or strings, got {array.dtype}: convert them")


@final
class ExampleColumns:
    """Columns with one entry per example; an example that was never added reads as the fill."""

    def __init__(self, fills: dict[str, np.generic], *, expected: int = 0) -> None:
        self._fills = fills
        self._columns = {name: np.full(0, fill, fill.dtype) for name, fill in fills.items()}
        self._dense = max(_DENSE, expected)
        self._old: _SortedKeys | None = None  # None while ids are positions
        self._new = np.empty(0, dtype=np.uint64)
        self._new_positions = np.empty(0, dtype=np.int64)
        self.size = 0
        if expected:
            self._grow(expected)

    def __getitem__(self, name: str) -> Array:
        """Return a column, one entry per position."""
        return self._columns[name][: self.size]

    @property
    def nbytes(self) -> int:
        """How many bytes the columns and the index take."""
        index = 0 if self._old is None else self._old.keys.nbytes + self._old.starts.nbytes
        index += self._new.nbytes + self._new_positions.nbytes
        return index + sum(column.nbytes for column in self._columns.values())

    def find(self, ids: Ints) -> Ints:
        """Return the positions of ids, -1 for those that have none."""
        if self._old is None:
            return np.where((ids >= 0) & (ids < self.size), ids, -1)
        keys = _scramble(ids)
        positions = self._old.find(keys)
        if len(self._new):
            at = np.minimum(self._new.searchsorted(keys), len(self._new) - 1)
            positions = np.where(self._new[at] == keys, self._new_positions[at], positions)
        return positions

    def read(self, name: str, ids: Ints) -> Array:
        """Return the entries of ids in a column, the fill for those that were never added."""
        positions = self.find(ids)
        found = np.full(len(ids), self._fills[name])
        known = np.flatnonzero(positions >= 0)
        found[known] = self[name][positions[known]]
        return found

    def find_or_add(self, ids: Ints) -> Ints:
        """Return the positions of ids, adding missing ones; positions may change later."""
        if self._old is None:
            low, high = int(ids.min()), int(ids.max())
            if low >= 0 and high < self.size:
                return ids
            if low >= 0 and high < self._dense:
                self._grow(high + 1)
                return ids
            self._leave_positions()
        positions = self.find(ids)
        if int(positions.min()) >= 0:
            return positions
        self._insert(_distinct(_scramble(ids[positions < 0])))
        return self.find(ids)

    def keys(self) -> Keys | None:
        """Return the key of every position, in ascending order; None while ids are positions."""
        self._merge()
        return None if self._old is None else self._old.keys

    @classmethod
    def restore(
        cls, fills: dict[str, np.generic], columns: dict[str, Array], keys: Keys | None
    ) -> ExampleColumns:
        """Return columns with this content; without keys, ids are positions."""
        made = cls(fills)
        made._columns = {name: np.array(columns[name], dtype=f.dtype) for name, f in fills.items()}
        made.size = len(next(iter(made._columns.values())))
        made._old = None if keys is None else _SortedKeys(np.array(keys, dtype=np.uint64))
        made._dense = max(made._dense, made.size)
        return made

    def _leave_positions(self) -> None:
        """Sort by key from now on; positions that hold nothing are given up."""
        held = np.zeros(self.size, dtype=bool)
        for name, fill in self._fills.items():
            held |= self[name] != fill
        ids = np.flatnonzero(held)
        keys = _scramble(ids)
        order = keys.argsort()
        self._columns = {name: self[name][ids[order]] for name in self._fills}
        self._old = _SortedKeys(keys[order])
        self.size = len(ids)

    def _insert(self, keys: Keys) -> None:
        """Give new keys the positions at the end."""
        positions = np.arange(self.size, self.size + len(keys), dtype=np.int64)
        self._grow(self.size + len(keys))
        at = self._new.searchsorted(keys)
        self._new = np.insert(self._new, at, keys)
        self._new_positions = np.insert(self._new_positions, at, positions)
        if len(self._new) > max(_RECENT, self.size // 16):
            self._merge()

    def _merge(self) -> None:
        """Sort the new keys into the old ones, and the columns with them."""
        if self._old is None or len(self._new) == 0:
            return
        old = self._old.keys
        at = old.searchsorted(self._new)
        for name, column in self._columns.items():
            self._columns[name] = np.insert(column[: len(old)], at, column[self._new_positions])
        self._old = _SortedKeys(np.insert(old, at, self._new))
        self._new, self._new_positions = self._new[:0], self._new_positions[:0]

    def _grow(self, size: int) -> None:
        """Make room for ``size`` entries, an eighth more than before, in pages not yet touched."""
        for name, column in self._columns.items():
            if size > len(column):
                room = max(size, len(column) + len(column) // 8)
                fill = self._fills[name]
                larger = np.zeros(room, fill.dtype) if fill == 0 else np.full(room, fill)
                larger[: self.size] = column[: self.size]
                self._columns[name] = larger
        self.size = max(self.size, size)


@final
class _SortedKeys:
    """Ascending keys with the position where each run of equal leading bits starts.

    Bisection in ten million keys waits for memory two dozen times per key; the table of starts
    leads to the right handful at once.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        bits = max(1, (len(keys) // 8).bit_length())
        self._shift = np.uint64(64 - bits)
        edges = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self.starts = np.append(keys.searchsorted(edges), len(keys)).astype(np.uint32)

    def find(self, keys: Keys) -> Ints:
        """Return the positions of keys, -1 for those that are not there."""
        parts = [self._find(keys[at : at + _RECENT]) for at in range(0, len(keys), _RECENT)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _find(self, keys: Keys) -> Ints:
        run = (keys >> self._shift).astype(np.int64)
        start, end = self.starts[run].astype(np.int64), self.starts[run + 1]
        positions = np.full(len(keys), -1, dtype=np.int64)
        rows = np.flatnonzero(start < end)
        while len(rows):  # eight neighbours are one or two reads of memory, mostly the whole run
            first = start[rows]
            hit = self.keys.take(first[:, None] + _NEAR, mode="clip") == keys[rows, None]
            step = hit.argmax(axis=1)
            found = hit[np.arange(len(rows)), step]
            positions[rows[found]] = (first + step)[found]
            start[rows] += len(_NEAR)
            rows = rows[~found & (start[rows] < end[rows])]
        return positions


def _scramble(ids: Ints) -> Keys:
    """Return keys that spread evenly, one to one with ids (xor-shift and odd multiplication)."""
    keys = ids.view(np.uint64) if ids.flags.c_contiguous else ids.astype(np.uint64)
    keys = (keys ^ (keys >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(keys ^ (keys >> np.uint64(32)))


def _distinct(keys: Keys) -> Keys:
    """Return the different keys in ascending order; sorting beats the hash table of ``unique``."""
    ordered = np.sort(keys)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])])
