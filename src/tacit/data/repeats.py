"""Find an id that is there twice, in memory that holds a few numbers per row and no ids."""

from __future__ import annotations

import numpy as np

from tacit.data.draws import Array, bits

__all__ = ["first_repeat"]

_BLOCK = 1 << 16


def first_repeat(ids: Array) -> tuple[int, int] | None:
    """Return two rows with the same id, the earlier one first, or None.

    Whole numbers are sorted. Text is sorted by a 64-bit hash of each id, and ids with one hash
    are compared in full, so that the answer is exact.

    >>> first_repeat(np.array(["a", "b", "a"]))
    (0, 2)
    >>> first_repeat(np.array([3, 1, 2])) is None
    True
    """
    keys = np.asarray(ids) if ids.dtype.kind == "i" else _hashes(ids)
    place = np.argsort(keys, kind="stable")
    ordered = keys[place]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    seen: dict[object, int] = {}
    last = -2
    for at in again.tolist():
        if at != last + 1:
            seen = {ids[place[at]].item(): int(place[at])}
        last, row = at, int(place[at + 1])
        earlier = seen.setdefault(ids[row].item(), row)
        if earlier != row:
            return earlier, row
    return None


def _hashes(ids: Array) -> Array:
    """Return the sum of each id's characters, each times a random odd number of its place."""
    width = ids.dtype.itemsize // 4
    factors = bits(max(1, width), "ids") | np.uint64(1)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    for at in range(0, len(ids), _BLOCK):
        block = np.ascontiguousarray(ids[at : at + _BLOCK])
        letters = block.view(np.uint32).reshape(len(block), width)
        for column, factor in zip(letters.T, factors, strict=True):
            hashes[at : at + _BLOCK] += column * factor
    return hashes
