"""A sweep's results on disk: journals that are only appended to, one per writer.

::

    STORE/store.json                 {"format": 1, "kind": "tacit sweep"}
    STORE/journal/HOST-PID-X.jsonl   one line per trial that ended, written by that process alone
    STORE/partial/KEY/               what a long trial has done so far, until it has ended

No two processes write to one file, so no lock is needed and a store may lie on a file system that
several machines share. A process that is killed while it writes leaves an incomplete last line,
which is not read; nothing is written to that file again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from tacit.atomic import place_file
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.fields import finite
from tacit.plugins import Plugin

FORMAT = 1
_KIND = "tacit sweep"
# The data directory and the number of threads do not change what is asked for.
_NOT_ASKED = {"data_dir", "threads"}
# Settings that were added later: where one is off, the key is the same as without it.
_LATER: Mapping[str, Any] = {
    "rare": None,
    "pretrain": None,
    "width": None,
    "embed_bits": 32,
    "embed_noise": 0.0,
    "head": None,
    "private_head": False,
    "compare_silent": False,
}


@final
@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """How one trial ended.

    ``results`` are equal, bit for bit, whenever the trial is repeated on a machine of the same
    kind; ``run`` holds all that is not: ``seconds``, ``steps_per_second``, ``node``, ``pid``,
    ``attempts``, ``at`` and the versions.
    """

    key: str
    task: str
    config: Mapping[str, Any]
    state: str
    results: Mapping[str, Any] | None
    error: str | None
    run: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """Whether the trial ran to its end."""
        return self.state == "done"


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """Return what a trial is asked to do, as plain values."""
    return config.model_dump(mode="json", exclude=_NOT_ASKED)


def key_of(config: TrainConfig, task: str, *, plugins: Iterable[Plugin] = ()) -> str:
    """Return the hash that a trial's results are kept under.

    The text of a plug-in is part of it where the trial uses one of its names.

    >>> one = TrainConfig(protect="marvell(s=4)", threads=2)
    >>> key_of(one, "a:b") == key_of(TrainConfig(protect="marvell( 4 )"), "a:b")
    True
    """
    # An unset number of parties was once written as 1: earlier results keep their key.
    settings = {**settings_of(config), "parties": config.parties or 1}
    for name, off in _LATER.items():
        if settings[name] == off:
            del settings[name]
    asked = {"format": FORMAT, "task": task, "config": settings}
    names = json.dumps(settings)
    if used := sorted(plugin.digest for plugin in plugins if plugin.used_by(names)):
        asked["plugins"] = used
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@final
class SweepStore:
    """The records of all writers, by key; what this process adds goes to a journal of its own."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._open(create)
        self.records: dict[str, TrialRecord] = {}
        self._read: dict[Path, tuple[int, int]] = {}
        self._own: int | None = None
        self.refresh()

    def _open(self, create: bool) -> None:
        head = self.path / "store.json"
        if not head.is_file():
            if not create:
                raise UsageError(f"STORE {self.path}: is no sweep's store: it has no store.json")
            if self.path.exists() and not (
                self.path.is_dir() and all(map(_ours, self.path.iterdir()))
            ):
                raise UsageError(f"--store {self.path}: is taken by something else: name another")
            self._make(head)
        try:
            found = json.loads(head.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"STORE {head}: cannot be read ({error}); name another") from None
        _require_format(found, str(head))

    def _make(self, head: Path) -> None:
        try:
            (self.path / "journal").mkdir(parents=True, exist_ok=True)
            # The file is complete when it gets its name, whichever process is first.
            content = json.dumps({"format": FORMAT, "kind": _KIND}) + "\n"
            place_file(head, content.encode(), mode=0o666)
        except OSError as error:
            raise UsageError(f"--store {self.path}: cannot be made: {error.strerror}") from None

    def refresh(self) -> list[TrialRecord]:
        """Read what any process has appended since; return the records that are new."""
        new = []
        for journal in sorted((self.path / "journal").glob("*.jsonl")):
            for record in self._added(journal):
                known = self.records.get(record.key)
                # The first complete record stays; a failed one may be replaced.
                if known is None or not known.done:
                    self.records[record.key] = record
                    new.append(record)
        return new

    def _added(self, journal: Path) -> Iterator[TrialRecord]:
        start, line = self._read.get(journal, (0, 0))
        if journal.stat().st_size <= start:
            return
        with journal.open("rb") as file:
            file.seek(start)
            whole, end, _torn = file.read().rpartition(b"\n")
        for text in whole.split(b"\n") if end else ():
            line += 1
            yield _record(text, f"{journal}, line {line}")
        self._read[journal] = (start + len(whole) + len(end), line)

    def append(self, record: TrialRecord) -> None:
        """Write one record through to the disk."""
        if self._own is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            (self.path / "journal").mkdir(exist_ok=True)
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._own = os.open(self.path / "journal" / name, how, 0o644)
        line = json.dumps(finite({"format": FORMAT, **asdict(record)}), allow_nan=False)
        rest = memoryview(line.encode() + b"\n")
        while rest:
            rest = rest[os.write(self._own, rest) :]
        os.fsync(self._own)

    def partial(self, key: str) -> Path:
        """Return where a trial may keep what it has done so far; nothing makes it beforehand."""
        return (self.path / "partial" / key).absolute()

    def remove_partial(self, key: str) -> None:
        """Remove what a trial kept until it ended."""
        shutil.rmtree(self.partial(key), ignore_errors=True)

    def close(self) -> None:
        """Close the journal of this process."""
        if self._own is not None:
            os.close(self._own)
            self._own = None


def _ours(path: Path) -> bool:
    """Return whether a file is part of a store that another process is creating."""
    return path.name == "journal" or path.name.startswith(".store-")


def _require_format(found: object, where: str) -> None:
    shown = found.get("format") if isinstance(found, dict) else None
    if shown != FORMAT:
        raise UsageError(
            f"STORE {where}: has format {shown!r}, this tacit reads format {FORMAT}; "
            f"use the tacit that wrote it, or name another store"
        )


def _record(text: bytes, where: str) -> TrialRecord:
    try:
        found = json.loads(text)
        _require_format(found, where)
        return TrialRecord(**{field.name: found[field.name] for field in fields(TrialRecord)})
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"STORE {where}: is damaged ({error}); delete that line, and its trial runs again"
        ) from None
