"""A party's processes: one alone, or several workers that train as one.

The companies talk to a :class:`Team` at every place where it matters that they are not alone.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit import data
from tacit.errors import LostError, SilenceError, UsageError
from tacit.runtime.checkpoint import Checkpoints
from tacit.runtime.group import LONGEST, Group, GroupLostError
from tacit.runtime.journal import Journal
from tacit.runtime.journalled import Journalled, KeptLabel
from tacit.runtime.matching import Common, Matching
from tacit.runtime.meeting import Meeting
from tacit.runtime.party import LabelParty, Released
from tacit.runtime.place import Kept, Place
from tacit.runtime.reception import GOODBYE
from tacit.runtime.shared_checkpoints import SharedCheckpoints
from tacit.runtime.shared_label import Desk, SharedLabel, Vault
from tacit.study.party_config import PartyConfig
from tacit.types import Cut

__all__ = ["Alone", "Team", "Together", "team_of"]

Ending = Callable[[LabelParty], KeptLabel]
Releasing = Callable[[Cut], Released]
_SAME = ("model", "cut", "lr", "weight_decay", "number", "classes", "combine", "protect", "labels",
         "budget", "seed", "epochs", "batch_size", "matching", "test_percent", "save_every", "wire",
         "workers")  # fmt: skip


class Team(ABC):
    """What a company asks of the other processes of its party."""

    @abstractmethod
    def begin(self, place: Place[Any]) -> None:
        """Get ready for an attempt to work with the other party."""

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


@final
class Together(Team):
    """One of several workers.

    Args:
        group: of the party's workers.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._shared: SharedCheckpoints | None = None
        self._told: str | None = None

    def begin(self, place: Place[Any]) -> None:
        """Come together anew; what was not saved is given up, because some may not have it."""
        limit = GOODBYE if place.finished() else None
        place.give_up()
        while True:
            try:
                self._group.form(limit=limit)
                if self._shared is not None:
                    self._shared.refresh()
                return
            except GroupLostError:
                continue
            except LostError as error:
                if limit is None:
                    raise
                raise SilenceError(str(error)) from error

    def checkpoints(self, own: Checkpoints) -> Kept:
        """Return those of worker 0, shared."""
        self._shared = SharedCheckpoints(self._group, own)
        return self._shared

    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Match as worker 0; as another, wait for what it finds and offer only that."""
        if self._group.first:
            return make()
        told = _loaded(self._group.tell("matching", limit=LONGEST))
        digest = self._group.tell("name of the matching").decode()
        matching = make()
        self._told = digest
        held = matching.common(told, digest)
        return Matching(ids=matching.ids, private=matching.private, held=held, log=matching.log)

    def aligned(self, common: Common) -> None:
        """Tell the others, as worker 0; as another, see that it is the same."""
        if self._group.first:
            self._group.tell("matching", _saved(common.order))
            self._group.tell("name of the matching", common.digest.encode())
        elif common.digest != self._told:
            raise GroupLostError("the other party has another matching here than at its worker 0")

    def tie(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, new: bool, mean: bool
    ) -> None:
        """Take worker 0's first weights, and add up gradients before every update."""
        if new:
            self._group.copy_first(model)
        scale = 1 / self._group.workers if mean else 1.0

        def add(*_: object) -> None:
            self._group.add_gradients(model, scale=scale)

        optimizer.register_step_pre_hook(add)

    def targets(self, make: Callable[[], Tensor]) -> Tensor:
        """Randomise as worker 0; the others get no more than the targets of the loss."""
        labels = self._group.only_first("randomised labels", make)
        if labels is None:
            return torch.from_numpy(_loaded(self._group.tell("targets")))
        targets = getattr(labels, "targets", labels)
        self._group.tell("targets", _saved(targets.numpy()))
        return labels

    def releasing(
        self, labels: Tensor, journal: Journal | None, *, scope: bytes
    ) -> tuple[Releasing | None, Ending]:
        """Return the way to worker 0, where the one guard is."""
        vault = None if journal is None else Vault(labels, journal, scope=scope)
        desk = Desk(self._group, vault)

        def end(party: LabelParty) -> KeptLabel:
            desk.party = party
            return SharedLabel(party, self._group, vault)

        return desk.release, end

    def whole(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the parts of all workers, at worker 0."""
        all_rows, all_probs = self._group.gather_rows(rows), self._group.gather_rows(probs)
        return None if all_rows is None or all_probs is None else (all_rows, all_probs)

    def close(self) -> None:
        """Close the links, so that the others notice it if they are not done."""
        self._group.leave()


def team_of(config: PartyConfig, table: data.PartyTable, log: Callable[[str], None]) -> Team:
    """Return the team that a configuration asks for."""
    if config.workers == 1:
        return Alone()
    if config.worker is None:
        raise UsageError(
            f"worker is missing: this party has {config.workers} workers: start each with its "
            f"number, --worker 0 to --worker {config.workers - 1}"
        )
    assert config.group is not None  # noqa: S101 - the configuration was checked
    meeting = Meeting(
        config.group,
        party=config.name,
        worker=config.worker,
        workers=config.workers,
        facts=_facts(config, table),
        wait=config.wait,
        log=log,
    )
    return Together(Group(meeting, log=log))


def _facts(config: PartyConfig, table: data.PartyTable) -> dict[str, str]:
    """Return what all workers must have the same, tables as digests."""
    state = hashlib.sha256(table.encoding.to_json().encode())
    columns = [np.asarray(table.ids)]
    columns += [] if table.labels is None else [np.asarray(table.labels)]
    for column in columns:
        state.update(np.ascontiguousarray(column).tobytes())
    return {
        "party": config.name,
        **{name: str(getattr(config, name)) for name in _SAME},
        "table": state.hexdigest()[:16],
    }


def _saved(array: npt.NDArray[Any]) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def _loaded(content: bytes) -> Any:  # noqa: ANN401 - an array of the type that was saved
    return np.load(io.BytesIO(content), allow_pickle=False)
