"""The session against a bare PyTorch loop of the same model, without tacit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from tacit._config import PLAIN
from tacit.data import find
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.training import train
from timing import paired_medians

ROWS, STEPS = 40_000, 8
# The papers' table where it is at hand; the embedded one has few categories, so a light step.
DATASET = "criteo" if find("criteo") else "ads"


def rows() -> list[tuple[str, str, str]]:
    """Return steps per second as a share of the bare loop's: WDL, ads, batch 1024."""
    table = []
    for protect, target in (("none", ">= 0.93"), ("marvell(s=4)", ">= 0.85")):
        ours, theirs = paired_medians(_session(protect), _bare(), repeats=60)
        watched = "monitor at its default cadence" if protect != "none" else "no monitor"
        name = f"session / bare loop, wdl, {DATASET}, batch 1024, {protect}, {watched}"
        table.append((name, f"{theirs / ours:.2f}", target))
    return table


def _session(protect: str) -> Callable[[], object]:
    """Return a function that trains a few steps more every time."""
    settings = {"dataset": DATASET, "rows": ROWS, "protect": protect}
    attacks = {"attacks": ()} if protect == "none" else {}
    trial = Experiment(TrainConfig.of({**PLAIN, **settings, **attacks}))
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    steps = train(batches, features=trial.features, label=trial.label)
    return lambda: [next(steps) for _ in range(STEPS)]


def _bare() -> Callable[[], object]:
    """Return the same for a hand-written loop over tensors that lie in memory already."""
    trial = Experiment(TrainConfig.of({**PLAIN, "dataset": DATASET, "rows": ROWS}))
    table = trial.table
    numeric = torch.from_numpy(np.array(table.numeric, dtype=np.float32))
    codes = torch.from_numpy(np.array(table.categorical, dtype=np.int64))
    labels = torch.from_numpy(np.array(table.labels)).float()
    bottom, top = trial.features[0].bottom, trial.label.top
    weights = [*bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-4, fused=True)
    batches = (torch.from_numpy(rows) for rows in _endless(trial))

    def step() -> None:
        rows = next(batches)
        x, c = numeric[rows], codes[rows]
        logits = top(bottom(x, c), x, c)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def steps() -> None:
        for _ in range(STEPS):
            step()

    return steps


def _endless(trial: Experiment) -> Iterator[np.ndarray]:
    return (
        rows.numpy()
        for part in itertools.cycle(trial.schedule.parts(first=0))
        for rows in part.batches
    )


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
