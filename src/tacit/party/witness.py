"""The witness: the number of records in the journal, kept outside the state folder.

A state folder that is restored from a copy is whole and knows nothing of what was released after
the copy was made. The witness does: one line of text in a file outside the state folder, written
after every record and before the release is sent::

    tacit witness 1 records 00000000000000000040 step 00000000000000000039 code <32 digits>
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
from pathlib import Path
from typing import Self, final

from tacit.atomic import write_whole
from tacit.errors import ReleaseError, UsageError
from tacit.party.journal_records import Codes

_LINE = re.compile(rb"(tacit witness 1 records (\d{20}) step (\d{20}|-{20}) )code ([0-9a-f]{32})\n")


@final
class Witness:
    """The line outside the state folder, held by this process until it is closed.

    Attributes:
        count: how many records it has seen.
    """

    def __init__(self, path: Path, codes: Codes, *, always: bool) -> None:
        self.path, self.count = path, 0
        self._codes = codes
        self._always = always
        self._file = -1

    @classmethod
    def open(cls, path: Path, codes: Codes, *, always: bool) -> Self:
        """Open the witness of a run, or begin one where there is none."""
        made = cls(path, codes, always=always)
        try:
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(path, made._line(0, None))
            made._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"witness {path}: cannot be used: {error.strerror}") from None
        try:
            made._begin()
        except BaseException:
            made.close()
            raise
        return made

    def note(self, count: int, step: int | None) -> None:
        """Write down how many records there are now, and the highest step that was released."""
        line, done = self._line(count, step), 0
        try:
            while done < len(line):
                done += os.pwrite(self._file, line[done:], done)
            if self._always:
                os.fsync(self._file)
        except OSError as error:
            raise ReleaseError(
                f"witness {self.path}: could not be written ({error.strerror}), so nothing may be "
                "sent: see to the disk, then start again"
            ) from error
        self.count = count

    def close(self) -> None:
        """Close the file and let another process have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _begin(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"witness {self.path}: another process holds it: every run has its own"
            ) from None
        found = _LINE.fullmatch(os.pread(self._file, 4096, 0))
        made = b"" if found is None else self._codes.witness(found[1])
        if found is None or not hmac.compare_digest(made.hex().encode(), found[4]):
            raise UsageError(
                f"witness {self.path}: it is damaged or of another run, so it does not tell what "
                "was released: name the file of this run, or a new one if you know that the state "
                "folder was not restored from a copy"
            )
        self.count = int(found[2])

    def _line(self, count: int, step: int | None) -> bytes:
        shown = "-" * 20 if step is None else f"{step:020d}"
        text = f"tacit witness 1 records {count:020d} step {shown} ".encode()
        return text + b"code " + self._codes.witness(text).hex().encode() + b"\n"
