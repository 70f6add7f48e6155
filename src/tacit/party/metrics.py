"""What the label party measures while it trains: its model, and what leaks about its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log2
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting.ledger import SavedState
from tacit.attack import get as get_attack
from tacit.evaluate.remedy import AuditedSetting
from tacit.measure import PooledLeak
from tacit.monitor import LeakMonitor, MemoryMonitor
from tacit.objective import Learner
from tacit.party.config import PartyConfig
from tacit.party.journaled_label import Measured
from tacit.state_dir import StateFolder
from tacit.training.embedding_leak import Embedded, signed
from tacit.training.metrics import Claims, leak_records, memory_leak, utility
from tacit.training.verdict import MemoryLeak, verdict_of
from tacit.types import Cut, Release

Indices = npt.NDArray[np.int64]

HISTORY = "history.json"
SHARED = ("auc", "accuracy")
"""The measures that a feature party may be told; both lie between 0 and 1."""
SHARED_STEPS = 100
"""They are rounded to one of so many equal steps: 101 values, or that there is none."""


def _rounded(name: str, test: Mapping[str, float]) -> str:
    if name not in test:
        return f"test {name} unknown"
    return f"test {name} {round(test[name] * SHARED_STEPS) / SHARED_STEPS:.2f}"


@final
class LabelMeasures:
    """Attacks the releases live and keeps the measures of every epoch, in the state folder.

    What ``memory_leak`` has added up is part of a checkpoint; attacks that look at single releases
    begin anew after a restart, and others that add up over epochs are left out of a run that goes
    on from a checkpoint: what they would find of the rest is too little. ``embedded`` is shown what
    is predicted from, and ``learner`` is the objective at work, once there is one.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, classes: int) -> None:
        self._config = config
        self._folder = folder
        self._classes = classes
        self._watched = bool(config.attacks)
        watch = {"every": config.monitor_every, "classes": classes}
        adding = [attack for attack in config.attacks if get_attack(attack).adds_up]
        single = [attack for attack in config.attacks if attack not in adding]
        self._monitors = [LeakMonitor(attacks, **watch) for attacks in (single, adding) if attacks]
        self._memory: MemoryMonitor | None = None
        self._claims = Claims()
        self.embedded = Embedded()
        self.learner: Learner | None = None
        self._numbers: tuple[Indices, Indices] | None = None
        self.history: dict[str, dict[str, Any]] = folder.read(HISTORY) or {}

    def watcher(self, truth: Tensor, state: SavedState | None) -> Callable[[Cut, Release], None]:
        """Return what looks at every release beside the true labels."""
        self._memory = MemoryMonitor(every=self._config.monitor_every) if self._watched else None
        if self._memory is not None and state is not None:
            self._memory.load_state(*state)
            self._monitors = [m for m in self._monitors if not any(a.adds_up for a in m.attacks)]
        watchers = [w for w in (*self._monitors, self._memory, self._claims) if w is not None]

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

    def states(self) -> dict[str, SavedState]:
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
            "leak": self._leaks(LeakMonitor.recent),
            "memory_leak": None if self._memory is None else self._memory.leak(),
            "embedding_leak": self.embedded.leak(truth),
        }
        self._folder.write(HISTORY, self.history)
        return ", ".join(f"test {name} {value:.4f}" for name, value in test.items())

    def told(self, epoch: int) -> Measured:
        """Return what the feature parties are told of an epoch, and how much that is."""
        bits = len(SHARED) * log2(SHARED_STEPS + 2)
        if not self._config.share_metrics:
            return Measured(note=None, bits=bits)
        test = self.history[str(epoch)]["test"]
        return Measured(note=", ".join(_rounded(name, test) for name in SHARED), bits=bits)

    def _leaks(self, found: Callable[[LeakMonitor], dict[str, PooledLeak]]) -> dict[str, Any]:
        """Return what the monitors have found, in the order in which the attacks were named."""
        each = {name: leak for monitor in self._monitors for name, leak in found(monitor).items()}
        return leak_records({name: each[name] for name in self._config.attacks if name in each})

    def _learned(self) -> dict[str, Any]:
        return {} if self.learner is None else self.learner.record()

    def record(self) -> dict[str, Any]:
        """Return everything that was measured, as plain values.

        A process that is started after the end has seen no release: what the memory attack came
        to is then taken from the measures of the last epoch.
        """
        epochs = [self.history[key] for key in sorted(self.history, key=int)]
        leaks = self._leaks(LeakMonitor.report)
        memory = memory_leak(self._memory)
        kept = epochs[-1].get("memory_leak") if epochs else None
        if memory is None and kept is not None:
            memory = MemoryLeak(leak=kept)
        config = self._config
        setting = AuditedSetting(
            spec=config.protect, labels=config.labels, releases=config.epochs, classes=self._classes
        )
        return {
            "test": epochs[-1]["test"] if epochs else None,
            "leak": leaks,
            "memory_leak": None if memory is None else memory.leak,
            "verdict": verdict_of(leaks, memory, setting=setting, sum_kl=self._claims.sum_kl()),
            "embedding_leak": epochs[-1].get("embedding_leak") if epochs else None,
            "objective_record": self._learned(),
            "sum_kl_per_release": self._claims.sum_kl(),
            "history": epochs,
        }
