"""Rounds of matching: one set of ids for each peer, on record before the peer is answered.

A peer that gets answers about a set of ids learns which of them are here. So a round answers each
peer about one set, the first that it shows. What it shows is recorded, piece by piece as a digest
and a size, before the answer goes out. An interrupted matching goes on with the same set; another
set is refused until this party's operator allows another round (:meth:`Rounds.again`).

What hides the own ids is derived from a key, the round, the peer and the own ids, so a matching
that is taken up again shows the same blinded ids, and the peer can do the same here.

The record is a file of lines, each one JSON object, that only grows::

    {"format": 1}
    {"round": 1, "own": 5400, "ids": digest of the own ids}
    {"peer": name, "count": 5400, "commitment": the peer's}              in private only
    {"peer": name, "piece": 8192, "digest": of the peer's ids, as they came}
    {"peer": name, "common": 4860, "of": 5400}                           the matching is done
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tacit.atomic import sync_folder
from tacit.errors import PeerError, TacitError, UsageError
from tacit.state_dir import open_own
from tacit.wire.psi.messages import Secrets

KEY = "matching.key"
Record = dict[str, Any]
_FORMAT = 1
_AGAIN = (
    "a state folder matches one set of ids, because every other one is a question about ids; if "
    "both operators agree to another round, each says so with tacit party CONFIG --match-again"
)
ONCE = "a command matches one set of ids: start tacit predict again on both sides"


@final
@dataclass(kw_only=True)
class _Shown:
    """What a peer has shown in this round."""

    count: int | None = None
    commitment: str | None = None
    pieces: list[tuple[int, str]] = field(default_factory=list)
    common: int | None = None
    of: int = 0


@final
class Rounds:
    """A party's rounds of matching; in memory, unless ``append`` stores what happens.

    Args:
        key: 32 bytes that only this party knows; fresh ones where nothing must be taken up again.
        append: stores a record, or raises; only then is a peer answered.

    Attributes:
        remedy: what to do where another set is wanted, for the line that refuses it.
        number: of this round, from 1 on; 0 before the first.
    """

    def __init__(
        self, *, key: bytes | None = None, append: Callable[[Record], None] = lambda _: None
    ) -> None:
        self.number, self.remedy = 0, _AGAIN
        self._key = secrets.token_bytes(32) if key is None else key
        self._append = append
        self._own = (0, "")
        self._peers: dict[str, _Shown] = {}

    def begin(self, ids: npt.NDArray[Any]) -> None:
        """Take the own ids for this round; once a peer was answered, others are refused."""
        own = len(ids), _digest_of(ids)
        if own == self._own:
            return
        if self._used():
            raise UsageError(
                f"round {self.number} of matching was begun with {self._own[0]} other ids than the "
                f"{own[0]} of this table: bring that table back; {self.remedy}"
            )
        self._store({"round": max(1, self.number), "own": own[0], "ids": own[1]})

    def again(self) -> int:
        """Open another round, an operator's decision; one that nobody has used yet is kept."""
        if self._used():
            self._store({"round": self.number + 1, "own": 0, "ids": ""})
        return self.number

    def secrets(self, peer: str, *, role: str) -> Secrets:
        """Return what hides the own ids from a peer in this round."""
        return Secrets.derived(self._key, role, peer, str(self.number), self._own[1])

    def with_peer(self, peer: str) -> PeerSet:
        """Return the set of ids of one peer, from its first piece on."""
        shown = self._peers.setdefault(peer, _Shown())
        return PeerSet(peer, shown, number=self.number, remedy=self.remedy, store=self._store)

    def _used(self) -> bool:
        """Whether anybody was answered in this round."""
        return any(shown.pieces or shown.common is not None for shown in self._peers.values())

    def note(self, record: Record) -> None:
        """Take over a record that was stored before."""
        if "round" in record:
            if record["round"] != self.number:
                self._peers = {}
            self.number, self._own = int(record["round"]), (int(record["own"]), str(record["ids"]))
            return
        shown = self._peers.setdefault(str(record["peer"]), _Shown())
        if "piece" in record:
            shown.pieces.append((int(record["piece"]), str(record["digest"])))
        elif "common" in record:
            shown.common, shown.of = int(record["common"]), int(record["of"])
        else:
            shown.count, shown.commitment = int(record["count"]), str(record["commitment"])

    def _store(self, record: Record) -> None:
        self._append(record)
        self.note(record)


