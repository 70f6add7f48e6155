"""The settings of a training that names none: one place for ``tacit train`` and ``tacit party``.

They were chosen once, on Credit, Spambase, IMDB, Avazu, Criteo and ``ads`` without protection
(seeds 10 and 11, Credit also 12 and 13), so that the test AUC is near the better of logistic
regression and gradient boosting; ``benchmarks/defaults.py`` measures that on other splits, and
docs/defaults.md has the table.
Both arms of a comparison take the same. The papers' studies have settings of their own.

No rows are held out: which epoch is kept would depend on labels, also where gradients are
protected, and no certificate of gradients counts that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BATCH_SIZE", "BINS", "EPOCHS", "LR", "PLAIN", "RARE", "WEIGHT_DECAY"]

EPOCHS = 5
BATCH_SIZE = 256
"""Small: a table of 3,000 rows still has some steps in an epoch."""

LR = 2e-3
WEIGHT_DECAY = 3e-4
"""At 1e-3 Criteo loses 0.013 (seed 10), at 1e-4 it and ``ads`` lose 0.003 (seed 11)."""

BINS = 32
"""Quantiles that a column of numbers is encoded by; nothing where a table has no numbers."""

RARE = 10
"""Values of a category with fewer training rows are one: else Avazu is learned by heart."""

PLAIN: Mapping[str, Any] = {
    "model": "wdl", "cut": None, "epochs": 5, "batch_size": 1024, "lr": 1e-4, "weight_decay": 0.0,
    "bins": None, "rare": None, "augment": False, "hold_out": None, "depth": 1,
}  # fmt: skip
"""Other settings, all by name: the papers' studies and the tables in docs/ that were made before
the defaults start from these, so that no default has a part in them."""
