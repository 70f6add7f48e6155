"""What recording costs a step, and how long a large tape takes to audit."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from tacit._config import PLAIN
from tacit.audit import run_audit
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.tape import TapeWriter
from tacit.training import RecordedFeatureParty, train

ROWS, WIDTH, BATCH = 1_000_000, 128, 1024
SUITE = ["norm", "principal", "energy", "memory", "kmeans(by=direction)"]


def rows() -> list[tuple[str, str, str]]:
    """Return the cost of writing, and time and memory of the label-free suite."""
    with tempfile.TemporaryDirectory() as folder:
        share = _writing(Path(folder))
        _write(Path(folder) / "large.tape")
        done = subprocess.run(  # noqa: S603
            [sys.executable, __file__, folder], capture_output=True, text=True, check=True
        )
    seconds, gigabytes = done.stdout.split()
    return [
        ("writing the tape / step, wdl, ads, batch 1024", f"{share:.1%}", "<= 10%"),
        (f"label-free suite on {ROWS:,} x {WIDTH}, seconds", seconds, "< 120"),
        ("  its peak resident memory, GB", gigabytes, "< 2"),
    ]


def _writing(folder: Path) -> float:
    """Return the share of a step that goes into its record."""
    trial = Experiment(TrainConfig.of({**PLAIN, "dataset": "ads", "rows": 60_000, "attacks": ()}))
    tape = _Timed(folder / "small.tape")
    end = RecordedFeatureParty(trial.features[0], tape.writer)
    batches = next(trial.schedule.parts(first=0)).batches
    times, start = [], time.perf_counter()
    for _ in train(batches, features=[end], label=trial.label):
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return median(tape.times[5:]) / median(times[5:])


class _Timed:
    """A writer that notes how long each step takes to write."""

    def __init__(self, path: Path) -> None:
        self.writer = TapeWriter(path)
        self.times: list[float] = []
        append = self.writer.append

        def timed(*args: object, **more: object) -> None:
            start = time.perf_counter()
            append(*args, **more)  # type: ignore[arg-type]
            self.times.append(time.perf_counter() - start)

        self.writer.append = timed  # type: ignore[method-assign]


def _write(path: Path) -> None:
    """Write gradients along a line, with the noise of published Marvell on one class."""
    rng = torch.Generator().manual_seed(0)
    line = torch.randn(WIDTH, generator=rng)
    with TapeWriter(path) as tape:
        for first in range(0, ROWS, BATCH):
            ids = torch.arange(first, min(first + BATCH, ROWS))
            positive = (ids % 4 == 0).float().unsqueeze(1)
            noise = torch.randn(len(ids), WIDTH, generator=rng) * (0.02 + 0.3 * positive)
            along = torch.randn(len(ids), 1, generator=rng) * 2
            tape.append(ids, (0.3 - positive + along) * line + noise)


def _audit(folder: Path) -> None:
    start = time.perf_counter()
    labels = (np.arange(ROWS) % 4 == 0).astype(np.int64)
    result = run_audit(folder / "large.tape", labels, SUITE)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print({row["attack"]: round(row["leak_auc"], 3) for row in result.table}, file=sys.stderr)
    print(f"{seconds:.0f} {peak:.2f}")


if __name__ == "__main__":
    _audit(Path(sys.argv[1]))
