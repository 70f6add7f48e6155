"""Looks at each batch of embeddings that the label party gets, before anything is made of it.

It knows no labels: what is found depends on the embeddings and on the secret choice of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import PeerError
from tacit.rng import Key
from tacit.runtime.checkpoint import State
from tacit.runtime.embedding_look import (
    FEWEST,
    KINDS,
    NARROW,
    SAMPLE,
    Look,
    Rows,
    Sample,
    look_at,
    odd,
    repeated,
)
from tacit.runtime.messages import Embedding

__all__ = ["EmbeddingWatch", "OnOdd"]

OnOdd = Literal["warn", "refuse"]


@final
@dataclass(kw_only=True)
class EmbeddingWatch:
    """Looks at every batch of each feature party, counts what is odd, and warns or refuses.

    Args:
        on_odd: ``refuse`` ends the step with a PeerError before anything is computed from it.
        key: which rows are looked at is secret, or they could be the honest ones.
        log: hears of the first odd batch of each kind.

    Attributes:
        counts: odd steps, and steps that were odd by each kind.
        last: what the last step showed, by the number of the feature party.
    """

    on_odd: OnOdd = "warn"
    key: Key = field(default_factory=Key.fresh, repr=False)
    log: Callable[[str], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[int, Look] = field(default_factory=dict, repr=False)
    _before: dict[int, Sample] = field(default_factory=dict, repr=False)
    _directions: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __call__(self, embeddings: Sequence[Embedding]) -> None:
        """Look at the embeddings of one step, one batch per feature party."""
        found: dict[str, str] = {}
        samples: dict[int, Sample] = {}
        self.last.clear()
        for number, embedding in enumerate(embeddings):
            if len(embedding.values) < FEWEST:
                continue
            batch = embedding.values.detach().reshape(len(embedding.values), -1)
            rows = self._sample(batch, step=embedding.step, party=number)
            if rows is None:
                continue
            equal = repeated((batch @ self._direction(batch)).float().cpu().numpy())
            self.last[number], samples[number] = look_at(
                rows, self._before.get(number), equal=equal if batch.shape[1] >= NARROW else 0.0
            )
            found |= odd(self.last[number])
        if found:
            self._tell(embeddings[0].step, found)
        self._before |= samples  # after a refusal the picture is still that of the batch before

    @property
    def warnings(self) -> dict[str, int]:
        """How many steps were odd, and how many of them by which kind."""
        kinds = {f"odd_embeddings_{kind}": self.counts[kind] for kind in KINDS if self.counts[kind]}
        return {"odd_embeddings": self.counts["steps"], **kinds}

    def states(self) -> dict[str, State]:
        """Return what a checkpoint keeps of it: the counts."""
        return {"embedding_watch": ({}, {"counts": dict(self.counts)})}

    def begin(self, states: Mapping[str, State] | None) -> None:
        """Begin a new picture; count on from what a checkpoint has, if it is more."""
        _, values = (states or {}).get("embedding_watch", ({}, {"counts": {}}))
        self.counts |= Counter({str(kind): int(n) for kind, n in values["counts"].items()})
        self._before.clear()

    def _sample(self, batch: Tensor, *, step: int, party: int) -> Rows | None:
        """Return the rows to look at; None where they are not all numbers."""
        count = len(batch)
        if count > SAMPLE:
            rng = self._rng(b"rows" + step.to_bytes(8) + party.to_bytes(1))
            batch = batch[torch.from_numpy(rng.choice(count, SAMPLE, replace=False))]
        rows: Rows = batch.float().cpu().numpy()
        return rows if np.isfinite(rows).all() else None

    def _direction(self, batch: Tensor) -> Tensor:
        """Return a secret direction, always the same for a width."""
        width = batch.shape[1]
        if width not in self._directions:
            drawn = self._rng(b"direction" + width.to_bytes(8)).standard_normal(width)
            self._directions[width] = torch.from_numpy(drawn).to(batch)
        return self._directions[width]

    def _rng(self, purpose: bytes) -> np.random.Generator:
        drawn = self.key.digest(b"embedding watch, " + purpose)
        return np.random.Generator(np.random.PCG64(int.from_bytes(drawn)))

    def _tell(self, step: int, found: dict[str, str]) -> None:
        new = any(not self.counts[kind] for kind in found)
        self.counts.update(["steps", *found])
        said = "; ".join(f"{kind}: {text}" for kind, text in found.items())
        line = (
            f"the embeddings of step {step} are not those of an honest bottom model ({said}): "
            "bounds about gradients do not hold for such batches"
        )
        if self.on_odd == "refuse":
            raise PeerError(line)
        if new:
            self.log(
                f"warning: {line}; randomised labels do not depend on it, and "
                'on_odd_embeddings = "refuse" stops such steps; more of the kind are only counted'
            )
