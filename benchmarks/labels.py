"""Train with and without randomised labels and print the table of docs/protecting.md.

``TACIT_DATA=... python benchmarks/labels.py``. Every run is kept as JSON in ``out/labels``; a
second call only fills gaps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path("out/labels")
SEEDS = (0, 1, 2)
FRESH = (3, 4, 5)  # splits, flips and first weights that had no part in choosing the settings
RR = "rr(epsilon=0.5754)"
LABELS = {"none": None, "rr": RR, "rr forward": RR.replace(")", ", correction=forward)")}
MODEL = {"model": "mlp(hidden=128, layers=2)", "bins": 8}
TABLES: dict[str, dict[str, Any]] = {
    "credit": {"dataset": "credit", "epochs": 20, "lr": 1e-3, "weight_decay": 0.03},
    "criteo": {"dataset": "criteo", "epochs": 5, "lr": 5e-4, "weight_decay": 0.003},
}
KEPT: dict[str, dict[str, Any]] = {
    "last epoch": {},
    "last epoch, fresh seeds": {},
    "best epoch": {"hold_out": 0.1},
}
# What each setting is worth, on the table that trains in seconds.
WITHOUT: dict[str, dict[str, Any]] = {
    "best epoch, no decay": {"hold_out": 0.1, "weight_decay": 0.0},
    "best epoch, no bins": {"hold_out": 0.1, "bins": None},
    "last epoch, no decay": {"weight_decay": 0.0},
    "last epoch, no bins": {"bins": None},
}
MARKS = (1, 5, 20)


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and a configuration for every run."""
    for table, settings in TABLES.items():
        for way, changed in ways(table).items():
            for arm, labels in arms(way).items():
                for seed in seeds(way):
                    chosen = {**MODEL, **settings, **changed, "labels": labels, "seed": seed}
                    yield f"{table} {way} {arm} {seed}", chosen


def arms(way: str) -> dict[str, str | None]:
    """Return the label mechanisms to compare; the bounded correction with all settings only."""
    return LABELS if way in ("last epoch", "best epoch") else {"none": None, "rr": RR}


def seeds(way: str) -> tuple[int, ...]:
    """Return the seeds of a row."""
    return FRESH if "fresh" in way else SEEDS


def ways(table: str) -> dict[str, dict[str, Any]]:
    """Return what is changed from the settings of a table."""
    return {**KEPT, **WITHOUT} if table == "credit" else KEPT


def work(name: str, settings: dict[str, Any]) -> None:
    """Train and keep what was found."""
    from tacit._config import PLAIN  # noqa: PLC0415 - as above
    from tacit.experiment.config import TrainConfig  # noqa: PLC0415 - loads torch
    from tacit.experiment.run import run  # noqa: PLC0415 - loads torch

    place = OUT / f"{name}.json"
    if place.exists():
        return
    _, found = run(TrainConfig.of({**PLAIN, **settings, "attacks": ("norm",), "threads": 1}))
    place.parent.mkdir(parents=True, exist_ok=True)
    kept = {key: found[key] for key in ("test", "selected", "history")}
    place.write_text(json.dumps({**kept, "settings": settings}))


def rows() -> Iterator[list[str]]:
    """Yield the cells of the table."""
    for table in TABLES:
        for way in ways(table):
            base = _auc(table, way, "none")
            for arm in arms(way):
                found = _auc(table, way, arm)
                span = f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"
                gap = "" if arm == "none" else f"{np.mean(base) - np.mean(found):.3f}"
                yield [table, way, arm, span, gap, _memory(table, way, arm)]


def _read(table: str, way: str, arm: str) -> list[dict[str, Any]]:
    names = [f"{table} {way} {arm} {seed}.json" for seed in seeds(way)]
    return [json.loads((OUT / name).read_text()) for name in names]


def _auc(table: str, way: str, arm: str) -> list[float]:
    return [found["test"]["auc"] for found in _read(table, way, arm)]


def _memory(table: str, way: str, arm: str) -> str:
    found = _read(table, way, arm)
    grown = [[part["memory_leak"] for part in each["history"]] for each in found]
    marks = [mark for mark in MARKS if mark <= len(grown[0])]
    return " / ".join(f"{np.mean([run[mark - 1] for run in grown]):.2f}" for mark in marks)


def main() -> None:
    """Run what is missing and print the table."""
    todo = list(jobs())
    for done, (name, settings) in enumerate(todo, start=1):
        work(name, settings)
        print(f"{done}/{len(todo)} {name}", file=sys.stderr, flush=True)
    header = ["table", "kept", "labels", "test AUC", "below none", "memory"]
    for cells in (header, ["---"] * len(header), *rows()):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
