"""One record of the journal, and the chain of authentication codes that binds it to its place.

112 bytes, little-endian::

    number i64 | kind i64 | step i64 | highest step so far i64
    mark of what came in, mark of what went out (32 bytes each) | code (16 bytes)

A code is keyed BLAKE2b (RFC 7693) over the code before it and the record, under a key that is
derived from the label party's secret and never leaves it. So nobody else can make a record, and a
record passes only after the very records that it was written after. A mark is HMAC-SHA256 under
another derived key: whoever sees a record learns nothing from it about what it stands for.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Self, final

from tacit.errors import ParameterError
from tacit.runtime.messages import RECORD_BYTES

__all__ = ["NOTHING", "Codes", "Record", "RecordKind", "code_of", "kind_and_step"]

_BODY = struct.Struct("<qqqq32s32s")
_PLACE = struct.Struct("<qqqq")
_CODE = RECORD_BYTES - _BODY.size
NOTHING = bytes(32)
"""Stands where there is nothing to mark."""


@final
class RecordKind(IntEnum):
    """What a record says."""

    RELEASE = 1
    PERMISSION = 2
    EVALUATION = 3


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of a record."""

    number: int
    kind: int
    step: int
    high: int
    seen: bytes = NOTHING
    sent: bytes = NOTHING

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the content of a record's bytes; its code is not looked at."""
        number, kind, step, high, seen, sent = _BODY.unpack_from(data)
        return cls(number=number, kind=kind, step=step, high=high, seen=seen, sent=sent)

    def packed(self) -> bytes:
        """Return the bytes before the code."""
        return _BODY.pack(self.number, self.kind, self.step, self.high, self.seen, self.sent)


@final
class Codes:
    """Makes and checks the codes of one run's records.

    Args:
        secret: the label party's, 32 bytes.
        header: of the journal, which names the run.
    """

    def __init__(self, secret: bytes, header: bytes) -> None:
        if len(secret) != 32:
            raise ParameterError(f"a secret has 32 bytes, got {len(secret)}: use the noise key")
        self._code = hmac.digest(secret, b"tacit journal code" + header, "sha256")
        self._mark = hmac.digest(secret, b"tacit journal mark" + header, "sha256")
        self._witness = hmac.digest(secret, b"tacit journal witness" + header, "sha256")
        self.first = self._made(header)
        """Stands before the first record."""

    def sealed(self, record: Record, before: bytes) -> bytes:
        """Return a record's bytes after the one with this code."""
        body = record.packed()
        return body + self._made(before + body)

    def genuine(self, data: bytes, before: bytes) -> bool:
        """Whether the bytes are a record that was sealed after this code."""
        return hmac.compare_digest(self._made(before + data[: _BODY.size]), code_of(data))

    def _made(self, content: bytes) -> bytes:
        return blake2b(content, key=self._code, digest_size=_CODE).digest()

    def mark(self, content: bytes) -> bytes:
        """Return 32 bytes that stand for a content and show nothing of it."""
        return hmac.digest(self._mark, content, "sha256")

    def witness(self, content: bytes) -> bytes:
        """Return the code of a line in a witness file."""
        return hmac.digest(self._witness, content, "sha256")[:_CODE]


def code_of(data: bytes) -> bytes:
    """Return the code in a record's bytes."""
    return data[_BODY.size : RECORD_BYTES]


def kind_and_step(data: bytes) -> tuple[int, int]:
    """Return what kind of record some bytes are, and of which step; faster than all of it."""
    _, kind, step, _ = _PLACE.unpack_from(data)
    return kind, step
