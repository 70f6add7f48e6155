"""The position of a party in a run: the step it has reached, and those it can return to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final

import torch
from torch import nn

from tacit.accounting.ledger import SavedState
from tacit.errors import UsageError
from tacit.party._checkpoint_format import Models, Optimizers, StoredCheckpoint
from tacit.party.schedule import Schedule
from tacit.wire.protocol.plan import TrainingPlan

Party = TypeVar("Party")
States = Mapping[str, SavedState]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltParty(Generic[Party]):
    """A party as it was built, and what must be stored of it.

    ``states`` returns everything beside models and optimisers that later steps depend on.
    """

    party: Party
    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]
    states: Callable[[], dict[str, SavedState]]


class CheckpointSource(Protocol):
    """Where states are kept: ``Checkpoints``, or those that several workers share."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """A line for each checkpoint that was left out."""

    def latest(self) -> StoredCheckpoint | None:
        """Return the newest one."""

    def steps(self) -> list[int]:
        """Return the steps of all."""

    def at(self, step: int) -> StoredCheckpoint:
        """Return the one of a step."""

    def save(
        self,
        step: int,
        *,
        models: Models,
        optimizers: Optimizers,
        cursor: Mapping[str, Any],
        states: States,
    ) -> object:
        """Store one."""


Build = Callable[[States | None], BuiltParty[Party]]
"""Makes a party as it is before the first step, or from the states of a checkpoint."""


@final
class RunState(Generic[Party]):
    """The live state of a party and its checkpoints.

    Args:
        checkpoints: where states are kept.
        plan: of the run; checkpoints made by another are refused, more epochs are not another.
        build: makes the party; called when a step is returned to.
    """

    def __init__(
        self, checkpoints: CheckpointSource, plan: TrainingPlan, build: Build[Party]
    ) -> None:
        self._checkpoints = checkpoints
        self._plan = plan
        self._build = build
        self._built: BuiltParty[Party] | None = None
        self._settled = True
        self.position = 0
        self._common: str | None = None
        self._count: int | None = None
        latest = checkpoints.latest()
        if latest is not None:
            self._check_plan(latest.cursor)
            self._common, self._count = latest.cursor["common"], latest.cursor["count"]

    @property
    def party(self) -> Party:
        """The party as it is now."""
        assert self._built is not None  # noqa: S101 - go comes first
        return self._built.party

    @property
    def built(self) -> BuiltParty[Party] | None:
        """Everything that was built; None before the first :meth:`go`."""
        return self._built

    @property
    def damaged(self) -> tuple[str, ...]:
        """A line for each checkpoint that was left out."""
        return self._checkpoints.damaged

    def stops(self) -> list[int]:
        """Return every number of steps that this party can go on from, in ascending order."""
        live = {self.position} if self._built is not None and self._settled else set()
        return sorted({0, *self._checkpoints.steps(), *live})

    def go(self, step: int) -> None:
        """Return to a stop; the steps after it are discarded and taken again."""
        if self._built is not None and self._settled and step == self.position:
            return
        self._built = None
        if step == 0:
            self._built = self._build(None)
        else:
            held = self._checkpoints.at(step)
            built = self._build(held.states)
            held.restore(models=built.models, optimizers=built.optimizers)
            self._built = built
        self.position, self._settled = step, True

    def give_up(self) -> None:
        """Give up unsaved steps: from now on only checkpoints are stops."""
        self._built = None

    def reach(self, step: int, *, last: bool) -> None:
        """Note a finished step; after the last before a checkpoint, only that one is a stop.

        Where steps overlap, none in between is a stop: others were begun before it was finished.
        """
        self.position, self._settled = step, not last and self._plan.depth == 1

    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if self._count is None:
            return False
        return self.stops()[-1] >= Schedule.of(self._plan, self._count).steps

    def settle_on(self, common: str, count: int) -> None:
        """Take the common examples by their digest; a run stays with those that it began with."""
        if self._common not in (None, common):
            if self.position or self._checkpoints.steps():
                raise UsageError(
                    f"this run began with other common examples than today's {count}: bring back "
                    "the tables of that time on both sides, or name new state folders for a new run"
                )
            self._built = None  # built for the others, and nothing was done with it
        self._common, self._count = common, count

    def save(self) -> None:
        """Store the state as it is now."""
        built = self._built
        assert built is not None  # noqa: S101 - go comes first
        self._checkpoints.save(
            self.position,
            models=built.models,
            optimizers=built.optimizers,
            states=built.states(),
            cursor={
                "plan": self._plan.to_json(),
                "common": self._common,
                "count": self._count,
            },
        )
        self._settled = True

    def _check_plan(self, cursor: Mapping[str, Any]) -> None:
        before = replace(TrainingPlan.from_json(cursor["plan"]), epochs=self._plan.epochs)
        difference = self._plan.difference(before)
        if difference is not None:
            raise UsageError(
                f"{self._checkpoints.path}: a run is stored here, and {difference}: go on with the "
                "same plan, or name another state folder for a new run"
            )
