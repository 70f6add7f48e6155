"""Many 32-byte values at once: which are there twice, which are on both sides, in which order."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Places", "Values", "as_values", "common_places", "first_repeat", "shared_order",
           "shuffled"]  # fmt: skip

Values: TypeAlias = npt.NDArray[np.uint8]
"""[N, 32]."""
Places: TypeAlias = npt.NDArray[np.int64]

_WIDTH = 32


def as_values(content: bytes | bytearray) -> Values:
    """Return bytes as rows of 32."""
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, _WIDTH)


def first_repeat(values: Values) -> tuple[int, int] | None:
    """Return where a value is and where it is again, the earliest again; None if all differ."""
    order = _ascending(values)
    same = _equals_next(values, order)
    if not same.any():
        return None
    earlier, later = order[:-1][same], order[1:][same]
    at = int(np.argmin(later))
    return int(earlier[at]), int(later[at])


def common_places(own: Values, others: Values) -> Places:
    """Return where the common values are in ``own``, ascending by value; no side repeats one."""
    both = np.concatenate([own, others])
    order = _ascending(both)
    # Equal values keep their order, so of two the own one comes first.
    return order[:-1][_equals_next(both, order)]


def shared_order(values: Values, seed: bytes) -> Places:
    """Return an order that whoever knows the seed and the values, in any order, finds alike."""
    start = hashlib.sha256(b"tacit psi v1 order\x00" + seed)
    keys = bytearray()
    for value in values:
        key = start.copy()
        key.update(value.data)
        keys += key.digest()
    return _ascending(as_values(keys))


def shuffled(count: int, key: bytes) -> Places:
    """Return the numbers below ``count`` in an order that only the key's holder knows.

    Sorting by 64 random bits each: for a million, two are equal in one of 37 million cases.
    """
    stream = hashlib.shake_256(b"tacit psi v1 shuffle\x00" + key).digest(8 * count)
    order: Places = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable").astype(np.int64)
    return order


def _ascending(values: Values) -> Places:
    # numpy's own text type would ignore zeros at the end; four numbers are exact, whatever a peer
    # sends.
    words = np.ascontiguousarray(values).view(">u8")
    columns = [words[:, at].astype(np.uint64) for at in reversed(range(_WIDTH // 8))]
    return np.lexsort(columns).astype(np.int64)


def _equals_next(values: Values, order: Places) -> npt.NDArray[np.bool_]:
    words = np.ascontiguousarray(values).view(np.uint64)[order]
    same: npt.NDArray[np.bool_] = (words[1:] == words[:-1]).all(axis=1)
    return same
