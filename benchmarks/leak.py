"""Leak AUC against scikit-learn's ROC AUC, side by side in one process."""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.metrics import roc_auc_score

from tacit.measure import leak_auc
from timing import paired_medians

_CASES = ((1_024, 200, "at least 5x"), (1_000_000, 7, "at least 1x"))


def rows() -> list[tuple[str, str, str]]:
    """Return (what, measured ratio, target) for a batch and for a whole run of scores."""
    return [_row(size, repeats, target) for size, repeats, target in _CASES]


def _row(size: int, repeats: int, target: str) -> tuple[str, str, str]:
    rng = np.random.default_rng(0)
    labels = rng.random(size) < 0.25
    scores = (rng.normal(size=size) + labels).astype(np.float32)
    ours, theirs = paired_medians(
        partial(leak_auc, scores, labels), partial(roc_auc_score, labels, scores), repeats=repeats
    )
    what = f"leak_auc against scikit-learn's roc_auc_score, {size:,} scores ({ours * 1e6:,.0f} us)"
    return what, f"{theirs / ours:.1f}x", target
