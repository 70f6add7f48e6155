"""What an id is, in bytes: two parties whose files differ in kind must still mean the same id.

* A whole number is its decimal text, so 17 out of one file matches "17" out of another. "017"
  and "17.0" are other ids.
* Text is taken in Unicode's composed form (NFC): an accented letter matches however it was typed.
* Nothing else is changed: "a" and "a " differ, and so do "a" and "A".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from reprlib import repr as shown
from typing import Any, TypeAlias
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError
from tacit.runtime._psi_values import Values, as_values, first_repeat

__all__ = ["LONGEST_ID", "Ids", "canonical_id", "hash_ids"]

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
        raise InputError(f"an id has at most {LONGEST_ID} characters, got {length} in "
                         f"{shown(text)}: give rows shorter ids")  # fmt: skip
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
