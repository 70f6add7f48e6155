"""The one training loop.

It runs the same whether its ends are parties in this process or connections to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.runtime.party import FeatureEnd, LabelEnd, Rows

__all__ = ["Step", "predict", "train"]


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished training step."""

    step: int
    loss: float


def train(
    batches: Iterable[Rows],
    *,
    features: Sequence[FeatureEnd],
    label: LabelEnd,
    first: int = 0,
) -> Iterator[Step]:
    """Train on batches in order and yield every finished step.

    Gradients are handed out before the label party updates its own weights, so that both sides
    can work at the same time where they are apart.
    """
    for step, rows in enumerate(batches, start=first):
        embeddings = [party.forward(step, rows) for party in features]
        gradients = label.step(rows, embeddings)
        for party, gradient in zip(features, gradients, strict=True):
            party.backward(gradient)
        yield Step(step=step, loss=label.update())


def predict(
    rows: Rows, *, features: Sequence[FeatureEnd], label: LabelEnd, batch_size: int = 8192
) -> Tensor:
    """Return the predicted probabilities of some examples, in their order."""
    parts = [
        label.predict(part, [party.embed(part) for party in features])
        for part in torch.split(rows, batch_size)
    ]
    return torch.cat(parts)
