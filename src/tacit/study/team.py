"""A party's processes: one alone, or several workers that train as one.

The companies talk to a :class:`Team` at every place where it matters that they are not alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.runtime.checkpoint import Checkpoints
from tacit.runtime.journal import Journal
from tacit.runtime.journalled import Journalled, KeptLabel
from tacit.runtime.line import Line
from tacit.runtime.matching import Common, Matching
from tacit.runtime.party import LabelParty, Released
from tacit.runtime.place import Kept, Place
from tacit.runtime.reception import Accepts
from tacit.types import Cut

__all__ = ["Alone", "Ending", "Releasing", "Team"]

Ending = Callable[[LabelParty], KeptLabel]
Releasing = Callable[[Cut], Released]


class Team(ABC):
    """What a company asks of the other processes of its party."""

    @abstractmethod
    def begin(self, place: Place[Any]) -> None:
        """Get ready for an attempt to work with the other party."""

    @abstractmethod
    def dialling(self, dial: Callable[[], Line]) -> Callable[[], Line]:
        """Return what opens a line to the other party."""

    @abstractmethod
    def accepting(self, listener: Accepts) -> Accepts:
        """Return where lines of the other party come in."""

    @abstractmethod
    def checkpoints(self, own: Checkpoints) -> Kept:
        """Return where the party's states are kept."""

    @abstractmethod
    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Return this process's side of the matching of ids."""

    @abstractmethod
    def aligned(self, common: Common) -> None:
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
class Alone(Team):
    """One process that is the whole party."""

    def begin(self, place: Place[Any]) -> None:
        """Nobody has to come."""

    def dialling(self, dial: Callable[[], Line]) -> Callable[[], Line]:
        """Return the party's own way."""
        return dial

    def accepting(self, listener: Accepts) -> Accepts:
        """Return the party's own."""
        return listener

    def checkpoints(self, own: Checkpoints) -> Kept:
        """Return the party's own."""
        return own

    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Return the party's own."""
        return make()

    def aligned(self, common: Common) -> None:
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
        return None, lambda party: Journalled(party, journal, scope=scope)

    def whole(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return them as they are."""
        return rows, probs

    def close(self) -> None:
        """Nobody is there."""
