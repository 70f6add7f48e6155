"""The batches of a run, epoch by epoch or day by day, each part with the rows to test on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

from tacit import data
from tacit.errors import UsageError

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


def check_epochs(train: Indices, *, batch_size: int, name: str) -> None:
    """Refuse, before the first step, training rows that do not fill one batch."""
    if len(train) < batch_size:
        raise UsageError(
            f"--batch-size {batch_size}: {name} has {len(train)} rows to train on, so there would "
            f"be no step: take --batch-size {len(train)} or less, or load more rows"
        )


def check_days(table: data.Table, *, batch_size: int) -> None:
    """Refuse, before the first step, a stream that cannot be trained on and then tested.

    A day is tested before it is trained on, so it takes one day to learn from and a later one to
    test on, both with a whole batch.
    """
    if table.day is None:
        raise UsageError(
            f"--stream: needs rows with a time, {table.name} has none: leave it out, or name the "
            "column of the time in the schema"
        )
    _, rows = np.unique(np.asarray(table.day), return_counts=True)
    full = int((rows >= batch_size).sum())
    if full >= 2:
        return
    few = f"no day of {table.name} has so many rows"
    if full:
        few = f"only one day of {table.name} has so many rows, and none is left to test on"
    fits = int(np.sort(rows)[-2]) if len(rows) > 1 else 0
    smaller = f"take --batch-size {fits} or less, or " if fits >= 2 else ""
    raise UsageError(
        f"--stream with --batch-size {batch_size}: {few}: {smaller}load more rows, or leave "
        "--stream out"
    )


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
