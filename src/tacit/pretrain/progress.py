"""How far the training of a bottom is, and what it needs to go on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeAlias, final

import torch
from torch import Tensor

from tacit.errors import InputError

State: TypeAlias = Mapping[str, Tensor]

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of passes over the rows that are done, and how many there will be."""

_TRAINING = "training"


class Kept(Protocol):
    """Where an unfinished training lies: a file of tensors at the bottom's owner, for instance."""

    def load(self) -> State | None:
        """Return the tensors that were saved last, or None where none were."""

    def save(self, tensors: State, done: int) -> None:
        """Put these tensors in the place of those before; so many passes are done."""


@final
class SavedTraining:
    """One training in a ``Kept``: saved at most once in ``seconds``, refused if of another one.

    ``training`` is a digest of all that decides the outcome: method, columns, rows and seed.
    """

    def __init__(self, kept: Kept, training: bytes, *, seconds: float) -> None:
        self._kept, self._seconds = kept, seconds
        self._training = torch.tensor(list(training), dtype=torch.uint8)
        self._next = time.monotonic() + seconds
        saved = dict(kept.load() or {})
        found = saved.pop(_TRAINING, self._training if not saved else None)
        if found is None or not torch.equal(found, self._training):
            raise InputError(
                "the kept tensors are of another training, with other rows, columns, seed or "
                "method: delete them to start anew, or give what they were made with"
            )
        self.tensors: State = saved

    def due(self) -> bool:
        """Return whether the last time is long enough ago."""
        return time.monotonic() >= self._next

    def save(self, tensors: State, done: int) -> None:
        """Save these tensors."""
        self._kept.save({**tensors, _TRAINING: self._training}, done)
        self._next = time.monotonic() + self._seconds


@final
@dataclass(frozen=True)
class FitProgress:
    """What ``learn`` calls after each pass over the rows, and asks for where to begin.

    A method that consists of several has one ``part`` for each of them: passes are counted over
    all parts, and the tensors of a part are saved under its name.

    >>> FitProgress(lambda done, total: print(f"{done} of {total}"))(1, 20)
    1 of 20
    """

    on_progress: OnProgress
    saved: SavedTraining | None = None
    prefix: str = ""
    before: int = 0
    total: int | None = None
    finished: State = field(default_factory=dict)

    def __call__(self, done: int, total: int) -> None:
        """Report that so many passes of this part are done."""
        self.on_progress(self.before + done, self.total or total)

    def resume(self) -> State:
        """Return what :meth:`keep` saved before the interruption; empty at the start."""
        found = {} if self.saved is None else self.saved.tensors
        return {
            name.removeprefix(self.prefix): tensor
            for name, tensor in found.items()
            if name.startswith(self.prefix)
        }

    def keep(self, tensors: Callable[[], State], done: int, *, always: bool = False) -> None:
        """Save what this part needs to go on after so many passes, unless the last time is recent.

        ``tensors`` makes copies: it is called only if they are saved.
        """
        if self.saved is not None and (always or self.saved.due()):
            named = {self.prefix + name: tensor for name, tensor in tensors().items()}
            self.saved.save({**self.finished, **named}, self.before + done)

    def part(self, name: str, *, before: int, total: int, finished: State) -> Self:
        """Return the progress of one part, with the passes and the tensors of those before it."""
        named = {self.prefix + key: tensor for key, tensor in finished.items()}
        return replace(
            self,
            prefix=f"{self.prefix}{name}.",
            before=self.before + before,
            total=self.total or total,
            finished={**self.finished, **named},
        )
