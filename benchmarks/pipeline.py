"""What reading batches costs next to training on them, and how much memory a large table takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter

import torch
from torch import nn

from tacit.data import Features, Table, load, order, take, write_ads_parquet
from timing import paired_medians

__all__ = ["rows"]

_BATCH = 1_024
_ROWS = 1_000_000
_LARGE = 5_000_000
_LOAD = (
    "import resource, sys; from tacit.data import load; table = load(sys.argv[1]); "
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; print(len(table), peak)"
)


def rows() -> list[tuple[str, str, str]]:
    """Return (what, measured, target) for batches, and for a large file where that is asked."""
    with _scratch() as folder:
        table = [_batches(folder)]
        if os.environ.get("TACIT_BENCH_LARGE") == "1":
            table.append(_memory(folder))
    return table


def _batches(folder: Path) -> tuple[str, str, str]:
    table = load(str(write_ads_parquet(folder / "ads.parquet", _ROWS)))
    start = perf_counter()
    everything = torch.arange(len(table)).numpy()
    batches = list(order(everything, batch_size=_BATCH, seed=0, epoch=0))
    ordering = (perf_counter() - start) / len(batches)
    source = cycle(batches)
    reading, training = paired_medians(
        lambda: take(table, next(source)),
        partial(_step, *_model(table), take(table, batches[0]), table),
        repeats=100,
    )
    reading += ordering
    what = (
        f"order + take / WDL step, batch {_BATCH} of {_ROWS:,} mapped rows "
        f"({reading * 1e3:.2f} ms of {training * 1e3:.1f} ms)"
    )
    return what, f"{reading / training:.1%}", "<= 15%"


def _model(table: Table) -> tuple[nn.Embedding, nn.Module, torch.optim.Optimizer]:
    """Return one embedding for all categories and six layers of 128, as in the Marvell paper."""
    embedding = nn.Embedding(sum(table.cardinalities), 4)
    width = table.numeric.shape[1] + 4 * len(table.cardinalities)
    layers: list[nn.Module] = []
    for at in range(6):
        layers += [nn.Linear(128 if at else width, 128), nn.ReLU()]
    top = nn.Sequential(*layers, nn.Linear(128, 1))
    return embedding, top, torch.optim.Adam([*embedding.parameters(), *top.parameters()], lr=1e-4)


def _step(
    embedding: nn.Embedding,
    top: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Features,
    table: Table,
) -> None:
    """Train one step: forward, backward, Adam."""
    starts = torch.tensor([0, *table.cardinalities[:-1]]).cumsum(0)
    looked_up = embedding(batch.categorical + starts).flatten(1)
    logits = top(torch.cat([batch.numeric, looked_up], dim=1)).squeeze(1)
    targets = torch.zeros_like(logits)
    optimiser.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(logits, targets).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _memory(folder: Path) -> tuple[str, str, str]:
    """Measure the peak of a process that reads a large file for the first time."""
    path = write_ads_parquet(folder / "large.parquet", _LARGE)
    command = [sys.executable, "-c", _LOAD, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    peak = int(done.stdout.split()[1]) / 2**20
    return f"peak memory of loading {_LARGE:,} rows of Parquet", f"{peak:.2f} GB", "< 2 GB"


@contextmanager
def _scratch() -> Iterator[Path]:
    """Keep files and cache in a folder that goes away."""
    before = os.environ.get("TACIT_CACHE")
    with tempfile.TemporaryDirectory() as name:
        os.environ["TACIT_CACHE"] = str(Path(name) / "cache")
        try:
            yield Path(name)
        finally:
            os.environ.pop("TACIT_CACHE")
            if before is not None:
                os.environ["TACIT_CACHE"] = before
