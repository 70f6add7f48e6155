"""One training run in one process, with the same parties that run over a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import data, measure, nets, objective
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.monitor import LeakMonitor
from tacit.runtime import FeatureParty, LabelParty, adam, predict, train
from tacit.study.config import TrainConfig
from tacit.study.layers import LayerMonitor
from tacit.types import Cut, Release

__all__ = ["Observer", "Progress", "Trial", "run"]

Indices = npt.NDArray[np.int64]
Source = Callable[[Tensor], tuple[Tensor, Tensor]]


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an observer is told: after every step, and with ``test`` at the end of a part.

    A part is an epoch, or a day of a stream.
    """

    step: int
    steps: int
    part: int
    loss: float
    test: dict[str, float] | None = None
    leak: dict[str, dict[str, float]] | None = None


Observer = Callable[[Progress], None]


@final
class Trial:
    """A run that is set up: its data, its model split between parties, and its monitors."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.table = data.load(
            config.dataset, data_dir=config.data_dir, rows=config.rows, seed=config.seed
        )
        fitting = "bce" if self._binary else "ce"
        self.objective = objective.get(config.objective or fitting)
        if str(self.objective) != fitting:
            raise UsageError(
                f"--objective {self.objective}: {self.table.name} has {self.table.classes} classes "
                f"and needs {fitting}"
            )
        self.train_rows, self.test_rows = data.split(self.table, seed=config.seed)
        self.features, self.label, self.monitor, self.layers = self._parties()

    @property
    def _binary(self) -> bool:
        return self.table.classes == 2

    def _parties(
        self,
    ) -> tuple[list[FeatureParty], LabelParty, LeakMonitor | None, list[LayerMonitor]]:
        config, table = self.config, self.table
        columns = data.assign(table, config.parties)
        (everything,) = data.assign(table, 1)
        architecture = nets.get(config.model)
        own = everything if architecture.uses_own else None
        model = architecture.build(
            parties=[_inputs(table, part) for part in columns],
            own=None if own is None else _inputs(table, own),
            cut=config.cut,
            combine=config.combine,
            classes=table.classes,
            seed=config.seed,
        )
        source = _sources(table)
        features = [
            FeatureParty(bottom, source(part), optimizer=adam(bottom, config.lr))
            for bottom, part in zip(model.bottoms, columns, strict=True)
        ]
        watched = self._binary and config.attacks
        monitor = LeakMonitor(config.attacks, every=config.monitor_every) if watched else None
        layers = self._layer_monitors(features)
        label = LabelParty(
            model.top,
            torch.from_numpy(np.array(table.labels)),  # a copy: the file is read-only
            guard=Guard(config.protect, seed=config.seed, watch=_all(monitor, *layers)),
            objective=self.objective,
            optimizer=adam(model.top, config.lr),
            combined_by=config.combine,
            source=None if own is None else source(own),
            early=False,
        )
        return features, label, monitor, layers

    def _layer_monitors(self, features: list[FeatureParty]) -> list[LayerMonitor]:
        if not self.config.layers or not self._binary:
            return []
        if len(features) > 1:
            raise UsageError("--layers measures one feature party: use it with --parties 1")
        return [LayerMonitor(features[0], every=self.config.monitor_every)]

    def parts(self) -> Iterator[tuple[list[Indices], Indices]]:
        """Return the batches of every epoch (or day) with the rows to test on."""
        return self._days() if self.config.stream else self._epochs()

    @property
    def steps(self) -> int:
        """How many steps all parts have together."""
        size = self.config.batch_size
        if self.config.stream:
            _, counts = np.unique(np.asarray(self.table.day), return_counts=True)
            return int((counts // size).sum())
        return len(self.train_rows) // size * self.config.epochs

    def _epochs(self) -> Iterator[tuple[list[Indices], Indices]]:
        config = self.config
        for epoch in range(config.epochs):
            batches = data.order(
                self.train_rows, batch_size=config.batch_size, seed=config.seed, epoch=epoch
            )
            yield list(batches), self.test_rows

    def _days(self) -> Iterator[tuple[list[Indices], Indices]]:
        batches = data.stream(self.table, batch_size=self.config.batch_size, drop_last=True)
        for day, found in groupby(batches, key=lambda pair: pair[0]):
            rows = np.flatnonzero(np.asarray(self.table.day) == day).astype(np.int64)
            yield [batch for _, batch in found], rows

    def score(self, rows: Indices) -> dict[str, float]:
        """Return the measures of utility on some rows."""
        place = torch.from_numpy(rows)
        probs = predict(place, features=self.features, label=self.label).numpy()
        return _utility(probs, np.asarray(self.table.labels)[rows])


@final
class _Run:
    """The state of a run while it goes on: losses per step and measures per part."""

    def __init__(self, trial: Trial, observer: Observer) -> None:
        self.trial = trial
        self.losses: list[float] = []
        self.history: list[dict[str, Any]] = []
        self._tell = observer

    def go(self) -> None:
        """Train every part; a stream is tested on a day before it trains on it."""
        stream = self.trial.config.stream
        for number, (batches, test) in enumerate(self.trial.parts()):
            before = self.trial.score(test) if stream and number else None
            self._train(number, batches)
            found = before if stream else self.trial.score(test)
            loss = _mean(self.losses[-len(batches) :])
            monitor = self.trial.monitor
            leak = {} if monitor is None else _plain(monitor.recent())
            self.history.append({"part": number, "loss": loss, "test": found, "leak": leak})
            self._report(number, loss, test=found, leak=leak)

    def _train(self, number: int, batches: list[Indices]) -> None:
        places = (torch.from_numpy(rows) for rows in batches)
        trial = self.trial
        first = len(self.losses)
        for done in train(places, features=trial.features, label=trial.label, first=first):
            self.losses.append(done.loss)
            self._report(number, done.loss)

    def _report(self, part: int, loss: float, **more: Any) -> None:  # noqa: ANN401
        step = len(self.losses)
        self._tell(Progress(step=step, steps=self.trial.steps, part=part, loss=loss, **more))


def run(config: TrainConfig, *, observer: Observer | None = None) -> tuple[Trial, dict[str, Any]]:
    """Train, attack and measure; return the trial and its results as plain values.

    An interrupt ends training early and keeps what was measured so far.
    """
    running = _Run(Trial(config), observer or (lambda _: None))
    interrupted = False
    start = time.perf_counter()
    try:
        running.go()
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.perf_counter() - start
    results = _results(running.trial, running.history, len(running.losses), seconds, interrupted)
    return running.trial, results


def _results(
    trial: Trial, history: list[dict[str, Any]], steps: int, seconds: float, interrupted: bool
) -> dict[str, Any]:
    config, guard = trial.config, trial.label.guard
    tests = [part["test"] for part in history if part["test"] is not None]
    certificate = guard.last_certificate
    return {
        "dataset": trial.table.name,
        "model": config.model,
        "protection": str(guard.protection),
        "objective": str(trial.objective),
        "epochs": config.epochs,
        "seed": config.seed,
        "steps": steps,
        "train": {"loss": history[-1]["loss"] if history else None},
        "test": tests[-1] if tests else trial.score(trial.test_rows),
        "leak": _leaks(trial.monitor),
        "layers": {name: _leaks(m) for layer in trial.layers for name, m in layer.monitors.items()},
        "memory_leak": None,
        "certificate": None if certificate is None else vars(certificate),
        "releases": dict(guard.counts),
        "history": history,
        "interrupted": interrupted,
        "seconds": seconds,
        "steps_per_second": steps / seconds if seconds > 0 else 0.0,
    }


def _leaks(monitor: LeakMonitor | None) -> dict[str, dict[str, float]]:
    return {} if monitor is None else _plain(monitor.report())


def _plain(report: dict[str, measure.PooledLeak]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "pooled": leak.leak_auc,
            "low": leak.low,
            "high": leak.high,
            "null_high": leak.null_high,
            "mean": leak.mean,
            "q95": leak.q95,
        }
        for name, leak in report.items()
    }


def _utility(probs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> dict[str, float]:
    found = {
        "loss": measure.log_loss(probs, labels),
        "accuracy": measure.accuracy(probs, labels),
        "nce": measure.nce(probs, labels),
        "ace": measure.ace(probs, labels),
    }
    if probs.ndim == 1:
        return {"auc": measure.auc(probs, labels), **found}
    each = [measure.auc(probs[:, k], (labels == k).astype(int)) for k in range(probs.shape[1])]
    return {"auc": float(np.mean(each)), **found}


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _inputs(table: data.Table, columns: data.Columns) -> nets.Inputs:
    return nets.Inputs(
        numeric=len(columns.numeric),
        cardinalities=tuple(table.cardinalities[i] for i in columns.categorical),
    )


def _sources(table: data.Table) -> Callable[[data.Columns], Source]:
    """Return the way to a party's columns; parties that hold the same ones read them once."""
    last: dict[data.Columns, tuple[Tensor, data.Features]] = {}

    def source(columns: data.Columns) -> Source:
        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            if columns not in last or last[columns][0] is not rows:
                last[columns] = (rows, data.take(table, rows.numpy(), columns))
            found = last[columns][1]
            return found.numeric, found.categorical

        return take

    return source


def _all(
    *watchers: Callable[[Cut, Release], None] | None,
) -> Callable[[Cut, Release], None]:
    def watch(cut: Cut, release: Release) -> None:
        for watcher in watchers:
            if watcher is not None:
                watcher(cut, release)

    return watch