@final
class PeerSet:
    """The ids that one peer shows in one conversation, held to what it showed in the round before.

    Attributes:
        peer: its name.
        number: of the round.
        seen: how many ids have come.
        repeated: whether the peer was answered about ids in this round before.
    """

    def __init__(
        self,
        peer: str,
        shown: _Shown,
        *,
        number: int,
        remedy: str,
        store: Callable[[Record], None],
    ) -> None:
        self.peer, self.number, self.seen = peer, number, 0
        self.repeated = bool(shown.pieces)
        self._shown, self._remedy = shown, remedy
        self._store = store
        self._place = 0
        self._declared: Record | None = None

    def declare(self, count: int, commitment: bytes) -> None:
        """Take the announced number of ids; none has come yet, so nothing is stored."""
        shown, told = self._shown, (count, commitment.hex())
        if shown.count is not None and (shown.count, shown.commitment) != told:
            raise self._refusal(f"{count} ids under another commitment than {shown.count} before")
        if shown.count is None:
            self._declared = {"peer": self.peer, "count": count, "commitment": told[1]}

    def show(self, ids: bytes, count: int) -> None:
        """Record the next ids; return when they may be answered."""
        if not count:
            return
        shown, piece = self._shown, (count, hashlib.sha256(ids).hexdigest())
        if self._place < len(shown.pieces):
            if shown.pieces[self._place] != piece:
                raise self._refusal(f"other ids from number {self.seen + 1} on than before")
        elif shown.common is not None:
            raise self._refusal(f"more than the {self.seen} ids of before")
        else:
            self._add(piece)
        self._place += 1
        self.seen += count

    def settle(self, common: int) -> None:
        """Record the end of the matching; refuse it before the whole set has come."""
        if self._place < len(self._shown.pieces):
            raise self._refusal(f"fewer ids than before, {self.seen}")
        if self._shown.common != common:
            self._store({"peer": self.peer, "common": common, "of": self.seen})

    def _add(self, piece: tuple[int, str]) -> None:
        if self._declared is not None:
            self._store(self._declared)
            self._declared = None
        self._store({"peer": self.peer, "piece": piece[0], "digest": piece[1]})

    def _refusal(self, what: str) -> PeerError:
        text = f"round {self.number} of matching: {self.peer} shows {what}: {self._remedy}"
        return PeerError(text)


@contextmanager
def open_rounds(path: Path, *, key: bytes) -> Iterator[Rounds]:
    """Open the record of a party's rounds, or begin one; the folder must be held by this process.

    A last line that is not whole is cut off: the answer that it stood for was never sent.
    """
    file = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        os.fchmod(file, 0o600)
        records = _RecordLines(file, path)
        rounds = Rounds(key=key, append=records.append)
        for record in records.read():
            rounds.note(record)
        yield rounds
    finally:
        os.close(file)


@final
class _RecordLines:
    """The file of a record, written at its end."""

    def __init__(self, file: int, path: Path) -> None:
        self._file, self._path = file, path
        self._end = 0

    def read(self) -> list[Record]:
        """Return all records; begin the file where there are none."""
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self._end = content.rfind(b"\n") + 1
        os.ftruncate(self._file, self._end)
        try:
            records = [json.loads(line) for line in content[: self._end].splitlines()]
            if records and records[0] != {"format": _FORMAT}:
                raise ValueError(f"it begins with {records[0]}")
            checked = Rounds()
            for record in records[1:]:
                checked.note(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{self._path}: the record of what was matched is damaged ({error}): restore it, "
                "or name another state folder for a new run"
            ) from None
        if not records:
            self.append({"format": _FORMAT})
            sync_folder(self._path.parent)
        return records[1:]

    def append(self, record: Record) -> None:
        """Bring a record to disk, or raise."""
        line = json.dumps(record).encode() + b"\n"
        try:
            done = 0
            while done < len(line):
                done += os.pwrite(self._file, line[done:], self._end + done)
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise TacitError(
                f"{self._path}: what is matched could not be recorded ({error.strerror}), so the "
                "peer gets no answer: see to the disk"
            ) from None
        self._end += len(line)


def _digest_of(ids: npt.NDArray[Any]) -> str:
    """Return what stands for ids, in whatever order they are."""
    plain = np.sort(ids)
    return hashlib.sha256(str(plain.dtype).encode() + plain.tobytes()).hexdigest()
