"""What the label party measures while it trains: its model, and what leaks about its labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.monitor import LeakMonitor
from tacit.objective import Learner
from tacit.recall import MemoryMonitor
from tacit.runtime.checkpoint import State
from tacit.runtime.state_folder import StateFolder
from tacit.study.embedded import Embedded, signed
from tacit.study.outcome import Claims, leak_records, utility
from tacit.study.party_config import PartyConfig
from tacit.types import Cut, Release

__all__ = ["LabelMeasures"]

Indices = npt.NDArray[np.int64]

HISTORY = "history.json"


@final
class LabelMeasures:
    """Attacks the releases live and keeps the measures of every epoch, in the state folder.

    What the memory attack has added up is part of a checkpoint; the other attacks look at single
    releases and begin anew after a restart. ``embedded`` is shown what is predicted from, and
    ``learner`` is the objective at work, once there is one.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, classes: int) -> None:
        self._config = config
        self._folder = folder
        self._watched = bool(config.attacks)
        watch = {"every": config.monitor_every, "classes": classes}
        self._monitor = LeakMonitor(config.attacks, **watch) if self._watched else None
        self._memory: MemoryMonitor | None = None
        self._claims = Claims()
        self.embedded = Embedded()
        self.learner: Learner | None = None
        self._numbers: tuple[Indices, Indices] | None = None
        self.history: dict[str, dict[str, Any]] = folder.read(HISTORY) or {}

    def watcher(self, truth: Tensor, state: State | None) -> Callable[[Cut, Release], None]:
        """Return what looks at every release beside the true labels."""
        self._memory = MemoryMonitor(every=self._config.monitor_every) if self._watched else None
        if self._memory is not None and state is not None:
            self._memory.load_state(*state)
        watchers = [w for w in (self._monitor, self._memory, self._claims) if w is not None]

        def watch(cut: Cut, release: Release) -> None:
            assert cut.ids is not None  # noqa: S101 - the label party names its examples
            rows = self._rows(cut.ids)
            judged = replace(cut, ids=rows, labels=truth[rows])
            for watcher in watchers:
                watcher(judged, release)

        return watch

    def number(self, numbers: Indices) -> None:
        """Learn by which numbers the examples come, in their common order."""
        order = np.argsort(numbers)
        self._numbers = numbers[order], order

    def _rows(self, ids: Tensor) -> Tensor:
        """Return the positions of a cut's examples; randomised labels have other numbers."""
        if self._numbers is None:
            return ids
        numbers, order = self._numbers
        return torch.from_numpy(order[np.searchsorted(numbers, ids.numpy())])

    def states(self) -> dict[str, State]:
        """Return what a checkpoint keeps of it."""
        return {} if self._memory is None else {"memory": self._memory.to_state()}

    def evaluated(self, epoch: int, probs: Tensor, truth: Indices) -> str:
        """Keep the measures of an epoch and return them as a line."""
        test = utility(probs.numpy(), truth)
        flipped = self._learned().get("flipped")
        if flipped is not None:
            test = signed(test, flipped=flipped)
        self.history[str(epoch)] = {
            "epoch": epoch,
            "test": test,
            "leak": {} if self._monitor is None else leak_records(self._monitor.recent()),
            "memory_leak": None if self._memory is None else self._memory.leak(),
            "embedding_leak": self.embedded.leak(truth),
        }
        self._folder.write(HISTORY, self.history)
        return ", ".join(f"test {name} {value:.4f}" for name, value in test.items())

    def _learned(self) -> dict[str, Any]:
        return {} if self.learner is None else self.learner.record()

    def record(self) -> dict[str, Any]:
        """Return everything that was measured, as plain values."""
        epochs = [self.history[key] for key in sorted(self.history, key=int)]
        return {
            "test": epochs[-1]["test"] if epochs else None,
            "leak": {} if self._monitor is None else leak_records(self._monitor.report()),
            "memory_leak": None if self._memory is None else self._memory.leak(),
            "embedding_leak": epochs[-1].get("embedding_leak") if epochs else None,
            "objective_record": self._learned(),
            "sum_kl_per_release": self._claims.sum_kl(),
            "history": epochs,
        }
