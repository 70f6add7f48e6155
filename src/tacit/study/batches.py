"""The batches of a run, epoch by epoch or day by day, each part with the rows to test on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

from tacit import data
from tacit.errors import UsageError

__all__ = ["days", "epochs", "held_out", "steps_of_days"]

Indices = npt.NDArray[np.int64]
Part = tuple[list[Indices], Indices]


def epochs(
    train: Indices, test: Indices, *, count: int, batch_size: int, seed: int
) -> Iterator[Part]:
    """Yield the batches of every epoch with the test rows."""
    for epoch in range(count):
        yield list(data.order(train, batch_size=batch_size, seed=seed, epoch=epoch)), test


def days(table: data.Table, *, batch_size: int) -> Iterator[Part]:
    """Yield the batches of every day with all rows of that day."""
    batches = data.stream(table, batch_size=batch_size, drop_last=True)
    for day, found in groupby(batches, key=lambda pair: pair[0]):
        rows = np.flatnonzero(np.asarray(table.day) == day).astype(np.int64)
        yield [batch for _, batch in found], rows


def steps_of_days(table: data.Table, *, batch_size: int) -> int:
    """Return how many whole batches all days have together."""
    _, counts = np.unique(np.asarray(table.day), return_counts=True)
    return int((counts // batch_size).sum())


def held_out(train: Indices, share: float | None) -> tuple[Indices, Indices]:
    """Return the rows to train on and those to choose an epoch by; the rows come shuffled."""
    count = 0 if share is None else round(len(train) * share)
    if share is not None and count < 2:
        raise UsageError(
            f"--hold-out {share:g}: that is {count} of {len(train)} training rows: hold out more"
        )
    return train[count:], train[:count]
