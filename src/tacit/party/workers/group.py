"""A party's processes: one alone, or several workers that train as one.

A session asks its :class:`WorkerGroup` wherever it matters that there may be several processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.party.acceptor import Accepts
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd, JournaledLabelParty
from tacit.party.run_state import CheckpointSource, RunState
from tacit.training.party import LabelParty, Released
from tacit.types import Cut
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.base import Transport

Ending = Callable[[LabelParty], JournaledLabelEnd]
Releasing = Callable[[Cut], Released]


class WorkerGroup(ABC):
    """What a company asks of the other processes of its party."""

    @abstractmethod
    def begin(self, place: RunState[Any]) -> None:
        """Get ready for an attempt to work with the other party."""

    @abstractmethod
    def dialling(self, dial: Callable[[], Transport]) -> Callable[[], Transport]:
        """Return what opens a line to the other party."""

    @abstractmethod
    def accepting(self, listener: Accepts) -> Accepts:
        """Return where lines of the other party come in."""

    @abstractmethod
    def checkpoints(self, own: CheckpointStore) -> CheckpointSource:
        """Return where the party's states are kept."""

    @abstractmethod
    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Return this process's side of the matching of ids."""

    @abstractmethod
    def aligned(self, common: Alignment) -> None:
        """Hear what came out of it."""

    @abstractmethod
    def tie(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, new: bool, mean: bool
    ) -> None:
        """Keep a model the same in all processes, from its first weights on if it is new."""

    @abstractmethod
    def targets(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the labels that one process randomises, or in another what the loss takes."""

    @abstractmethod
    def releasing(
        self, labels: Tensor, journal: Journal | None, *, scope: bytes
    ) -> tuple[Releasing | None, Ending]:
        """Return who releases in place of the guard, and what makes the label party an end."""

    @abstractmethod
    def whole(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the rows and predictions of all processes, at the one that measures."""

    @abstractmethod
    def close(self) -> None:
        """Let the others go."""


@final
class SingleProcess(WorkerGroup):
    """One process that is the whole party."""

    def begin(self, place: RunState[Any]) -> None:
        """Nobody has to come."""

    def dialling(self, dial: Callable[[], Transport]) -> Callable[[], Transport]:
        """Return the party's own way."""
        return dial

    def accepting(self, listener: Accepts) -> Accepts:
        """Return the party's own."""
        return listener

    def checkpoints(self, own: CheckpointStore) -> CheckpointSource:
        """Return the party's own."""
        return own

    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Return the party's own."""
        return make()

    def aligned(self, common: Alignment) -> None:
        """Nobody has to hear."""

    def tie(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, new: bool, mean: bool
    ) -> None:
        """There is only one."""

    def targets(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the labels."""
        return make()

    def releasing(
        self,
        labels: Tensor,  # noqa: ARG002
        journal: Journal | None,
        *,
        scope: bytes,
    ) -> tuple[Releasing | None, Ending]:
        """Return the guard's own releases, with a journal before them."""
        assert journal is not None  # noqa: S101 - a label party has one
        return None, lambda party: JournaledLabelParty(party, journal, scope=scope)

    def whole(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return them as they are."""
        return rows, probs

    def close(self) -> None:
        """Nobody is there."""
