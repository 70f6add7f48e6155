"""The feature party's copy of the label party's journal: the records that came with the answers.

The feature party cannot make or check a record, only keep it. A label party whose own journal has
lost some, after a power cut or a restored copy, gets them back from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self, final

from tacit.errors import PeerError
from tacit.runtime._journal_header import COPY
from tacit.runtime._journal_record import Record
from tacit.runtime._record_file import RecordFile
from tacit.runtime.messages import RECORD_BYTES

__all__ = ["LARGEST_COPY", "RecordCopy"]

LARGEST_COPY = 1 << 22
"""So many records are kept, half a gigabyte: the label party does not decide about this disk."""


@final
class RecordCopy:
    """Records in the order of their numbers, from 0 on without a gap."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: Path, *, run: str) -> Self:
        """Open the copy of a run, or begin one where there is none."""
        file = RecordFile.open(path, run=run, magic=COPY)
        try:
            file.read_in(lambda data: Record.read(data).number == file.count)
        except BaseException:
            file.close()
            raise
        return cls(file)

    @property
    def count(self) -> int:
        """How many records there are."""
        return self._file.count

    def keep(self, data: bytes) -> None:
        """Keep records that have come, up to a limit; those that are here must be the same.

        Raises ``PeerError`` for a record that is another than before, or that leaves a gap.
        """
        for at in range(0, len(data), RECORD_BYTES):
            piece = data[at : at + RECORD_BYTES]
            number = Record.read(piece).number
            if number >= LARGEST_COPY == self.count:
                return
            if not 0 <= number <= self.count:
                raise PeerError(
                    f"record {number} of the label party's journal came where {self.count} was due"
                )
            if number < self.count:
                if self._file.read(number) != piece:
                    raise PeerError(
                        f"record {number} of the label party's journal is another than before: its "
                        "state was restored from a copy and went on without what came later"
                    )
            else:
                self._file.append(piece, what=f"record {number}")

    def read(self, first: int, most: int) -> bytes:
        """Return the bytes of up to ``most`` records from a number on."""
        return self._file.read(first, most)

    def sync(self) -> None:
        """Bring all records to disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
