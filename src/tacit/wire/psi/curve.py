"""Points of secp256k1 as private set intersection needs them: from hashes, and times a secret.

The curve has prime order, so every point on it is as good as any other: no small subgroup, no
cofactor. Only x-coordinates are used, 32 bytes each. A point and its negative share theirs, also
after multiplication, so of the two points with an x it does not matter which one is taken.

libsecp256k1 finds and multiplies points in half the time that OpenSSL takes on P-256
(docs/psi.md). Its ECDH takes the same time whatever the secret is, unlike the binding's own
``multiply``, and hands the point to a hash function: the one here keeps the x-coordinate as it is.

Worker processes run these functions, so this module is light to import and keeps no state.
"""

from __future__ import annotations

import hashlib
import secrets
from itertools import count
from typing import Any

from coincurve import GLOBAL_CONTEXT
from coincurve._libsecp256k1 import ffi, lib

from tacit.errors import PeerError

POINT = 32
"""Bytes of an x-coordinate, and of the hash that stands for an id."""
ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""How many points the curve has."""
_DOMAIN = b"tacit psi v2 point\x00"
_EVEN = b"\x02"  # of the two points with an x, the one whose y is even
_CONTEXT = GLOBAL_CONTEXT.ctx


def _copy_x(output: Any, x: Any, _y: Any, _data: Any) -> int:  # noqa: ANN401 - pointers
    ffi.memmove(output, x, POINT)
    return 1


_KEEP_X = ffi.callback(
    "int(unsigned char *, const unsigned char *, const unsigned char *, void *)", _copy_x
)


def hash_to_x(hashed: bytes) -> bytes:
    """Return the x-coordinate of an id's point: the first of its candidates on the curve.

    >>> hash_to_x(bytes(32)).hex()[:16]
    'ae037664301aa1d3'
    """
    return _find(hashed, ffi.new("secp256k1_pubkey *"))


def blind_ids(scalar: bytes, hashes: bytes) -> bytes:
    """Return the x-coordinates of ids' points times a secret; 32 bytes in for 32 bytes out."""
    point, blinded = ffi.new("secp256k1_pubkey *"), ffi.new("unsigned char[]", len(hashes))
    for at in range(0, len(hashes), POINT):
        _find(hashes[at : at + POINT], point)
        _multiply(blinded + at, point, scalar)
    return bytes(ffi.buffer(blinded))


def blind_points(scalar: bytes, points: bytes, first: int) -> bytes:
    """Return a peer's points times a secret; ``first`` is the position of the first, from 0."""
    point, blinded = ffi.new("secp256k1_pubkey *"), ffi.new("unsigned char[]", len(points))
    for at in range(0, len(points), POINT):
        x = points[at : at + POINT]
        if not _parse(x, point):
            position = first + at // POINT + 1
            raise PeerError(f"point {position} must be on the curve secp256k1, got {x.hex()}")
        _multiply(blinded + at, point, scalar)
    return bytes(ffi.buffer(blinded))


def fresh_scalar() -> bytes:
    """Return a secret multiplier, uniform from 1 to the order of the curve less 1."""
    return (1 + secrets.randbelow(ORDER - 1)).to_bytes(POINT, "big")


def _find(hashed: bytes, point: Any) -> bytes:  # noqa: ANN401 - a pointer
    """Try SHA-256(domain, hash, 0), then 1, and so on: about every second is on the curve.

    The number of tries depends on the id, but is hidden among the other ids of a message.
    """
    start = hashlib.sha256(_DOMAIN + hashed)
    for counter in count():
        candidate = start.copy()
        candidate.update(counter.to_bytes(4, "big"))
        x = candidate.digest()
        if _parse(x, point):
            return x
    raise AssertionError  # count() has no end


def _parse(x: bytes, point: Any) -> bool:  # noqa: ANN401 - a pointer
    """Write the point with this x-coordinate, or return False if there is none."""
    return bool(lib.secp256k1_ec_pubkey_parse(_CONTEXT, point, _EVEN + x, POINT + 1))


def _multiply(output: Any, point: Any, scalar: bytes) -> None:  # noqa: ANN401 - pointers
    if not lib.secp256k1_ecdh(_CONTEXT, output, point, scalar, _KEEP_X, ffi.NULL):
        raise ValueError("a secret multiplier must be from 1 to the order of the curve less 1")
