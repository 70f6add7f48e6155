"""Which rows a run in one process trains on, day by day, and which it keeps apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import final

import numpy as np
import torch

from tacit import data
from tacit.data.draws import Array
from tacit.errors import UsageError
from tacit.party.schedule import Indices, Part
from tacit.training.party import Rows


@final
@dataclass(frozen=True, eq=False)
class DaySchedule:
    """The order of work on a stream: every day once, tested on before it is trained on.

    The first day with a whole batch is not tested on: nothing was learned by then.
    """

    table: data.Table
    batch_size: int

    @property
    def steps(self) -> int:
        """How many whole batches all days have together."""
        _, counts = np.unique(np.asarray(self.table.day), return_counts=True)
        return int((counts // self.batch_size).sum())

    def parts(self, *, first: int = 0) -> Iterator[Part]:
        """Return the days from a step on, which begins one."""
        batches = data.stream(self.table, batch_size=self.batch_size, drop_last=True)
        at = 0
        for number, (day, found) in enumerate(groupby(batches, key=lambda pair: pair[0])):
            part = Part(
                number=number,
                first=at,
                batches=[torch.from_numpy(batch) for _, batch in found],
                test=self._rows(day) if number else None,
                test_first=True,
            )
            at = part.stop
            if part.first >= first:
                yield part

    def _rows(self, day: int) -> Rows:
        rows = np.flatnonzero(np.asarray(self.table.day) == day).astype(np.int64)
        return torch.from_numpy(rows)


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


def held_out(
    train: Indices, share: float | None, *, groups: Array | None = None
) -> tuple[Indices, Indices]:
    """Return the rows to train on and those to choose an epoch by; the rows come shuffled.

    Rows of one of the ``groups`` [N] of the table stay on one side, so that the held-out rows,
    which come first, can be a few more than the share.

    >>> held_out(np.arange(6), 0.4, groups=np.array([7, 8, 9, 8, 9, 9]))
    (array([2, 4, 5]), array([0, 1, 3]))
    """
    count = 0 if share is None else round(len(train) * share)
    if share is not None and count < 2:
        raise UsageError(
            f"--hold-out {share:g}: that is {count} of {len(train)} training rows: hold out more"
        )
    if groups is None or not count:
        return train[count:], train[:count]
    _, first, own, sizes = np.unique(
        np.asarray(groups)[train], return_index=True, return_inverse=True, return_counts=True
    )
    met = np.argsort(first)
    last = int(np.searchsorted(sizes[met].cumsum(), count))
    apart = np.isin(own, met[: last + 1])
    return train[~apart], train[apart]
