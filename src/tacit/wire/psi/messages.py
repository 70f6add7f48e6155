"""The messages of private set intersection as bytes, and the seed that neither side chooses alone.

::

    open     version u8 = 2 | kind u8 = 1 | number of ids u64 | commitment 32 bytes
    points   version u8 = 2 | kind u8 = 2 | own points, 32 bytes each | points sent back, 32 each
    reveal   version u8 = 2 | kind u8 = 3 | nonce 32 bytes | proof 32 bytes

Numbers are big-endian. Both sides know from the numbers of ids how long every message is, so none
carries a length, and one of another length is refused before it is read.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import final

from tacit.errors import PeerError
from tacit.wire.psi.curve import ORDER, POINT, fresh_scalar
from tacit.wire.psi.values import Values

VERSION = 2
_HEAD = struct.Struct(">BB")
_COUNT = struct.Struct(">Q")
_HASH = 32
_WIDE = 48  # bytes of which the remainder is as good as uniform below the order of the curve


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Secrets:
    """What one side keeps to itself during one intersection; never used for other sets of ids.

    Args:
        scalar: the secret multiplier of points.
        nonce: this side's share of the seed.
        shuffle: decides in which order ids are sent.
    """

    scalar: bytes = field(default_factory=fresh_scalar)
    nonce: bytes = field(default_factory=lambda: token_bytes(_HASH))
    shuffle: bytes = field(default_factory=lambda: token_bytes(_HASH))

    @classmethod
    def derived(cls, key: bytes, *context: str) -> Secrets:
        """Return the same secrets for the same key and context: SHAKE-256 of both.

        >>> key = bytes(32)
        >>> Secrets.derived(key, "a", "b") == Secrets.derived(key, "a", "b")
        True
        >>> Secrets.derived(key, "a", "b") == Secrets.derived(key, "ab", "")
        False
        """
        state = hashlib.shake_256(b"tacit psi v2 secrets\x00" + key)
        for part in context:
            state.update(struct.pack(">I", len(part.encode())) + part.encode())
        stream = state.digest(_WIDE + 2 * _HASH)
        scalar = 1 + int.from_bytes(stream[:_WIDE], "big") % (ORDER - 1)
        return cls(
            scalar=scalar.to_bytes(POINT, "big"),
            nonce=stream[_WIDE : _WIDE + _HASH],
            shuffle=stream[_WIDE + _HASH :],
        )


@final
@dataclass(frozen=True, kw_only=True)
class Open:
    """How many ids the sender has, and a commitment to its share of the seed."""

    count: int
    commitment: bytes

    def pack(self) -> bytes:
        """Return the message's bytes."""
        return _HEAD.pack(VERSION, 1) + _COUNT.pack(self.count) + self.commitment

    @classmethod
    def unpack(cls, message: bytes) -> Open:
        """Return the message in bytes, or raise PeerError."""
        body = _body(message, kind=1, length=_COUNT.size + _HASH)
        return cls(count=_COUNT.unpack_from(body)[0], commitment=body[_COUNT.size :])


@final
@dataclass(frozen=True, kw_only=True)
class Points:
    """Some of the sender's points, and the receiver's last ones, blinded a second time."""

    own: bytes
    returned: bytes

    def pack(self) -> bytes:
        """Return the message's bytes."""
        return _HEAD.pack(VERSION, 2) + self.own + self.returned

    @classmethod
    def unpack(cls, message: bytes, *, own: int, returned: int) -> Points:
        """Return the message with so many points of each sort, or raise PeerError."""
        body = _body(message, kind=2, length=(own + returned) * POINT)
        return cls(own=body[: own * POINT], returned=body[own * POINT :])


@final
@dataclass(frozen=True, kw_only=True)
class Reveal:
    """The sender's share of the seed, and a hash of the common values that it has found."""

    nonce: bytes
    proof: bytes

    def pack(self) -> bytes:
        """Return the message's bytes."""
        return _HEAD.pack(VERSION, 3) + self.nonce + self.proof

    @classmethod
    def unpack(cls, message: bytes) -> Reveal:
        """Return the message in bytes, or raise PeerError."""
        body = _body(message, kind=3, length=2 * _HASH)
        return cls(nonce=body[:_HASH], proof=body[_HASH:])


def commitment(role: str, nonce: bytes) -> bytes:
    """Return a commitment to a nonce; it includes the role, so that a peer cannot copy it."""
    return hashlib.sha256(b"tacit psi v1 commitment\x00" + role.encode() + b"\x00" + nonce).digest()


def common_seed(feature: bytes, label: bytes) -> bytes:
    """Return the seed that two revealed nonces give together."""
    return hashlib.sha256(b"tacit psi v1 seed\x00" + feature + label).digest()


def proof(role: str, counts: tuple[int, int], common: Values) -> bytes:
    """Return a digest that shows that a party found exactly these common values, ascending."""
    state = hashlib.sha256(b"tacit psi v1 proof\x00" + role.encode() + b"\x00")
    state.update(struct.pack(">QQQ", *counts, len(common)))
    state.update(common.tobytes())
    return state.digest()


def _body(message: bytes, *, kind: int, length: int) -> bytes:
    wanted = _HEAD.pack(VERSION, kind)
    if message[: _HEAD.size] != wanted:
        raise PeerError(
            f"an intersection's message must begin with {wanted.hex()}, got "
            f"{message[: _HEAD.size].hex()}: run the same release"
        )
    if len(message) != _HEAD.size + length:
        raise PeerError(
            f"an intersection's message must have {_HEAD.size + length} bytes here, "
            f"got {len(message)}"
        )
    return bytes(message[_HEAD.size :])
