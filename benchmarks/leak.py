"""Leak AUC against scikit-learn's ROC AUC, side by side in one process."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
from sklearn.metrics import roc_auc_score

from tacit.measure import leak_auc

_CASES = ((1_024, 200, "at least 5x"), (1_000_000, 7, "at least 1x"))


def rows() -> list[tuple[str, str, str]]:
    """Return (what, measured ratio, target) for a batch and for a whole run of scores."""
    return [_row(size, repeats, target) for size, repeats, target in _CASES]


def _row(size: int, repeats: int, target: str) -> tuple[str, str, str]:
    rng = np.random.default_rng(0)
    labels = rng.random(size) < 0.25
    scores = (rng.normal(size=size) + labels).astype(np.float32)
    ours, theirs = _medians(
        lambda: leak_auc(scores, labels), lambda: roc_auc_score(labels, scores), repeats
    )
    what = f"leak_auc against scikit-learn's roc_auc_score, {size:,} scores ({ours * 1e6:,.0f} us)"
    return what, f"{theirs / ours:.1f}x", target


def _medians(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Time both in turn, so that a busy machine slows them alike; the first round warms up."""
    times = [(_seconds(first), _seconds(second)) for _ in range(repeats + 1)][1:]
    return median(a for a, _ in times), median(b for _, b in times)


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start
