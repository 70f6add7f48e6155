"""One of several workers that train as one party: what it shares with the others, and when.

A party on one process has no group.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit import data
from tacit.errors import LostError, SilenceError, UsageError
from tacit.party.acceptor import GOODBYE, Accepts
from tacit.party.checkpoint import CheckpointStore
from tacit.party.config import PartyConfig, identity_of
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd
from tacit.party.run_state import CheckpointSource, RunState
from tacit.party.workers.checkpoints import ReplicatedCheckpoints
from tacit.party.workers.collectives import LONGEST, WATCH, Collectives, WorkersLostError
from tacit.party.workers.rendezvous import Rendezvous, secret_of
from tacit.party.workers.sharded_label import ReleaseClient, ReleaseServer, ShardedLabel
from tacit.training.party import LabelParty, Released
from tacit.types import Cut
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.base import Transport

_SAME = (
    "model",
    "cut",
    "lr",
    "weight_decay",
    "number",
    "classes",
    "combine",
    "protect",
    "labels",
    "budget",
    "seed",
    "epochs",
    "batch_size",
    "matching",
    "test_percent",
    "save_every",
    "wire",
    "workers",
)


Finish = Callable[[LabelParty], JournaledLabelEnd]
ReleaseCut = Callable[[Cut], Released]


@final
class WorkerGroup:
    """The other workers of a party, as its session uses them.

    Args:
        collectives: of the party's workers.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._group = collectives
        self._shared: ReplicatedCheckpoints | None = None
        self._told: str | None = None

    def begin(self, state: RunState[Any]) -> None:
        """Connect anew; what was not saved is given up, because some may not have it."""
        limit = GOODBYE if state.finished() else None
        self._group.finished = state.finished
        state.give_up()
        while True:
            try:
                self._group.form(limit=limit)
                if self._shared is not None:
                    self._shared.refresh()
                return
            except WorkersLostError:
                continue
            except LostError as error:
                if limit is None:
                    raise
                raise SilenceError(str(error)) from error

    def dialling(self, dial: Callable[[], Transport]) -> Callable[[], Transport]:
        """Return what opens transports that end with the group."""
        return lambda: self._group.hold(dial())

    def accepting(self, listener: Accepts) -> Accepts:
        """Return what accepts transports for as long as the group lasts."""
        return _Accepting(listener, self._group)

    def checkpoints(self, own: CheckpointStore) -> CheckpointSource:
        """Return those of worker 0, shared."""
        self._shared = ReplicatedCheckpoints(self._group, own)
        return self._shared

    def matching(self, make: Callable[[], Matching]) -> Matching:
        """Match as worker 0; as another, wait for what it finds and offer only that."""
        if self._group.first:
            return make()
        told = _loaded(self._group.broadcast("matching", limit=LONGEST))
        digest = self._group.broadcast("name of the matching").decode()
        matching = make()
        self._told = digest
        held = matching.common(told, digest)
        return replace(matching, held=held)

    def aligned(self, common: Alignment) -> None:
        """Tell the others, as worker 0; as another, see that it is the same."""
        if self._group.first:
            self._group.broadcast("matching", _saved(common.order))
            self._group.broadcast("name of the matching", common.digest.encode())
        elif common.digest != self._told:
            raise WorkersLostError("the other party has another matching here than at its worker 0")

    def replicate(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, new: bool, mean: bool
    ) -> None:
        """Take worker 0's first weights, and add up gradients before every update."""
        for part in model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                raise UsageError(
                    f"workers = {self._group.workers}: a model with batch normalisation takes its "
                    "statistics from a whole batch, and no worker has one: use one worker"
                )
        if new:
            self._group.copy_first(model)
        scale = 1 / self._group.workers if mean else 1.0

        def add(*_: object) -> None:
            self._group.add_gradients(model, scale=scale)

        optimizer.register_step_pre_hook(add)

    def targets(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the labels that worker 0 randomises; the others get the targets of the loss."""
        labels = self._group.only_first("randomised labels", make)
        if labels is None:
            return torch.from_numpy(_loaded(self._group.broadcast("targets")))
        targets = getattr(labels, "targets", labels)
        self._group.broadcast("targets", _saved(targets.numpy()))
        return labels

    def releasing(
        self, labels: Tensor, journal: Journal | None, *, scope: bytes
    ) -> tuple[ReleaseCut, Finish]:
        """Return what releases in place of the guard, and what makes the label party an end.

        The one guard and the journal are at worker 0.
        """
        server = None if journal is None else ReleaseServer(labels, journal, scope=scope)
        client = ReleaseClient(self._group, server)

        def finish(party: LabelParty) -> JournaledLabelEnd:
            client.party = party
            return ShardedLabel(party, self._group, server)

        return client.release, finish

    def whole(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the rows and predictions of all workers, at worker 0."""
        all_rows, all_probs = self._group.gather_rows(rows), self._group.gather_rows(probs)
        return None if all_rows is None or all_probs is None else (all_rows, all_probs)

    def close(self) -> None:
        """Leave the group, so that the others notice it if they are not done."""
        self._group.leave()


@final
class _Accepting:
    """Hands out connections while no worker gives up."""

    def __init__(self, listener: Accepts, group: Collectives) -> None:
        self._listener = listener
        self._group = group

    def accept(self, *, timeout: float) -> Transport:
        """Return the next connection; check every half second whether all are still there."""
        end = time.monotonic() + timeout
        self._group.drop_ended()
        while True:
            self._group.check()
            left = end - time.monotonic()
            try:
                return self._group.hold(self._listener.accept(timeout=min(WATCH, max(0.0, left))))
            except SilenceError:
                if left <= WATCH:
                    raise


def worker_group(
    config: PartyConfig, table: data.PartyTable, log: Callable[[str], None]
) -> WorkerGroup | None:
    """Return this worker's group, None where the party is one process."""
    if config.workers == 1:
        return None
    if config.worker is None:
        raise UsageError(
            f"worker is missing: this party has {config.workers} workers: start each with its "
            f"number, --worker 0 to --worker {config.workers - 1}"
        )
    assert config.group is not None  # noqa: S101 - the configuration was checked
    rendezvous = Rendezvous(
        config.group,
        party=config.name,
        worker=config.worker,
        workers=config.workers,
        secret=secret_of(identity_of(config)),
        facts=_facts(config, table),
        wait=config.wait,
        log=log,
    )
    return WorkerGroup(Collectives(rendezvous, log=log))


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
