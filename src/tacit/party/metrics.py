"""What is measured of a training: the model, and what leaks about labels. One record for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from math import log2
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting import Forecast, Ledger
from tacit.accounting.ledger import SavedState
from tacit.attack import get as get_attack
from tacit.evaluate.remedy import AuditedSetting
from tacit.guard import Guard
from tacit.measure import PooledLeak
from tacit.monitor import LeakMonitor, MemoryMonitor
from tacit.objective import Learner, Objective
from tacit.party.journaled_label import Measured
from tacit.party.settings import TrainingSettings
from tacit.protect import get as get_protection
from tacit.state_dir import StateFolder
from tacit.training.embedding_leak import Embedded, signed
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.metrics import Claims, RowsWithoutNoise, leak_records, memory_leak, utility
from tacit.training.verdict import MemoryLeak, verdict_of
from tacit.types import Cut, Release

Indices = npt.NDArray[np.int64]
Watcher = Callable[[Cut, Release], None]

HISTORY = "history.json"
SHARED = ("auc", "accuracy")
"""The measures that a feature party may be told; both lie between 0 and 1."""
SHARED_STEPS = 100
"""They are rounded to one of so many equal steps: 101 values, or that there is none."""


def told_of(test: Mapping[str, float], *, shared: bool) -> Measured:
    """Return what the feature parties are told of an evaluation, and how much that is."""
    bits = len(SHARED) * log2(SHARED_STEPS + 2)
    note = ", ".join(_rounded(name, test) for name in SHARED) if shared else None
    return Measured(note=note, bits=bits)


def _rounded(name: str, test: Mapping[str, float]) -> str:
    if name not in test:
        return f"test {name} unknown"
    return f"test {name} {round(test[name] * SHARED_STEPS) / SHARED_STEPS:.2f}"


def _leaves_rows(settings: TrainingSettings) -> bool:
    """Whether the protection may release rows as they are, beside others that have noise."""
    if settings.protect is None or settings.silent:
        return False
    chain = get_protection(settings.protect)
    return not chain.identity and chain.raw_rows > 0


@final
class LabelMeasures:
    """Attacks the releases live and keeps the measures of every part, in a folder if there is one.

    What ``memory_leak`` has added up is part of a checkpoint; attacks that look at single releases
    begin anew after a restart, and others that add up over epochs are left out of a run that goes
    on from a checkpoint: what they would find of the rest is too little. ``embedded`` is shown what
    is predicted from, and ``learner`` is the objective at work, once there is one.
    """

    def __init__(
        self, settings: TrainingSettings, folder: StateFolder | None = None, *, classes: int
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._classes = classes
        attacks = settings.attacks
        watch = {"every": settings.monitor_every, "classes": classes}
        adding = [attack for attack in attacks if get_attack(attack).adds_up]
        single = [attack for attack in attacks if attack not in adding]
        self._monitors = [LeakMonitor(some, **watch) for some in (single, adding) if some]
        self._memory: MemoryMonitor | None = None
        self._claims = Claims()
        self._bare = RowsWithoutNoise() if _leaves_rows(settings) else None
        self.embedded = Embedded()
        self.embedding_leak: float | None = None
        self.learner: Learner | None = None
        self._numbers: tuple[Indices, Indices] | None = None
        held = None if folder is None else folder.read(HISTORY)
        self.history: dict[str, dict[str, Any]] = held or {}

    def watcher(
        self, truth: Tensor, state: SavedState | None = None, *, more: Iterable[Watcher] = ()
    ) -> Watcher:
        """Return what looks at every release beside the true labels, also where it has others."""
        every = self._settings.monitor_every
        self._memory = MemoryMonitor(every=every) if self._settings.attacks else None
        if self._memory is not None and state is not None:
            self._memory.load_state(*state)
            self._monitors = [m for m in self._monitors if not any(a.adds_up for a in m.attacks)]
        asked = (*self._monitors, self._memory, self._claims, self._bare, *more)
        watchers = [watcher for watcher in asked if watcher is not None]

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

    def score(self, probs: Tensor, truth: Indices) -> dict[str, float]:
        """Return the model's measures, and keep what the embeddings themselves tell."""
        test = utility(probs.numpy(), truth)
        self.embedding_leak = self.embedded.leak(truth)
        flipped = self._learned().get("flipped")
        return test if flipped is None else signed(test, flipped=flipped)

    def keep(self, number: int, test: dict[str, float] | None, **more: float) -> dict[str, Any]:
        """Keep what is known at the end of an epoch or a day, and return it."""
        found = {
            **more,
            "test": test,
            "leak": leak_records(self.recent()),
            "memory_leak": None if self._memory is None else self._memory.leak(),
            "embedding_leak": self.embedding_leak,
        }
        self.history[str(number)] = found
        if self._folder is not None:
            self._folder.write(HISTORY, self.history)
        return found

    def recent(self) -> dict[str, PooledLeak]:
        """Return what the monitors have found since they were asked last."""
        return self._leaks(LeakMonitor.recent)

    def report(self) -> dict[str, PooledLeak]:
        """Return what the monitors have found of all releases."""
        return self._leaks(LeakMonitor.report)

    def _leaks(
        self, found: Callable[[LeakMonitor], dict[str, PooledLeak]]
    ) -> dict[str, PooledLeak]:
        """Return what the monitors have found, in the order in which the attacks were named."""
        each = {name: leak for monitor in self._monitors for name, leak in found(monitor).items()}
        return {name: each[name] for name in self._settings.attacks if name in each}

    def _learned(self) -> dict[str, Any]:
        return {} if self.learner is None else self.learner.record()

    def record(self, *, releases: float | None = None) -> dict[str, Any]:
        """Return everything that was measured, as plain values.

        ``releases`` is how often each example was released, once an epoch unless said otherwise. A
        process that is started after the end has seen no release: what the memory attack came to
        is then taken from the measures of the last epoch.
        """
        parts = [self.history[key] for key in sorted(self.history, key=int)]
        leaks, memory = leak_records(self.report()), memory_leak(self._memory)
        kept = parts[-1].get("memory_leak") if parts else None
        if memory is None and kept is not None:
            memory = MemoryLeak(leak=kept)
        settings = self._settings
        setting = AuditedSetting(
            spec=settings.protect,
            labels=settings.labels,
            releases=settings.epochs if releases is None else releases,
            classes=self._classes,
        )
        return {
            "test": parts[-1]["test"] if parts else None,
            "leak": leaks,
            "memory_leak": None if memory is None else memory.leak,
            "verdict": verdict_of(leaks, memory, setting=setting, sum_kl=self._claims.sum_kl()),
            "embedding_leak": parts[-1].get("embedding_leak") if parts else None,
            "objective_record": self._learned(),
            "sum_kl_per_release": self._claims.sum_kl(),
            "rows_without_noise": None if self._bare is None else self._bare.record(),
            "history": parts,
        }


def results_of(
    settings: TrainingSettings,
    measures: LabelMeasures,
    *,
    dataset: str,
    objective: Objective,
    steps: int,
    planned: Forecast | None,
    guard: Guard | None,
    ledger: Ledger | None,
    watch: EmbeddingWatch,
    releases: float | None = None,
) -> dict[str, Any]:
    """Return the results of a training wherever it ran: what was asked for, and what came of it.

    ``guard`` is None where this process has not made any release.
    """
    certificate = None if guard is None else guard.last_certificate
    labels = None if guard is None or guard.label_guard is None else guard.label_certificate()
    return {
        "dataset": dataset,
        "model": settings.model,
        "protection": settings.protect,
        "labels": settings.labels,
        "budget": settings.budget,
        "objective": str(objective),
        "epochs": settings.epochs,
        "steps": steps,
        **measures.record(releases=releases),
        "certificate": None if certificate is None else vars(certificate),
        "label_certificate": None if labels is None else asdict(labels),
        "planned": None if planned is None else planned.record(),
        "ledger": None if ledger is None else asdict(ledger.summary()),
        "warnings": watch.warnings,
    }
