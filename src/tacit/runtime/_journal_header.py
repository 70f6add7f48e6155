"""The header of a journal: which run it belongs to."""

from __future__ import annotations

import struct
from zlib import crc32

from tacit.errors import ParameterError

__all__ = ["START", "complaint", "header_of"]

_MAGIC, _VERSION = b"tacitjnl", 1
_HEADER = struct.Struct("<8sHH240s")
START = _HEADER.size + 4
"""Where the first record begins."""


def header_of(run: str) -> bytes:
    """Return the bytes that the journal of a run begins with."""
    name = run.encode()
    if not 0 < len(name) <= 240:
        raise ParameterError(f"the name of a run has 1 to 240 bytes, got {len(name)}")
    packed = _HEADER.pack(_MAGIC, _VERSION, len(name), name)
    return packed + crc32(packed).to_bytes(4, "little")


def complaint(found: bytes, run: str) -> str:
    """Say what a file is that is not the journal of this run."""
    if len(found) < START or not found.startswith(_MAGIC):
        return "not a journal: name another file"
    _, version, length, name = _HEADER.unpack_from(found)
    if version != _VERSION:
        return f"a journal of format {version}, this is format {_VERSION}: use the version of it"
    if crc32(found[:-4]).to_bytes(4, "little") != found[-4:]:
        return "the header of the journal is damaged: restore the file from a copy"
    return f"the journal of run {name[:length].decode()!r}, not of {run!r}: name another file"
