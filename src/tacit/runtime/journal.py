"""The journal: the label party's record of every release, written before the release is sent.

Noise is spent once: a step that was released with one embedding must never be released with
another, also after a crash. So it is written down first. All numbers are little-endian::

    header   256 bytes   "tacitjnl", version u16, bytes of the name u16, name of the run, crc u32
    record    88 bytes   kind u32, step i64, highest step so far i64,
                         embedding digest and release digest (32 bytes each), crc u32

A record's crc starts from the header's crc plus the number of the record, so a record of another
run or in another place does not pass. Kind 1 is a release, kind 2 the permission for another one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, final
from zlib import crc32

import torch
from torch import Tensor

from tacit.errors import InputError, ParameterError, ReleaseError, ReplayError, UsageError
from tacit.rng import whole
from tacit.runtime._journal_header import START, complaint, header_of
from tacit.runtime.checkpoint import sync_folder

__all__ = ["Entry", "Journal", "digest"]

Sync = Literal["os", "always"]
_BODY = struct.Struct("<Iqq32s32s")
_SIZE = _BODY.size + 4
_RELEASED, _ALLOWED = 1, 2
_CHUNK = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was last released for a step: digests of what came in and of what went out."""

    step: int
    embedding: bytes
    release: bytes


@final
class Journal:
    """Records releases in ascending order of steps; open one with :meth:`Journal.open`.

    Guarantee: when :meth:`record` returns, the release is on record and may be sent; when it
    raises, it must not be. With ``sync="os"`` the record survives the end of this process at any
    moment, SIGKILL included, but not the end of the machine: after a power cut the last seconds
    may be missing. With ``sync="always"`` it survives a power cut too, as far as the disk keeps
    what it confirmed.

    A last record that is not whole is cut off on opening: it was never acknowledged, so nothing
    was sent for it. Damage anywhere else is refused. One process at a time holds a journal, and
    one thread at a time uses it. Memory does not grow with the number of steps, only with those
    that were allowed again: old steps are looked up in the file.

    Attributes:
        allowed: how often each step was allowed again, for those that were.
        cut: how many bytes of a torn last record were cut off on opening.
    """

    def __init__(self, file: int, *, path: Path, header: bytes, sync: Sync) -> None:
        self.path, self.cut = path, 0
        self.allowed: Counter[int] = Counter()
        self._file = file
        self._seed = crc32(header)
        self._always = sync == "always"
        self._count, self._high = 0, -1
        self._places: dict[int, int] = {}  # the last release of steps with more than one
        self._open: set[int] = set()  # steps with a permission that was not used yet
        self._failed = False

    @classmethod
    def open(cls, path: Path | str, *, run: str, sync: Sync = "os") -> Self:
        """Open the journal of a run, or begin one where there is none."""
        if sync not in ("os", "always"):
            raise ParameterError(f'sync must be "os" or "always", got {sync!r}')
        path, header = Path(path), header_of(run)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{path}: a journal cannot be opened: {error.strerror}") from None
        journal = cls(file, path=path, header=header, sync=sync)
        try:
            journal._begin(header, run)
            journal._read()
        except BaseException:
            journal.close()
            raise
        return journal

    def check(self, step: int, embedding_digest: bytes) -> None:
        """Raise ``ReplayError`` if a step must not be released for this embedding.

        It needs no release: a step that was released for another embedding is not even computed.
        """
        step = _number(step)
        held = self.find(step)
        seen = held is not None and held.embedding == embedding_digest
        if step <= self._high and not seen and step not in self._open:
            raise ReplayError(self._refusal(step, held, embedding_digest))

    def record(self, step: int, embedding_digest: bytes, release_digest: bytes) -> bool:
        """Record a release that is about to be sent; return whether it was not on record yet.

        The same step with the same digests is a resend and always allowed. Anything else for a
        step on record raises ``ReplayError``, unless :meth:`allow_again` was called for it.
        """
        step = _number(step)
        digests = embedding_digest, release_digest
        if any(not isinstance(value, bytes) or len(value) != 32 for value in digests):
            raise InputError(f"a digest is 32 bytes, as of digest(tensor), got {digests!r:.60}")
        if step <= self._high:
            held = self.find(step)
            if held is not None and digests == (held.embedding, held.release):
                return False
            if step not in self._open:
                raise ReplayError(self._refusal(step, held, digests[0]))
        self._append(_RELEASED, step, *digests)
        return True

    def allow_again(self, step: int) -> None:
        """Let a step be released once more with other content, an operator's decision.

        Whoever holds two releases of a step can cancel noise, so the permission is kept on record
        and counted in :attr:`allowed`. One that was not used yet is not doubled.
        """
        step = _number(step)
        if self.find(step) is None:
            raise UsageError(f"step {step} was never released: there is nothing to allow again")
        if step not in self._open:
            self._append(_ALLOWED, step, bytes(32), bytes(32))

    def repeats(self, step: int) -> int:
        """Return how many releases of a step are on record beside its first one."""
        return self.allowed[step] - (step in self._open)

    def find(self, step: int) -> Entry | None:
        """Return what was last released for a step, or None."""
        step = _number(step)
        if step > self._high:
            return None
        place = self._places.get(step)
        found = self._at(self._first(step) if place is None else place)
        return Entry(step=step, embedding=found[3], release=found[4]) if found[1] == step else None

    @property
    def last(self) -> Entry | None:
        """What was released for the highest step; None where nothing was."""
        return None if self._high < 0 else self.find(self._high)

    def sync(self) -> None:
        """Bring all records to disk, whatever ``sync`` was chosen for each of them."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file and let another process have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, header: bytes, run: str) -> None:
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
            raise UsageError(f"{self.path}: {complaint(start, run)}")

    def _read(self) -> None:
        """Check every record, note what later lookups need, and cut off a torn end."""
        size = os.fstat(self._file).st_size - START
        for record in self._records(size // _SIZE):
            if self._sum(record[:-4]) != record[-4:]:
                break
            self._note(*_BODY.unpack_from(record)[:2])
        self.cut = size - self._count * _SIZE
        if self.cut > _SIZE:  # only the record that was being written can be torn
            raise ReleaseError(
                f"{self.path}: record {self._count} of {size // _SIZE} is damaged, so what was "
                "released is not known: restore the file from a copy, or start another run"
            )
        if self.cut:
            os.ftruncate(self._file, START + self._count * _SIZE)
        if self._always:
            os.fsync(self._file)

    def _records(self, count: int) -> Iterator[memoryview]:
        for start in range(0, count, _CHUNK):
            much = min(_CHUNK, count - start) * _SIZE
            data = memoryview(os.pread(self._file, much, START + start * _SIZE))
            yield from (data[at : at + _SIZE] for at in range(0, much, _SIZE))

    def _sum(self, body: bytes | memoryview) -> bytes:
        """Return the checksum that the next record must have."""
        return crc32(body, (self._seed + self._count) & 0xFFFFFFFF).to_bytes(4, "little")

    def _note(self, kind: int, step: int) -> None:
        """Count a record; only one that does not raise the highest step takes memory."""
        if kind == _ALLOWED:
            self.allowed[step] += 1
            self._open.add(step)
        elif step <= self._high:
            self._places[step] = self._count
            self._open.discard(step)
        self._high = max(self._high, step)
        self._count += 1

    def _append(self, kind: int, step: int, embedding: bytes, release: bytes) -> None:
        if self._failed:
            raise ReleaseError(f"{self.path}: writing failed before: open the journal again")
        body = _BODY.pack(kind, step, max(step, self._high), embedding, release)
        place = START + self._count * _SIZE
        self._write(body + self._sum(body), place, f"step {step} could not be recorded")
        self._note(kind, step)

    def _write(self, data: bytes, place: int, failure: str) -> None:
        """Write all of the data at its place, or leave the file as it was and raise."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], place + done)
            if self._always:
                os.fsync(self._file)
        except OSError as error:
            self._failed = True
            if done < len(data):  # after a failed sync, nobody knows what the disk holds
                with suppress(OSError):
                    os.ftruncate(self._file, place)
                    self._failed = False
            raise ReleaseError(
                f"{self.path}: {failure} ({error.strerror}), so nothing may be sent: see to the "
                "disk, then ask again"
            ) from error

    def _at(self, place: int) -> tuple[int, int, int, bytes, bytes]:
        """Return kind, step, highest step and the digests of a record."""
        return _BODY.unpack(os.pread(self._file, _BODY.size, START + place * _SIZE))

    def _first(self, step: int) -> int:
        """Return the first release of a step; the highest step never falls along the file."""
        return bisect_left(range(self._count), step, key=lambda place: self._at(place)[2])

    def _refusal(self, step: int, held: Entry | None, embedding: bytes) -> str:
        if held is None:
            return f"steps are released in ascending order, got {step} after {self._high}"
        what = "with another embedding" if held.embedding != embedding else "as other bytes"
        return (
            f"step {step} was released before {what}, and two releases of a step let noise be "
            f"cancelled: return to the state of that release, or let the operator decide on "
            f"allow_again({step}); nothing may be sent"
        )


def digest(tensor: Tensor) -> bytes:
    """Return the SHA-256 of a tensor's type, shape and bytes; -0.0 and 0.0 differ.

    >>> digest(torch.zeros(2, 3)) == digest(torch.zeros(3, 2))
    False
    """
    plain = tensor.detach().cpu().contiguous()
    state = hashlib.sha256(f"{plain.dtype}{list(plain.shape)}".encode())
    state.update(plain.view(-1).view(torch.uint8).numpy().data)
    return state.digest()


def _number(step: object) -> int:
    number = whole(step)
    if not 0 <= number < 2**63:
        raise InputError(f"a step is a whole number from 0 to 2^63 - 1, got {number}")
    return number
