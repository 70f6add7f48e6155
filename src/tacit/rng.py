"""Secret, reproducible noise: a 256-bit key, AES in counter mode, Box-Muller.

torch's CPU generator keeps 32 bits of its seed, so whoever receives noise from it can search
every seed. Here a stream is derived from a secret key and everything the noise may depend on,
and is never stored: whoever holds the key can draw the same numbers again, nobody else can.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import operator
import secrets
from functools import lru_cache
from typing import final

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from tacit.errors import InputError, ParameterError
from tacit.kernels import box_muller

_ZEROS = bytes(1 << 17)
_NONCE = bytes(16)


@final
class Key:
    """A 256-bit secret from which streams are derived; neither ``repr`` nor pickle shows it.

    ``Key.fresh()`` asks the operating system; ``Key.from_seed(n)`` is for experiments that must
    be repeatable, and uses every bit of ``n``.

    >>> Key.from_seed(7)
    Key(hidden)
    >>> a = Key.from_seed(7).stream("noise", 1).normal(3)
    >>> b = Key.from_seed(7 + 2**32).stream("noise", 1).normal(3)
    >>> bool((a == b).any())
    False
    """

    __slots__ = ("_cipher", "_context_mac", "_secret", "_tagger")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ParameterError(
                f"a key has 32 bytes, got {len(secret)}: use Key.fresh() or Key.from_seed(n)"
            )
        self._secret = bytes(secret)
        self._context_mac = hmac.new(
            self._secret, digestmod="sha256"
        )  # its copies start much faster
        self._tagger = AESGCM(_derive(self._secret, ("tag",)))
        aes = algorithms.AES(_derive(self._secret, ("noise",)))
        self._cipher = Cipher(aes, modes.CTR(_NONCE)).encryptor()

    @classmethod
    def fresh(cls) -> Key:
        """Return a new key out of the operating system's generator."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """Return the key of an experiment; it is only as secret as the seed."""
        return cls(hashlib.sha256(b"tacit seed" + _encode((seed,))).digest())

    def stream(self, purpose: str, *context: int | str | bytes) -> Stream:
        """Return the stream of this purpose and context; other contexts are independent."""
        return Stream(self, ("stream", purpose, *context))

    def _start(self, context: tuple[int | str | bytes, ...]) -> int:
        mac = self._context_mac.copy()
        mac.update(_encode(context))
        return int.from_bytes(mac.digest()[:16], "big")

    def tag(self, tensor: Tensor) -> bytes:
        """Return a keyed digest of the tensor's content, type and shape.

        GMAC under a key of its own: a universal hash, so whoever does not hold the key cannot
        choose two tensors with the same tag. Tags feed :meth:`stream` and are never sent.
        """
        plain = tensor.detach() if tensor.requires_grad else tensor
        if plain.device.type != "cpu" or not plain.is_contiguous():
            plain = plain.cpu().contiguous()
        return _form(tensor.dtype, tensor.shape) + self._tagger.encrypt(
            _NONCE[:12], b"", _bytes(plain)
        )

    def digest(self, content: bytes) -> bytes:
        """Return a keyed digest of some bytes, 16 long; like tags, never sent."""
        return hmac.digest(self._secret, b"digest" + content, "sha256")[:16]

    def __repr__(self) -> str:
        return "Key(hidden)"

    def __reduce__(self) -> str:
        raise InputError("a key is not serialised: derive it again where it belongs")


@final
class Stream:
    """An endless sequence of pseudo-random normals, the same for the same key and context.

    Each call continues where the last one ended. All streams of a key are pieces of one AES
    keystream that start at secret counters out of 2^128: that two overlap is not to be expected.
    Streams of one key share a cipher, so they are for one thread at a time. A stream that nothing
    is drawn from costs nothing.
    """

    __slots__ = ("_context", "_counter", "_key")

    def __init__(self, key: Key, context: tuple[int | str | bytes, ...]) -> None:
        self._key, self._context = key, context
        self._counter: int | None = None

    def normal(self, *shape: int) -> Tensor:
        """Return independent standard normals of the given shape, in ``float64`` on the CPU.

        32 random bits per value: tails reach 6.6 standard deviations. The numbers depend neither
        on the processor nor on the device that they are for.
        """
        count = math.prod(shape)
        half = (count + 1) // 2
        normals = torch.empty(2 * half, dtype=torch.float64)
        box_muller(self._words(2 * half).numpy(), normals.numpy())
        return normals[:count].view(shape)

    def _words(self, count: int) -> Tensor:
        words = torch.empty(count, dtype=torch.int32)
        room = _bytes(words)
        cipher = self._key._cipher
        counter = self._key._start(self._context) if self._counter is None else self._counter
        cipher.reset_nonce(counter.to_bytes(16, "big"))
        for start in range(0, room.nbytes, len(_ZEROS)):
            part = room[start : start + len(_ZEROS)]
            cipher.update_into(_ZEROS[: len(part)], part)
        self._counter = (counter + -(-room.nbytes // 16)) % 2**128
        return words


def _bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's own memory."""
    known = tensor if tensor.dtype != torch.bfloat16 else tensor.view(torch.int16)
    return known.numpy().data.cast("B") if tensor.numel() else memoryview(b"")


@lru_cache(maxsize=64)
def _form(dtype: torch.dtype, shape: torch.Size) -> bytes:
    return f"{dtype}{list(shape)}".encode()


def _derive(secret: bytes, context: tuple[int | str | bytes, ...]) -> bytes:
    return hmac.digest(secret, _encode(context), "sha256")


def whole(value: object) -> int:
    """Return a seed or a step as a Python integer, or refuse what is not whole."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ParameterError(f"seeds and steps are whole numbers, got {value!r}") from None


def _encode(parts: tuple[int | str | bytes, ...]) -> bytes:
    """Write the parts so that no two different tuples share an encoding."""
    encoded = []
    for part in parts:
        match part:
            case bytes():
                kind, body = b"b", part
            case str():
                kind, body = b"s", part.encode()
            case _:
                number = whole(part)
                size = number.bit_length() // 8 + 1
                kind, body = b"i", number.to_bytes(size, "big", signed=True)
        encoded.append(kind + len(body).to_bytes(8, "big") + body)
    return b"".join(encoded)
