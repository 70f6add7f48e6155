"""Tasks: train with a tape, then attack the tape as an auditor does, epoch by epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.experiment.config import TrainConfig

_BRIEF, _LONG = 60.0, 24 * 3600.0


def briefly(config: TrainConfig) -> dict[str, Any]:
    """Give each attack a minute: one that needs longer is judged by what it had found."""
    return _audited(config, seconds=_BRIEF)


def thoroughly(config: TrainConfig) -> dict[str, Any]:
    """Give each attack all the time that its settings ask for."""
    return _audited(config, seconds=_LONG)


def _audited(config: TrainConfig, *, seconds: float) -> dict[str, Any]:
    """Return what a training came to, and what each of the configuration's attacks found.

    The attacks look at the tape of the first feature party, after training and not during it.
    """
    from tacit.audit import run_audit  # noqa: PLC0415 - loads every attack
    from tacit.experiment.run import run  # noqa: PLC0415 - loads torch

    with tempfile.TemporaryDirectory() as folder:
        trial, results = run(config.model_copy(update={"attacks": ()}), record=Path(folder))
        labels = torch.from_numpy(np.array(trial.table.labels))
        tape = Path(folder) / "feature_party_0.tape"
        found = run_audit(tape, labels, config.attacks, seconds=seconds).record
    share = found["truth"]["positives"]
    return {
        "test": results["test"],
        "train": results["train"],
        "history": [{"part": p["part"], "test": p["test"]} for p in results["history"]],
        "attacks": {row["attack"]: _attacked(row, found, share) for row in found["table"]},
        "baseline": found["baseline"],
        "skipped": found["skipped"],
    }


def _attacked(row: Mapping[str, Any], found: Mapping[str, Any], share: float) -> dict[str, Any]:
    name = row["attack"]
    accuracy = row["clustering_accuracy"]
    curve = found["curves"].get(name)
    if accuracy is None and curve is not None:
        accuracy = best_accuracy(curve, share)
    return {
        "leak": row["leak_auc"],
        "accuracy": accuracy,
        "stopped": "stopped" in str(row["verdict"]),
        "epochs": [
            {"epoch": e["epoch"], "leak": e["leak_auc"], "accuracy": e.get("clustering_accuracy")}
            for e in found["epochs"].get(name, [])
        ],
    }


def best_accuracy(curve: Mapping[str, Any], share: float) -> float:
    """Return the accuracy at the best threshold of a ROC curve, for a share of positives.

    >>> round(best_accuracy({"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1]}, 0.5), 3)
    0.85
    """
    fpr, tpr = (np.asarray(curve[name]) for name in ("fpr", "tpr"))
    return float(np.max(share * tpr + (1 - share) * (1 - fpr)))
