"""The header of a file of records: which run it belongs to."""

from __future__ import annotations

import struct
from zlib import crc32

from tacit.errors import ParameterError

__all__ = ["COPY", "JOURNAL", "START", "complaint", "header_of"]

JOURNAL, COPY = b"tacitjnl", b"tacitcpy"
"""How a journal begins, and a feature party's copy of one."""
_VERSION = 2
_HEADER = struct.Struct("<8sHH240s")
START = _HEADER.size + 4
"""Where the first record begins."""
_NAMES = {JOURNAL: "a journal", COPY: "a copy of a journal"}


def header_of(run: str, *, magic: bytes = JOURNAL) -> bytes:
    """Return the bytes that the journal of a run begins with, or a copy of it."""
    name = run.encode()
    if not 0 < len(name) <= 240:
        raise ParameterError(f"the name of a run has 1 to 240 bytes, got {len(name)}")
    packed = _HEADER.pack(magic, _VERSION, len(name), name)
    return packed + crc32(packed).to_bytes(4, "little")


def complaint(found: bytes, run: str, *, magic: bytes = JOURNAL) -> str:
    """Say what a file is that is not the one of this run."""
    kind = _NAMES[magic]
    if len(found) < START or not found.startswith(magic):
        return f"not {kind}: name another file"
    _, version, length, name = _HEADER.unpack_from(found)
    if version != _VERSION:
        return (
            f"{kind} of format {version}, this is format {_VERSION}: finish the run with the "
            "release that began it, or name another state folder for a new run"
        )
    if crc32(found[:-4]).to_bytes(4, "little") != found[-4:]:
        return f"the header of {kind} is damaged: restore the file from a copy"
    return f"{kind} of run {name[:length].decode()!r}, not of {run!r}: name another file"
