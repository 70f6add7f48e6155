"""Random numbers that two parties with different versions of numpy draw alike.

numpy promises that the bits of a bit generator never change; it does not promise that of
``Generator.permutation`` or ``Generator.normal``. So shuffles and normals are made from bits here.
Nothing secret comes from this module: secret noise has its own.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def bits(size: int, *key: str | int) -> Array:
    """Return 64-bit words that depend on nothing but the key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    source = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big")))
    words: Array = source.random_raw(size)
    return words


def uniforms(size: int, *key: str | int) -> Array:
    """Return numbers in the open interval (0, 1), each a multiple of ``2**-53`` plus ``2**-54``."""
    return (bits(size, *key) >> np.uint64(11)) * 2.0**-53 + 2.0**-54


def normals(size: int, *key: str | int) -> Array:
    """Return standard normal numbers (Box and Muller)."""
    half = (size + 1) // 2
    radius = np.sqrt(-2.0 * np.log(uniforms(half, *key, "radius")))
    angle = 2.0 * np.pi * uniforms(half, *key, "angle")
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def permutation(size: int, *key: str | int) -> Array:
    """Return the numbers below ``size`` in an order that depends on nothing but the key.

    Random words are sorted with their position in the low bits, so that no two are equal and
    every sorting algorithm gives the same order.

    >>> permutation(5, "order", 0, 1).tolist() == permutation(5, "order", 0, 1).tolist()
    True
    >>> sorted(permutation(5, "order", 0, 2).tolist())
    [0, 1, 2, 3, 4]
    """
    low = np.uint64((1 << max(1, size.bit_length())) - 1)
    keys = (bits(size, *key) & ~low) | np.arange(size, dtype=np.uint64)
    keys.sort()
    return (keys & low).astype(np.int64)
