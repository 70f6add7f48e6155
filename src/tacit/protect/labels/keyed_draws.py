"""Random numbers of an example: a keyed function of its id, which can be computed again.

``AES(key of the purpose, id)``: the numbers of an example do not depend on the batch it is in, on
the order of the examples or on the process, and nothing has to be stored to draw them again.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from tacit.errors import InputError
from tacit.rng import Key

Ids = Tensor | npt.NDArray[Any] | list[int] | list[str]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_CHUNK = 1 << 17  # blocks at a time: two megabytes stay in the processor's cache
_COUNTER = 12  # the last four bytes of a block number the blocks of one example


@final
class Examples:
    """Ids in the form of AES blocks, and as whole numbers to look them up by.

    Whole numbers are written as they are; strings become a keyed digest of 12 bytes, so nobody
    without the key can find two that share their randomness. 5 and "5" are different examples.
    """

    def __init__(self, blocks: Bytes, numbers: npt.NDArray[np.int64], kind: str) -> None:
        self.blocks = blocks
        self.numbers = numbers
        self.kind = kind

    @classmethod
    def of(cls, ids: Ids, key: Key) -> Examples:
        """Return the encoded ids, or say what is wrong with them."""
        array = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if array.ndim != 1 or array.size == 0:
            raise InputError(f"ids must be one per example, got shape {array.shape}: flatten them")
        blocks = np.zeros((len(array), 16), dtype=np.uint8)
        if array.dtype.kind in "iu":
            if array.dtype.kind == "u" and int(array.max()) >= 2**63:
                raise InputError(f"ids must be below 2^63, got {array.max()}: pass strings")
            numbers = array.astype(np.int64)
            blocks[:, :8] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
            return cls(blocks, numbers, "number")
        if array.dtype.kind in "UT" or (array.dtype == object and _all_text(array)):
            blocks[:, :_COUNTER] = _digests(array.tolist(), key)
            numbers = blocks[:, :8].copy().view("<i8").reshape(-1).astype(np.int64)
            return cls(blocks, numbers, "text")
        raise InputError(f"ids must be whole numbers or strings, got {array.dtype}: convert them")

    def take(self, rows: npt.NDArray[Any]) -> Examples:
        """Return some of the examples."""
        return Examples(self.blocks[rows], self.numbers[rows], self.kind)

    def __len__(self) -> int:
        return len(self.numbers)


@final
class ExampleDraws:
    """The random numbers of some examples under one secret and one scope.

    Scopes and purposes have AES keys of their own, so what one mechanism draws says nothing about
    what another one draws for the same example.

    >>> key = Key.from_seed(7)
    >>> a = ExampleDraws(key, Examples.of([3, 1], key), scope="rr").uniform("keep")
    >>> b = ExampleDraws(key, Examples.of([1], key), scope="rr").uniform("keep")
    >>> float(a[1]) == float(b[0])
    True
    """

    def __init__(self, key: Key, examples: Examples, *, scope: str) -> None:
        self._key = key
        self.examples = examples
        self._scope = scope

    def take(self, rows: npt.NDArray[Any]) -> ExampleDraws:
        """Return the draws of some of the examples."""
        return ExampleDraws(self._key, self.examples.take(rows), scope=self._scope)

    def uniform(self, purpose: str, count: int = 1) -> Floats:
        """Return numbers in [0, 1) with 53 random bits: ``[n]``, or ``[n, count]`` for several."""
        words = self.words(purpose, count)
        numbers: Floats = np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64)
        return numbers[:, 0] if count == 1 else numbers

    def normal(self, purpose: str, count: int) -> Floats:
        """Return standard normals ``[n, count]`` by Box-Muller; tails reach 8.6."""
        pairs = (count + 1) // 2
        uniform = self.uniform(purpose, 2 * pairs)
        radius = np.sqrt(-2 * np.log1p(-uniform[:, :pairs]))
        angle = 2 * math.pi * uniform[:, pairs:]
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return both[:, :count]

    def words(self, purpose: str, count: int) -> Words:
        """Return ``[n, count]`` words of 64 random bits."""
        context = repr((self._scope, purpose, self.examples.kind)).encode()
        secret = self._key.digest(b"label 0" + context) + self._key.digest(b"label 1" + context)
        # ECB is the keyed function itself here: every block holds one id and counter, none a text.
        aes = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305
        total, rounds = len(self.examples), (count + 1) // 2
        words = np.empty((total, 2 * rounds), dtype=np.uint64)
        for start in range(0, total, _CHUNK):
            part = self.examples.blocks[start : start + _CHUNK].copy()
            for turn in range(rounds):
                part[:, _COUNTER:] = np.frombuffer(turn.to_bytes(4, "little"), dtype=np.uint8)
                drawn = np.frombuffer(aes.update(part.data), dtype="<u8").reshape(-1, 2)
                words[start : start + len(part), 2 * turn : 2 * turn + 2] = drawn
        return words[:, :count]


def _digests(texts: list[str], key: Key) -> Bytes:
    secret = key.digest(b"label ids 0") + key.digest(b"label ids 1")
    joined = b"".join(
        hashlib.blake2b(text.encode(), key=secret, digest_size=_COUNTER).digest() for text in texts
    )
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, _COUNTER)


def _all_text(array: npt.NDArray[Any]) -> bool:
    return all(isinstance(value, str) for value in array)
