"""Two embeddings side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.nets import Inputs
from tacit.pretrain.base import PRETRAINERS, FrozenBottom, Pretrainer
from tacit.pretrain.progress import FitProgress, State
from tacit.rng import Key


@final
class ConcatBottom(FrozenBottom):
    """Two bottoms on the same columns."""

    def __init__(self, inputs: Inputs, first: FrozenBottom, second: FrozenBottom) -> None:
        super().__init__(inputs, first.width + second.width)
        self.first, self.second = first, second

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return both embeddings."""
        parts = self.first.embed(numeric, categorical), self.second.embed(numeric, categorical)
        return torch.cat(parts, dim=1)


@final
@PRETRAINERS.register("concat")
@dataclass(frozen=True)
class Concat(Pretrainer):
    """Put the embeddings of two methods side by side, each learned on its own.

    ``z = [z_a, z_b]``

    Guarantee: sees no labels, as neither part does. The embeddings show what both parts show of
    the inputs.

    References:
        Coates, Ng and Lee, "An Analysis of Single-Layer Networks in Unsupervised Feature
        Learning" (2011), and Chen et al., "A Simple Framework for Contrastive Learning" (2020):
        the two parts that ``auto`` joins for images.

    >>> x = torch.tensor([[0.5, 1], [1.5, 2.25], [2.5, 3], [3.5, 4.25]])
    >>> both = PRETRAINERS.get("concat(pca(width=2), random(width=1))")
    >>> both.fit(Inputs(2), x, seed=0)(x).shape
    torch.Size([4, 3])
    """

    a: Pretrainer
    b: Pretrainer

    def embedding_width(self, inputs: Inputs) -> int:
        """Return the sum of both widths."""
        return self.a.embedding_width(inputs) + self.b.embedding_width(inputs)

    def passes(self, inputs: Inputs) -> int:
        """Return the sum of both."""
        return self.a.passes(inputs) + self.b.passes(inputs)

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return the tensors of both under ``first`` and ``second``."""
        saved, passes, before = progress.resume(), self.passes(inputs), 0
        finished, both = dict[str, Tensor](), dict[str, Tensor]()
        for name, method in (("first", self.a), ("second", self.b)):
            state = part_of(saved, f"{name}.finished")
            part = progress.part(name, before=before, total=passes, finished=finished)
            before += method.passes(inputs)
            learned = not state
            if learned:
                state = method.learn_checked(inputs, numeric, categorical, key=key, progress=part)
            finished |= {f"{name}.finished.{at}": tensor for at, tensor in state.items()}
            if learned:
                progress.keep(finished.copy, before, always=True)
            both |= {f"{name}.{at}": tensor for at, tensor in state.items()}
        return both

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return both bottoms as one."""
        first, second = (
            method.bottom(inputs, part_of(state, name))
            for name, method in (("first", self.a), ("second", self.b))
        )
        both = ConcatBottom(inputs, first, second)
        # What the parts wrote about their columns is theirs, not among what was learned here.
        return both.freeze({**both.state_dict(), **state})


def part_of(state: State, name: str) -> State:
    """Return the tensors of one part of a larger module.

    >>> list(part_of({"first.mean": torch.zeros(1), "second.mean": torch.zeros(1)}, "first"))
    ['mean']
    """
    start = f"{name}."
    return {k.removeprefix(start): tensor for k, tensor in state.items() if k.startswith(start)}
