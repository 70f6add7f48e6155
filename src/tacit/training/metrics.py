"""Measures of a model and of what leaks, as the plain values that results hold."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit import measure
from tacit.monitor import MemoryMonitor
from tacit.training.verdict import MemoryLeak
from tacit.types import Cut, Release


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


@final
class RowsWithoutNoise:
    """Counts released rows that are the gradients themselves, up to the rounding of a release."""

    def __init__(self) -> None:
        self._bare, self._rows, self._releases, self._most = 0, 0, 0, 0

    def __call__(self, cut: Cut, release: Release) -> None:
        """Take one release into account."""
        given, sent = (grads.detach().flatten(1) for grads in (cut.grads, release.grads))
        if not len(sent):
            return
        finest = max(2.0**-15, torch.finfo(sent.dtype).eps)  # rounding alone changes less
        step = float(sent.abs().max()) * finest
        bare = int(((sent - given).abs() <= step).all(dim=1).sum())
        self._bare += bare
        self._rows += len(sent)
        self._releases += 1
        self._most = max(self._most, bare)

    def record(self) -> dict[str, float] | None:
        """Return how many rows went out as they are, of how many, and the most of one release."""
        if not self._rows:
            return None
        share = self._bare / self._rows
        return {"count": self._bare, "rows": self._rows, "share": share, "most": self._most}


def memory_leak(memory: MemoryMonitor | None) -> MemoryLeak | None:
    """Return the leak AUC of the memory attack, with its interval."""
    leak = None if memory is None else memory.leak()
    if memory is None or leak is None:
        return None
    low, high = memory.interval() or (leak, leak)
    return MemoryLeak(leak=leak, low=low, high=high)


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
            "null_mean": leak.null_mean,
            "null_q95": leak.null_q95,
            "signed": leak.signed,
            "signed_q95": leak.signed_q95,
            "null_signed_q95": leak.null_signed_q95,
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
    """Return the mean, NaN for an empty list."""
    return float(np.mean(values)) if values else float("nan")
