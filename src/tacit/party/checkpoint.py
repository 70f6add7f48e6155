"""Checkpoints: the state of one party after a step, written whole or not at all.

A store is a folder with one folder per checkpoint::

    step-000000123/model.safetensors       weights, as NAME.KEY
    step-000000123/optimizer.safetensors   tensors of optimisers, as NAME.NUMBER.KEY
    step-000000123/state.safetensors       arrays of other states, as NAME.KEY
    step-000000123/manifest.json           format, run, step, cursor, settings, SHA-256 of the files

A step that is saved again gets the ending ``.1``, ``.2`` and so on, and the highest one counts. A
checkpoint is written under a hidden name, brought to disk and renamed; nothing is ever unpickled.
The label party's checkpoints hold its top model and randomised labels: they stay with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, final

from safetensors import SafetensorError
from safetensors.numpy import load as arrays_from_bytes
from safetensors.numpy import save as arrays_to_bytes
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from tacit.accounting.ledger import SavedState
from tacit.atomic import sync_folder, write_new
from tacit.errors import InputError, ParameterError, TacitError, UsageError
from tacit.party._checkpoint_format import (
    Facts,
    Models,
    Optimizers,
    StoredCheckpoint,
    copies,
    joined,
    parted,
    plain_json,
    settings,
    weights,
)
from tacit.rng import whole
from tacit.state_dir import open_own, remove_own

_Seen = TypeVar("_Seen")

_FORMAT = 1
_FOLDER = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_ASIDE = ".aside-"
_MODEL, _OPTIMIZER, _STATE = _FILES = tuple(
    f"{part}.safetensors" for part in ("model", "optimizer", "state")
)
_MANIFEST = "manifest.json"


@final
class CheckpointStore:
    """The checkpoints of one party, newest last; one process writes at a time.

    Guarantee: a checkpoint that :meth:`save` returned from survives SIGKILL and a power cut, and
    those before it are removed only then. If saving fails or is interrupted at any moment, they
    are as they were.

    Args:
        path: the store's folder; made when something is saved.
        run: names the run; checkpoints of another one are refused.
        keep: how many checkpoints to keep.

    Attributes:
        damaged: a line for each damaged checkpoint, as of the last reading of the store.
    """

    def __init__(self, path: Path | str, *, run: str, keep: int = 2) -> None:
        if not run:
            raise ParameterError("checkpoints need the name of their run, got an empty one")
        if whole(keep) < 1:
            raise ParameterError(f"keep must be at least 1, got {keep}")
        self.path = Path(path)
        self.damaged: tuple[str, ...] = ()
        self._run = run
        self._keep = keep

    def save(
        self,
        step: int,
        *,
        models: Models,
        optimizers: Optimizers,
        cursor: Mapping[str, Any] | None = None,
        states: Mapping[str, SavedState] | None = None,
    ) -> Path:
        """Store the state after ``step`` steps and return its folder, or raise and change nothing.

        Checkpoints of later steps are of a course that was given up; they are removed as well.
        """
        step, states = whole(step), states or {}
        if step < 0:
            raise InputError(f"a step is a whole number from 0 on, got {step}")
        list(self._each(self._facts))  # what is not of this run must not be tidied away
        saved = {name: settings(optimizer) for name, optimizer in optimizers.items()}
        facts = {
            "tacit_checkpoint": _FORMAT,
            "run": self._run,
            "step": step,
            "cursor": dict(cursor or {}),
            "models": list(models),
            "optimizers": {name: values for name, (_, values) in saved.items()},
            "states": {name: values for name, (_, values) in states.items()},
        }
        files = {
            _MODEL: to_bytes(joined({n: weights(m) for n, m in models.items()})),
            _OPTIMIZER: to_bytes(joined({n: tensors for n, (tensors, _) in saved.items()})),
            _STATE: arrays_to_bytes(joined({n: copies(a) for n, (a, _) in states.items()})),
        }
        try:
            folder = self._write(step, {**files, _MANIFEST: _manifest(facts, files)})
        except OSError as error:
            raise TacitError(
                f"{self.path}: step {step} could not be saved ({error.strerror}); the checkpoints "
                "before it are untouched: see to the disk and save again"
            ) from error
        self._tidy(step, folder)
        return folder

    def latest(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint that is whole, or None; ``damaged`` names the others."""
        return next(self._each(self._open), None)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints that are whole, in ascending order."""
        return sorted({int(facts["step"]) for facts in self._each(self._check)})

    def at(self, step: int) -> StoredCheckpoint:
        """Return the checkpoint of a step, or raise where there is no whole one."""
        for found in self._each(self._open, only=step):
            return found
        why = "".join(f"; {line}" for line in self.damaged)
        raise InputError(f"{self.path}: there is no whole checkpoint of step {step}{why}")

    def _folders(self) -> list[tuple[int, int, Path]]:
        """Return step, attempt and folder of every checkpoint, newest last."""
        if self.path.is_symlink():
            raise UsageError(f"{self.path}: is a symbolic link: put the folder itself there")
        names = os.listdir(self.path) if self.path.is_dir() else []
        found = [match for match in map(_FOLDER.fullmatch, names) if match]
        return sorted((int(m[1]), int(m[2] or 0), self.path / m[0]) for m in found)

    def _each(self, read: Callable[[Path], _Seen], *, only: int | None = None) -> Iterator[_Seen]:
        """Yield what ``read`` returns of each checkpoint, newest first, and note damaged ones."""
        self.damaged = ()
        for step, _, folder in reversed(self._folders()):
            if only not in (None, step):
                continue
            try:
                seen = read(folder)
            except UsageError:
                raise
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                self.damaged += (f"{folder.name} is not whole and was left out: {error}",)
            else:
                yield seen

    def _facts(self, folder: Path) -> Facts:
        """Return a checked manifest; its digest is made the same way in every format."""
        if folder.is_symlink():
            raise UsageError(f"{folder}: is a symbolic link: put the folder itself there")
        facts: Facts = json.loads(_read(folder / _MANIFEST))
        if facts.pop("digest") != _digest(facts):
            raise ValueError(f"{_MANIFEST} does not have its digest")
        if facts["tacit_checkpoint"] != _FORMAT:
            raise UsageError(
                f"{folder}: a checkpoint of format {facts['tacit_checkpoint']}, this is format "
                f"{_FORMAT}: use the version that wrote it"
            )
        if facts["run"] != self._run:
            raise UsageError(
                f"{folder}: a checkpoint of run {facts['run']!r}, not of {self._run!r}: name "
                "another folder"
            )
        if folder.name.partition(".")[0] != _name(facts["step"]):
            raise ValueError(f"it holds step {facts['step']}")
        return facts

    def _check(self, folder: Path) -> Facts:
        """Return the manifest of a checkpoint whose files are all as they were written."""
        facts = self._facts(folder)
        for name in _FILES:
            with open(open_own(folder / name, os.O_RDONLY), "rb") as file:
                _compare(name, hashlib.file_digest(file, "sha256").hexdigest(), facts)
        return facts

    def _open(self, folder: Path) -> StoredCheckpoint:
        facts = self._facts(folder)
        data = {name: _read(folder / name) for name in _FILES}
        for name, content in data.items():
            _compare(name, hashlib.sha256(content).hexdigest(), facts)
        tensors = parted(from_bytes(data[_OPTIMIZER]))
        arrays = parted(arrays_from_bytes(data[_STATE]))
        models = parted(from_bytes(data[_MODEL]))
        return StoredCheckpoint(
            run=facts["run"],
            step=facts["step"],
            cursor=facts["cursor"],
            states={n: (arrays.get(n, {}), values) for n, values in facts["states"].items()},
            models={name: models.get(name, {}) for name in facts["models"]},
            optimizers={n: (tensors.get(n, {}), v) for n, v in facts["optimizers"].items()},
        )

    def _write(self, step: int, files: Mapping[str, bytes]) -> Path:
        """Write the files aside, bring them to disk, and only then give them their name."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=self.path))
        try:
            for name, data in files.items():
                write_new(aside / name, data)
            sync_folder(aside)
            tries = [attempt for held, attempt, _ in self._folders() if held == step]
            folder = self.path / (_name(step) + (f".{tries[-1] + 1}" if tries else ""))
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_folder(self.path)
        sync_folder(self.path.parent)
        return folder

    def _tidy(self, step: int, folder: Path) -> None:
        """Remove all but the new checkpoint and those before it that are kept."""
        earlier = {held: path for held, _, path in self._folders() if held < step}
        kept = {folder, *list(earlier.values())[max(0, len(earlier) - self._keep + 1) :]}
        for _, _, path in self._folders():
            if path not in kept:
                with suppress(OSError):  # renamed first: half a checkpoint is never seen
                    path.rename(self.path / f"{_ASIDE}{path.name}")
        self._sweep()

    def _sweep(self) -> None:
        """Remove what is left of checkpoints that were not finished or are not kept."""
        for aside in self.path.glob(f"{_ASIDE}*"):
            with suppress(UsageError):
                remove_own(aside)


def common_step(steps_here: Iterable[int], steps_there: Iterable[int]) -> int | None:
    """Return the last step that both sides have a checkpoint of, or None.

    >>> common_step([10, 20, 30], [20, 10])
    20
    """
    return max(set(steps_here) & set(steps_there), default=None)


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _digest(facts: Facts) -> str:
    return hashlib.sha256(plain_json(facts).encode()).hexdigest()


def _manifest(facts: Facts, files: Mapping[str, bytes]) -> bytes:
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    facts = {**facts, "files": sums}
    return json.dumps({**facts, "digest": _digest(facts)}, indent=1).encode()


def _compare(name: str, found: str, facts: Facts) -> None:
    if found != facts["files"][name]:
        raise ValueError(f"{name} does not have its SHA-256")


def _read(path: Path) -> bytes:
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()
