"""The results of a run as plain values: what ``results.json`` and ``--json`` hold."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from tacit import measure
from tacit.evaluate.remedy import AuditedSetting
from tacit.monitor import LeakMonitor, MemoryMonitor
from tacit.training.verdict import MemoryLeak, verdict_of
from tacit.types import Cut, Release

if TYPE_CHECKING:
    from tacit.experiment.run import Experiment


@final
class Claims:
    """Averages what the certificates of all releases claim."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def __call__(self, _cut: Cut, release: Release) -> None:
        """Take one release into account; one without a claim voids the average."""
        claimed = release.certificate.sum_kl
        self._total += math.inf if claimed is None else claimed
        self._count += 1

    def sum_kl(self) -> float | None:
        """Return the mean divergence of a release, or None where nothing is claimed."""
        mean = self._total / self._count if self._count else math.inf
        return mean if math.isfinite(mean) else None


def results_of(
    trial: Experiment,
    history: list[dict[str, Any]],
    *,
    steps: int,
    seconds: float,
    stopped: str | None,
) -> dict[str, Any]:
    """Return everything that was measured."""
    config, guard = trial.config, trial.label.guard
    tests = [part["test"] for part in history if part["test"] is not None]
    certificate = guard.last_certificate
    chosen = None if trial.selection is None else trial.selection.choice
    last = -1 if chosen is None else chosen.epoch - 1
    learned = trial.label.learner.record()
    leaks = _leaks(trial.monitor)
    return {
        "dataset": trial.table.name,
        "model": config.model,
        "protection": str(guard.protection),
        "labels": config.labels,
        "budget": config.budget,
        "objective": str(trial.objective),
        "epochs": config.epochs,
        "parties": len(trial.columns),
        "depth": config.depth,
        "seed": config.seed,
        "steps": steps,
        "train": {"loss": history[-1]["loss"] if history else None},
        "test": tests[last] if tests else trial.score(trial.test_rows),
        "selected": None if chosen is None else asdict(chosen),
        "leak": leaks,
        "layers": {name: _leaks(m) for layer in trial.layers for name, m in layer.monitors.items()},
        "memory_leak": None if trial.memory is None else trial.memory.leak(),
        "embedding_leak": trial.embedding_leak
        if chosen is None
        else history[last]["embedding_leak"],
        "objective_record": learned,
        "components": _components(trial, learned),
        "certificate": None if certificate is None else vars(certificate),
        "label_certificate": asdict(guard.label_certificate()) if guard.label_guard else None,
        "planned": None if trial.planned is None else trial.planned.record(),
        "ledger": None if guard.ledger is None else asdict(guard.ledger.summary()),
        "sum_kl_per_release": trial.claims.sum_kl(),
        "releases": dict(guard.counts),
        "warnings": trial.label.watch.warnings,
        "history": history,
        "verdict": verdict_of(
            leaks,
            memory_leak(trial.memory),
            setting=AuditedSetting(
                spec=str(guard.protection),
                labels=config.labels,
                releases=_releases(trial, steps),
                classes=trial.table.classes,
            ),
            sum_kl=trial.claims.sum_kl(),
        ),
        "interrupted": stopped == "interrupted",
        "stopped": stopped,
        "seconds": seconds,
        "steps_per_second": steps / seconds if seconds > 0 else 0.0,
    }


def _components(trial: Experiment, learned: dict[str, Any]) -> dict[str, Any] | None:
    if trial.components is None:
        return None
    return trial.components.record(flipped=bool(learned.get("flipped")))


def memory_leak(memory: MemoryMonitor | None) -> MemoryLeak | None:
    """Return what the memory attack has added up, with its interval."""
    leak = None if memory is None else memory.leak()
    if memory is None or leak is None:
        return None
    low, high = memory.interval() or (leak, leak)
    return MemoryLeak(leak=leak, low=low, high=high)


def _releases(trial: Experiment, steps: int) -> float:
    """Return how often each example was released, on average; a stream shows each once."""
    if trial.config.stream:
        return 1.0
    return steps / (len(trial.train_rows) // trial.config.batch_size)


def _leaks(monitor: LeakMonitor | None) -> dict[str, dict[str, float]]:
    return {} if monitor is None else leak_records(monitor.report())


def leak_records(report: dict[str, measure.PooledLeak]) -> dict[str, dict[str, float]]:
    """Return a monitor's report as plain numbers."""
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


def utility(probs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> dict[str, float]:
    """Return the measures of a model's quality; rows of one class have no AUC and no entropy."""
    found = {
        "loss": measure.log_loss(probs, labels),
        "accuracy": measure.accuracy(probs, labels),
        "ace": measure.ace(probs, labels),
    }
    seen = np.unique(labels)  # few rows of many classes need not have them all
    if len(seen) < 2:
        return found
    found["nce"] = measure.nce(probs, labels)
    if probs.ndim == 1:
        return {"auc": measure.auc(probs, labels), **found}
    each = [measure.auc(probs[:, k], (labels == k).astype(int)) for k in seen]
    return {"auc": float(np.mean(each)), **found}


def mean(values: list[float]) -> float:
    """Return the mean, not a number for nothing."""
    return float(np.mean(values)) if values else float("nan")
