"""Points of P-256 as private set intersection needs them: from hashes, and times a secret.

The curve has prime order, so every point on it is as good as any other: no small subgroup, no
cofactor. Only x-coordinates are used, 32 bytes each. A point and its negative share theirs, also
after multiplication, so of the two points with an x it does not matter which one is taken.

Worker processes run these functions, so this module is light to import and keeps no state.
"""

from __future__ import annotations

import hashlib
from itertools import count

from cryptography.hazmat.primitives.asymmetric import ec

from tacit.errors import PeerError

__all__ = ["POINT", "blind_ids", "blind_points", "fresh_scalar", "hash_to_x"]

POINT = 32
"""Bytes of an x-coordinate, and of the hash that stands for an id."""
_DOMAIN = b"tacit psi v1 point\x00"
_EVEN = b"\x02"  # of the two points with an x, the one whose y is even
_CURVE = ec.SECP256R1()
_ECDH = ec.ECDH()


def hash_to_x(hashed: bytes) -> bytes:
    """Return the x-coordinate of an id's point: the first of its candidates on the curve.

    >>> hash_to_x(bytes(32)).hex()[:16]
    '38531d94d94d4414'
    """
    return _hash_to_curve(hashed)[0]


def blind_ids(scalar: bytes, hashes: bytes) -> bytes:
    """Return the x-coordinates of ids' points times a secret; 32 bytes in for 32 bytes out."""
    key = _key(scalar)
    places = range(0, len(hashes), POINT)
    return b"".join(
        key.exchange(_ECDH, _hash_to_curve(hashes[at : at + POINT])[1]) for at in places
    )


def blind_points(scalar: bytes, points: bytes, first: int) -> bytes:
    """Return a peer's points times a secret; ``first`` is the place of the first, from 0."""
    key, blinded = _key(scalar), []
    for at in range(0, len(points), POINT):
        x = points[at : at + POINT]
        try:
            point = _point(x)
        except ValueError:
            place = first + at // POINT + 1
            raise PeerError(f"point {place} must be on the curve P-256, got {x.hex()}") from None
        blinded.append(key.exchange(_ECDH, point))
    return b"".join(blinded)


def fresh_scalar() -> bytes:
    """Return a secret multiplier, uniform from 1 to the order of the curve less 1."""
    numbers = ec.generate_private_key(_CURVE).private_numbers()
    return numbers.private_value.to_bytes(POINT, "big")


def _hash_to_curve(hashed: bytes) -> tuple[bytes, ec.EllipticCurvePublicKey]:
    """Try SHA-256(domain, hash, 0), then 1, and so on: about every second is on the curve.

    The number of tries depends on the id, but is hidden among the other ids of a message.
    """
    start = hashlib.sha256(_DOMAIN + hashed)
    for counter in count():
        candidate = start.copy()
        candidate.update(counter.to_bytes(4, "big"))
        x = candidate.digest()
        try:
            return x, _point(x)
        except ValueError:
            continue
    raise AssertionError  # count() has no end


def _point(x: bytes) -> ec.EllipticCurvePublicKey:
    """Return the point with this x-coordinate, or raise ValueError if there is none."""
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN + x)


def _key(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(scalar, "big"), _CURVE)
