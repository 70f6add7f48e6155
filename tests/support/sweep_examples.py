"""Records of a sweep as a store holds them, and trials small enough to run many."""

import random

from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import key_of, settings_of
from tacit.experiment.sweep_worker import TRAIN

SMALL = {
    "dataset": "breast_cancer",
    "model": "mlp",
    "epochs": 1,
    "batch_size": 64,
    "lr": 1e-3,
    "monitor_every": 1,
}
PROTECTIONS = ("none", "max_norm", "iso(t=1)", "iso(t=4)", "marvell(s=1)", "marvell(s=4)")


def sweep_records(*, protections=PROTECTIONS, seeds=(0, 1, 2), failed=1):
    """Return made-up records: a leak that falls and a loss that grows with the strength."""
    rng = random.Random(7)  # noqa: S311
    records = [
        _record(TrainConfig.of({**SMALL, "protect": spec, "seed": seed}), place, rng)
        for place, spec in enumerate(protections)
        for seed in seeds
    ]
    broken = [
        {
            **_record(TrainConfig.of({**SMALL, "seed": 90 + n}), 0, rng),
            "state": "failed",
            "results": None,
            "error": "<i>batch</i> is too large",
        }
        for n in range(failed)
    ]
    return records + broken


def _record(config, place, rng):
    def leak(height):
        found = {kind: height + rng.random() * 0.02 for kind in ("pooled", "mean", "q95")}
        return {**found, "low": height, "high": height + 0.03, "null_high": 0.53}

    results = {
        "dataset": config.dataset,
        "objective": "bce",
        "train": {"loss": 0.3 + 0.02 * place},
        "test": {"auc": 0.98 - 0.005 * place + rng.random() * 0.004, "loss": 0.2 + 0.02 * place},
        "leak": {"norm": leak(0.9 - 0.07 * place), "cosine": leak(0.96 - 0.06 * place)},
        "layers": {"bottom.0": {"norm": leak(0.8 - 0.05 * place)}},
        "memory_leak": None,
        "history": [{"part": 0}],
    }
    return {
        "key": key_of(config, TRAIN),
        "task": TRAIN,
        "config": settings_of(config),
        "state": "done",
        "results": results,
        "error": None,
        "run": {"seconds": 1.5, "node": "here", "pid": 1},
    }
