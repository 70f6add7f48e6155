"""What both parties do, step by step: it follows from the plan and the number of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.data import order
from tacit.data.draws import permutation
from tacit.errors import InputError
from tacit.training.loop import Step, train
from tacit.training.party import FeatureEnd, LabelEnd, Rows
from tacit.wire.protocol.plan import TrainingPlan

Indices = npt.NDArray[np.int64]
_VALUES = 1 << 20  # of embeddings in one message of an evaluation


def piece_of(plan: TrainingPlan) -> int:
    """Return how many examples' embeddings go into one message when nothing is trained."""
    return max(1, _VALUES // prod(plan.cut))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Steps without a break: an epoch or a day, or a piece of one up to a checkpoint.

    ``number`` counts epochs or days. ``test`` are rows to evaluate on, None where there is nothing
    to evaluate: after the steps, or before them where ``test_first`` says so.
    """

    number: int
    first: int
    batches: list[Rows]
    test: Rows | None = None
    test_first: bool = False

    @property
    def stop(self) -> int:
        """The step after the last one of this part."""
        return self.first + len(self.batches)


class Parts(Protocol):
    """An order of work: of several epochs, or of the days of a stream."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""

    def parts(self, *, first: int) -> Iterator[Part]:
        """Return what is left to do from a step on."""


@final
@dataclass(frozen=True, eq=False)
class Schedule:
    """The order of work in epochs, on so many common examples.

    >>> plan = TrainingPlan(
    ...     epochs=2, batch_size=4, order_seed=0, cut=(2,), test_percent=20, save_every=3
    ... )
    >>> schedule = Schedule.of(plan, 25)
    >>> [(part.number, part.first, part.stop) for part in schedule.parts(first=4)]
    [(0, 4, 5), (1, 5, 6), (1, 6, 9), (1, 9, 10)]
    """

    plan: TrainingPlan
    train: Indices
    test: Indices

    @classmethod
    def of(cls, plan: TrainingPlan, count: int) -> Schedule:
        """Return the schedule for a number of examples; both sides get the same one."""
        shuffled = permutation(count, "split", plan.order_seed)
        test = round(count * plan.test_percent / 100)
        rows, held_out = shuffled[test:], shuffled[:test]
        if len(rows) < plan.batch_size:
            raise InputError(
                f"{count} common examples leave {len(rows)} to train on, fewer than one batch of "
                f"{plan.batch_size}: take a smaller batch_size on both sides"
            )
        if 0 < len(held_out) < plan.workers:
            raise InputError(
                f"{len(held_out)} held-out examples are fewer than {plan.workers} workers: take a "
                "larger test_percent, or 0"
            )
        return cls(plan, rows, held_out)

    @property
    def per_epoch(self) -> int:
        """Steps of one epoch."""
        return len(self.train) // self.plan.batch_size

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.per_epoch * self.plan.epochs

    @property
    def test_rows(self) -> Rows:
        """The examples that are held out; of several workers, each has a part of them."""
        parts = np.array_split(self.test, self.plan.workers)
        return torch.from_numpy(parts[self.plan.worker])

    @property
    def piece(self) -> int:
        """How many held-out examples go into one message."""
        return piece_of(self.plan)

    def parts(self, *, first: int) -> Iterator[Part]:
        """Return what is left to do from a step on."""
        at = first
        while at < self.steps:
            epoch, offset = divmod(at, self.per_epoch)
            start = at - offset
            saved = (at // self.plan.save_every + 1) * self.plan.save_every
            stop = min(start + self.per_epoch, saved)
            batches = list(
                order(
                    self.train,
                    batch_size=self.plan.batch_size,
                    seed=self.plan.order_seed,
                    epoch=epoch,
                )
            )
            ends_epoch = stop == start + self.per_epoch
            yield Part(
                number=epoch,
                first=at,
                batches=[self._share(rows) for rows in batches[offset : stop - start]],
                test=self.test_rows if ends_epoch and len(self.test) else None,
            )
            at = stop

    def _share(self, rows: Indices) -> Rows:
        """Return this worker's share of a batch: equal ones, in the order of the batch."""
        size = len(rows) // self.plan.workers
        first = size * self.plan.worker
        return torch.from_numpy(rows[first : first + size])


def follow(
    schedule: Parts,
    *,
    first: int = 0,
    features: Sequence[FeatureEnd],
    label: LabelEnd,
    done: Callable[[Step, Part], None],
    evaluate: Callable[[Part], None],
    save: Callable[[Part], None],
    depth: int = 1,
    read_ahead: Callable[[Iterable[Rows]], Iterable[Rows]] = iter,
) -> None:
    """Do what is left to do: the same at every party, and where all are in one process.

    ``done`` is called after every step, with its part, ``evaluate`` for every part with rows to
    evaluate on, and ``save`` at the end of every part. With ``depth`` so many steps are under way;
    a part ends with none. The label party alone takes its steps one by one, whatever the plan's
    depth. ``read_ahead`` may read batches before their step.
    """
    for part in schedule.parts(first=first):
        if part.test is not None and part.test_first:
            evaluate(part)
        steps = train(
            read_ahead(part.batches),
            features=features,
            label=label,
            first=part.first,
            depth=depth,
        )
        for step in steps:
            done(step, part)
        if part.test is not None and not part.test_first:
            evaluate(part)
        save(part)
