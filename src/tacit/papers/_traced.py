"""A task: train, and keep the leak AUC at the cut and at every layer, window by window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.measure import PooledLeak
from tacit.monitor import LeakMonitor
from tacit.training import train
from tacit.training.metrics import leak_records, mean

_WINDOWS = 40
_LOOKS = 10  # so many batches a window at least: below that, intervals cost more than training


def traced(config: TrainConfig) -> dict[str, Any]:
    """Return the course of a training: one record per window of steps, and the end.

    ``trace`` holds ``step``, ``loss``, ``cut`` and ``layers`` with the mean over the window's
    batches of each batch's leak AUC, as the papers' figures of a training's progress draw it.
    """
    trial = Experiment(config)
    window = max(-(-trial.steps // _WINDOWS), _LOOKS * config.monitor_every)
    losses: list[float] = []
    trace: list[dict[str, Any]] = []
    for part in trial.schedule.parts(first=0):
        rows = trial.reader.batches(part.batches)
        for done in train(rows, features=trial.ends, label=trial.label, first=len(losses)):
            losses.append(done.loss)
            if len(losses) % window == 0 or len(losses) == trial.steps:
                trace.append(_look(trial, losses[-window:], step=len(losses)))
    return {
        "steps": len(losses),
        "train": {"loss": mean(losses[-window:])},
        "test": trial.score(trial.test_rows),
        "leak": leak_records(trial.measures.report()),
        "layers": {n: leak_records(m.report()) for n, m in _layers(trial).items()},
        "trace": [found for found in trace if found["cut"]],
    }


def _layers(trial: Experiment) -> dict[str, LeakMonitor]:
    return {name: m for layer in trial.layers for name, m in layer.monitors.items()}


def _look(trial: Experiment, losses: list[float], *, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": mean(losses),
        "cut": _means(trial.measures.recent()),
        "layers": {name: _means(monitor.recent()) for name, monitor in _layers(trial).items()},
    }


def _means(found: Mapping[str, PooledLeak]) -> dict[str, float]:
    return {name: leak.mean for name, leak in found.items()}
