"""The feature party's copy of the label party's journal: the records that came with the answers.

The feature party cannot make or check a record, only keep it. A label party whose own journal has
lost some, after a power cut or a restored copy, gets them back from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self, final

import torch

from tacit.errors import PeerError
from tacit.party.journal import Journal
from tacit.party.journal_records import COPY, JournalRecord, RecordFile
from tacit.training.cut import RECORD_BYTES
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import MOST_RECORDS, Records

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
            file.read_in(lambda data: JournalRecord.read(data).number == file.count)
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
            number = JournalRecord.read(piece).number
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


def hand_back(connection: Connection, copy: RecordCopy) -> None:
    """Run the feature party's side: send the records that the label party lacks, take new ones."""
    due = copy.read(copy.count - 1, 1) if copy.count else b""  # shows that it is the same journal
    taken = -1
    while True:
        had = copy.count
        connection.send(_message(had, due))
        answer = connection.receive(Records)
        if answer.values is not None:
            with connection.blamed():
                copy.keep(answer.content)
            due = b""
            moves = copy.count > had
        elif answer.count == had:
            copy.sync()
            return
        else:
            moves = taken < answer.count < had
            due, taken = copy.read(answer.count, MOST_RECORDS), answer.count
        if not moves:
            raise connection.wrong(
                f"the label party has {answer.count} records of its journal, and neither takes "
                f"those that it lacks nor sends those beyond {had}"
            )


def take_back(connections: Sequence[Connection], journal: Journal) -> int:
    """Run the label party's side; return how many records it had lost.

    Every one that is taken was made here, so there are never more than were once sent. All
    feature parties hand theirs back before any of them gets what it lacks.
    """
    before = journal.count
    theirs = [_take(connection, journal) for connection in connections]
    lost = journal.count - before
    if lost:
        journal.sync()
    if journal.behind is not None:  # the reason goes to the peers, and paths are not theirs
        raise PeerError(
            f"the label party has lost records of answers that it gave, and nobody handed them "
            f"back: it has {journal.count}, and sends nothing until it has the rest"
        )
    for connection, count in zip(connections, theirs, strict=True):
        _give(connection, journal, count)
    return lost


def _take(connection: Connection, journal: Journal) -> int:
    """Take what a feature party has beyond this journal; return how many records it has."""
    message = connection.receive(Records)
    count, last = message.count, message.content
    if count and count <= journal.count and journal.read(count - 1, 1) != last:
        raise connection.wrong(
            f"record {count - 1} of the label party's journal is another there than here: one "
            "state folder was restored from a copy and went on without the other, or is of "
            "another run: use the state folders of one run, or name new ones on both sides"
        )
    while journal.count < count:
        connection.send(Records(count=journal.count))
        message = connection.receive(Records)
        with connection.blamed():
            journal.take_back(message.content)
    return count


def _give(connection: Connection, journal: Journal, there: int) -> None:
    """Give a feature party the records that it lacks, as far as it keeps them."""
    end = min(journal.count, LARGEST_COPY)
    while there < end:
        piece = journal.read(there, min(MOST_RECORDS, end - there))
        connection.send(_message(journal.count, piece))
        now = connection.receive(Records).count
        if not there < now <= end:
            raise connection.wrong(f"{there} records and more were sent there, it has {now}")
        there = now
    connection.send(Records(count=there))


def _message(count: int, records: bytes) -> Records:
    if not records:
        return Records(count=count)
    return Records(count=count, values=torch.frombuffer(bytearray(records), dtype=torch.uint8))
