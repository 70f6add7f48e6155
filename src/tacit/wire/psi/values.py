"""Many 32-byte values at once: which are there twice, which are on both sides, in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from reprlib import repr as shown
from typing import Any, TypeAlias
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError

Values: TypeAlias = npt.NDArray[np.uint8]
"""[N, 32]."""
Indices: TypeAlias = npt.NDArray[np.int64]

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


def common_indices(own: Values, others: Values) -> Indices:
    """Return where the common values are in ``own``, ascending by value; no side repeats one."""
    both = np.concatenate([own, others])
    order = _ascending(both)
    # Equal values keep their order, so of two the own one comes first.
    return order[:-1][_equals_next(both, order)]


def shared_order(values: Values, seed: bytes) -> Indices:
    """Return an order that follows from the seed and the set of values, not their order."""
    start = hashlib.sha256(b"tacit psi v1 order\x00" + seed)
    keys = bytearray()
    for value in values:
        key = start.copy()
        key.update(value.data)
        keys += key.digest()
    return _ascending(as_values(keys))


def shuffled(count: int, key: bytes) -> Indices:
    """Return the numbers below ``count`` in an order that only the key's holder knows.

    Sorting by 64 random bits each: for a million, two are equal in one of 37 million cases.
    """
    stream = hashlib.shake_256(b"tacit psi v1 shuffle\x00" + key).digest(8 * count)
    order: Indices = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable").astype(np.int64)
    return order


def _ascending(values: Values) -> Indices:
    """Return the order of values as big-endian numbers; equal ones keep theirs."""
    # numpy's own text type would ignore zeros at the end. Of honest values the first quarter
    # decides, which is ten times as fast; a peer that makes quarters alike is sorted in full.
    words = np.ascontiguousarray(values).view(">u8")
    first = words[:, 0].astype(np.uint64)
    order = np.argsort(first, kind="stable").astype(np.int64)
    alike = first[order[1:]] == first[order[:-1]]
    if np.array_equal(alike, _equals_next(values, order)):
        return order
    columns = [words[:, at].astype(np.uint64) for at in reversed(range(_WIDTH // 8))]
    return np.lexsort(columns).astype(np.int64)


def _equals_next(values: Values, order: Indices) -> npt.NDArray[np.bool_]:
    words = np.ascontiguousarray(values).view(np.uint64)[order]
    same: npt.NDArray[np.bool_] = (words[1:] == words[:-1]).all(axis=1)
    return same


Ids: TypeAlias = npt.NDArray[Any] | Sequence[int | str]

LONGEST_ID = 256
_DOMAIN = b"tacit psi v1 id\x00"
_AT_ONCE = 1 << 16


def canonical_id(value: object) -> bytes:
    """Return the bytes of an id, or raise InputError.

    >>> canonical_id(17) == canonical_id("17")
    True
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        text = str(int(value))
    elif isinstance(value, str):
        text = normalize("NFC", value)
    else:
        raise InputError(f"an id must be a whole number or text, got {shown(value)}")
    # What the file holds is limited, not its composed form, as where files are read.
    length = len(value) if isinstance(value, str) else len(text)
    if not text.strip():
        raise InputError(f"an id must not be empty, got {shown(text)}: every row needs an id")
    if length > LONGEST_ID:
        raise InputError(
            f"an id has at most {LONGEST_ID} characters, got {length} in "
            f"{shown(text)}: give rows shorter ids"
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"an id must be valid Unicode, got {shown(text)}") from None


def hash_ids(ids: Ids) -> Values:
    """Return 32 bytes for each id; refuse ids that cannot be one, or that are there twice."""
    hashes = bytearray()
    for row, value in enumerate(_items(ids), start=1):
        try:
            hashes += hashlib.sha256(_DOMAIN + canonical_id(value)).digest()
        except InputError as error:
            raise InputError(f"row {row}: {error}") from None
    values = as_values(hashes)
    repeat = first_repeat(values)
    if repeat is not None:
        earlier, row = repeat
        raise InputError(
            f"id {shown(ids[row])} is in row {earlier + 1} and again in row {row + 1}: "
            "every id may be there once; remove one of the rows"
        )
    return values


def _items(ids: Ids) -> Iterator[object]:
    """Yield the ids as Python values; a column on disk is read piece by piece."""
    if not isinstance(ids, np.ndarray):
        yield from ids
        return
    if ids.ndim != 1:
        raise InputError(f"ids must be in one dimension, got {ids.ndim}")
    for at in range(0, len(ids), _AT_ONCE):
        yield from ids[at : at + _AT_ONCE].tolist()
