"""Checkpoints of a party on several workers: worker 0 keeps them, and all go on from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from tacit.accounting.ledger import SavedState
from tacit.party._checkpoint_format import (
    Models,
    Optimizers,
    StoredCheckpoint,
    joined,
    parted,
    settings,
    weights,
)
from tacit.party.checkpoint import CheckpointStore
from tacit.party.workers.collectives import Collectives


@final
class ReplicatedCheckpoints:
    """The checkpoints of worker 0, as every worker of the party sees them.

    Guarantee: nothing is stored unless the weights and optimisers of all workers are bitwise the
    same, and all of them go on from the same ones.

    Args:
        group: of this party's workers.
        own: the store, used by worker 0 alone.
    """

    def __init__(self, group: Collectives, own: CheckpointStore) -> None:
        self._group = group
        self._own = own
        self._steps = own.steps() if group.first else []

    @property
    def path(self) -> Path:
        """The folder of worker 0."""
        return self._own.path

    @property
    def damaged(self) -> tuple[str, ...]:
        """A line for each checkpoint that was left out."""
        return self._own.damaged if self._group.first else ()

    def latest(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint; only at worker 0, before the workers are connected."""
        return self._own.latest() if self._group.first else None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints as of the last :meth:`refresh`."""
        return list(self._steps)

    def refresh(self) -> None:
        """Send the list of checkpoints to all workers."""
        mine = json.dumps(self._own.steps()).encode() if self._group.first else None
        self._steps = json.loads(self._group.broadcast("the list of checkpoints", mine))

    def at(self, step: int) -> StoredCheckpoint:
        """Return the checkpoint of a step; states beside models are worker 0's alone."""
        held = self._own.at(step) if self._group.first else None
        what = f"checkpoint {step}"
        content = [None] * 3 if held is None else _packed(held)
        models, tensors, values = (self._group.broadcast(what, part) for part in content)
        if held is not None:
            return held
        optimizers = parted(from_bytes(tensors))
        facts = json.loads(values)
        return StoredCheckpoint(
            run="",
            step=step,
            cursor={},
            states={},
            models=parted(from_bytes(models)),
            optimizers={name: (optimizers.get(name, {}), facts[name]) for name in facts},
        )

    def save(
        self,
        step: int,
        *,
        models: Models,
        optimizers: Optimizers,
        cursor: Mapping[str, Any],
        states: Mapping[str, SavedState],
    ) -> None:
        """Store the state of the party, and return when it is stored."""
        self._group.same(f"weights after step {step}", _digest(models, optimizers))
        self._group.only_first(
            f"the checkpoint of step {step}",
            lambda: self._own.save(
                step, models=models, optimizers=optimizers, cursor=cursor, states=states
            ),
        )
        self.refresh()


def _packed(held: StoredCheckpoint) -> list[bytes | None]:
    tensors = {name: tensors for name, (tensors, _) in held.optimizers.items()}
    facts = {name: values for name, (_, values) in held.optimizers.items()}
    return [to_bytes(joined(held.models)), to_bytes(joined(tensors)), json.dumps(facts).encode()]


def _digest(models: Models, optimizers: Optimizers) -> bytes:
    state = hashlib.sha256(to_bytes(joined({n: weights(m) for n, m in models.items()})))
    state.update(to_bytes(joined({n: settings(o)[0] for n, o in optimizers.items()})))
    return state.digest()
