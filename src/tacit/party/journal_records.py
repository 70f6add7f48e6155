"""A file of records: a header, then records of one size, each written whole before it counts."""

from __future__ import annotations

import fcntl
import hmac
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import Self, final
from zlib import crc32

from tacit.atomic import sync_folder
from tacit.errors import ParameterError, ReleaseError, UsageError
from tacit.state_dir import open_own
from tacit.training.cut import RECORD_BYTES

_BODY = struct.Struct("<qqqq32s32s")
_PLACE = struct.Struct("<qqqq")
_CODE = RECORD_BYTES - _BODY.size
NOTHING = bytes(32)
"""Stands where there is nothing to mark."""


@final
class RecordKind(IntEnum):
    """What a record is about."""

    RELEASE = 1
    PERMISSION = 2
    EVALUATION = 3


@final
@dataclass(frozen=True, kw_only=True)
class JournalRecord:
    """The content of a record."""

    number: int
    kind: int
    step: int
    high: int
    seen: bytes = NOTHING
    sent: bytes = NOTHING

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the content of a record's bytes; its code is not checked."""
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

    def sealed(self, record: JournalRecord, before: bytes) -> bytes:
        """Return a record's bytes after the one with this code."""
        body = record.packed()
        return body + self._made(before + body)

    def genuine(self, data: bytes, before: bytes) -> bool:
        """Whether the bytes are a record that was sealed after this code."""
        return hmac.compare_digest(self._made(before + data[: _BODY.size]), code_of(data))

    def _made(self, content: bytes) -> bytes:
        return blake2b(content, key=self._code, digest_size=_CODE).digest()

    def mark(self, content: bytes) -> bytes:
        """Return a keyed digest of a content, 32 bytes."""
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
    """Return why a file is not the journal of this run."""
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


_CHUNK = 1 << 16


@final
class RecordFile:
    """Appends records and finds them by their position; one process at a time holds a file.

    Guarantee: when :meth:`append` returns, the records survive the end of this process, and of the
    machine too where ``always`` is set, as far as the disk keeps what it confirmed; when it raises,
    the file is as it was.

    Attributes:
        count: how many records there are.
        cut: how many bytes of a last record that was not whole were cut off on opening.
    """

    def __init__(self, file: int, *, path: Path, always: bool) -> None:
        self.path, self.count, self.cut = path, 0, 0
        self._file = file
        self._always = always
        self._failed = False

    @classmethod
    def open(cls, path: Path, *, run: str, magic: bytes, always: bool = False) -> Self:
        """Open the file of a run, or begin one where there is none; its records are not read."""
        header = header_of(run, magic=magic)
        try:
            file = open_own(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as error:
            raise UsageError(f"{path}: a journal cannot be opened: {error.strerror}") from None
        made = cls(file, path=path, always=always)
        try:
            made._begin(header, run, magic)
        except BaseException:
            made.close()
            raise
        return made

    def read_in(self, accept: Callable[[bytes], bool]) -> None:
        """Show every record to ``accept`` and cut off a torn end; a record it refuses is damage.

        Only a write that was interrupted leaves a part of a record, and nothing was sent for it.
        A whole record that is not accepted was changed later, the last one too.
        """
        whole, rest = divmod(os.fstat(self._file).st_size - START, RECORD_BYTES)
        for record in self._records(whole):
            if not accept(record):
                raise ReleaseError(
                    f"{self.path}: record {self.count} of {whole} is damaged, so what was released "
                    "is not known: restore the state folder from a copy, and what a feature party "
                    "has kept brings it up to date; or start another run"
                )
            self.count += 1
        self.cut = rest
        if rest:
            os.ftruncate(self._file, START + whole * RECORD_BYTES)
        if self._always:
            os.fsync(self._file)

    def append(self, data: bytes, *, what: str) -> None:
        """Add whole records at the end; ``what`` could not be recorded if that fails."""
        if self._failed:
            raise ReleaseError(f"{self.path}: writing failed before: open the journal again")
        position = START + self.count * RECORD_BYTES
        self._write(data, position, f"{what} could not be recorded")
        self.count += len(data) // RECORD_BYTES

    def read(self, first: int, most: int = 1) -> bytes:
        """Return the bytes of up to ``most`` records from a position on."""
        many = max(0, min(most, self.count - first))
        return os.pread(self._file, many * RECORD_BYTES, START + first * RECORD_BYTES)

    def sync(self) -> None:
        """Bring all records to disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file and let another process have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _begin(self, header: bytes, run: str, magic: bytes) -> None:
        """Take the file for this process; write the header, or check the one that is there."""
        try:  # two processes could each release a step; the lock ends with its process
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self.path}: another process holds it: end that one first") from None
        start = os.pread(self._file, START, 0)
        # Where not even the header was finished, no record was, so nothing was ever sent.
        if len(start) < START and header.startswith(start):
            self._write(header, 0, "the journal could not be begun")
            if self._always:
                sync_folder(self.path.parent)
        elif start != header:
            raise UsageError(f"{self.path}: {complaint(start, run, magic=magic)}")

    def _records(self, count: int) -> Iterator[bytes]:
        for start in range(0, count, _CHUNK):
            much = min(_CHUNK, count - start) * RECORD_BYTES
            data = os.pread(self._file, much, START + start * RECORD_BYTES)
            yield from (data[at : at + RECORD_BYTES] for at in range(0, much, RECORD_BYTES))

    def _write(self, data: bytes, position: int, failure: str) -> None:
        """Write all of the data at its position, or leave the file as it was and raise."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], position + done)
            if self._always:
                os.fsync(self._file)
        except OSError as error:
            self._failed = True
            if done < len(data):  # after a failed sync, nobody knows what the disk holds
                with suppress(OSError):
                    os.ftruncate(self._file, position)
                    self._failed = False
            raise ReleaseError(
                f"{self.path}: {failure} ({error.strerror}), so nothing may be sent: see to the "
                "disk, then ask again"
            ) from error
