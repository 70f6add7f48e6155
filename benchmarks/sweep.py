"""Two workers against one on a CPU-bound sweep, and what the driver adds to every trial.

``python benchmarks/sweep.py [TRIALS] [ROUNDS]``, on a machine with two idle cores. The two sides
take turns, so that a busy machine slows both; its load is printed beside the numbers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from tacit._config import PLAIN
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep import run_sweep
from tacit.experiment.sweep_worker import TRAIN

# About three seconds of one core each.
HEAVY = {"dataset": "ads", "rows": 20_000, "model": "wdl", "epochs": 12, "attacks": ("norm",)}
MANY = 300


def nothing(config: TrainConfig) -> dict[str, Any]:
    """Be a trial that takes no time."""
    return {"seed": config.seed}


def seconds(trials: Sequence[TrainConfig], *, workers: int, task: str = TRAIN) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        found = run_sweep(trials, store=Path(folder, "store"), workers=workers, task=task)
        assert all(record.done for record in found), [record.error for record in found]
        return perf_counter() - start


def overhead() -> tuple[float, float]:
    """Return what a trial costs beyond itself: seconds of everything, seconds of the driver."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    light = [TrainConfig(seed=seed) for seed in range(MANY)]
    start = seconds(light[:1], workers=1, task="sweep:nothing")
    used = process_time()
    whole = seconds(light, workers=1, task="sweep:nothing")
    return (whole - start) / (MANY - 1), (process_time() - used) / MANY


def main(trials: int = 12, rounds: int = 3) -> None:
    heavy = [TrainConfig.of({**PLAIN, **HEAVY, "seed": seed}) for seed in range(trials)]
    times = [(seconds(heavy, workers=1), seconds(heavy, workers=2)) for _ in range(rounds)]
    ratios = [one / two for one, two in times]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}; {trials} trials, {rounds} rounds")
    print(f"seconds with one worker: {', '.join(f'{one:.1f}' for one, _ in times)}")
    print(f"seconds with two workers: {', '.join(f'{two:.1f}' for _, two in times)}")
    print(f"two workers / one: {median(ratios):.2f} (target >= 1.7)")
    whole, driver = overhead()
    print(
        f"beyond a trial itself: {whole * 1e3:.1f} ms, of the driver's processor {driver * 1e3:.1f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
