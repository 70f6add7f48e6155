"""The one training loop.

It runs the same whether its ends are parties in this process or connections to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.training.cut import Embedding
from tacit.training.party import FeatureEnd, LabelEnd, Rows


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
    depth: int = 1,
) -> Iterator[Step]:
    """Train on batches in order and yield every finished step.

    Gradients are handed out before the label party updates its own weights, so that both sides
    can work at the same time where they are apart.

    With ``depth`` d the embeddings of step t come from the weights after the backward of step
    t - d, whenever that is done: what is computed does not depend on who is faster. So d steps are
    under way at once, but for the first d - 1 after a break and the last ones before it. Where the
    batches end nothing is under way.
    """
    under_way: deque[tuple[Rows, list[Embedding]]] = deque()
    for step, rows in enumerate(batches, start=first):
        embeddings = [party.forward(step, rows) for party in features]
        label.offer(embeddings)
        under_way.append((rows, embeddings))
        if len(under_way) == depth:
            yield _finish(*under_way.popleft(), features=features, label=label)
    while under_way:
        yield _finish(*under_way.popleft(), features=features, label=label)


def _finish(
    rows: Rows, embeddings: list[Embedding], *, features: Sequence[FeatureEnd], label: LabelEnd
) -> Step:
    """Take a step whose embeddings are there: release, backward, update."""
    gradients = label.step(rows, embeddings)
    for party, gradient in zip(features, gradients, strict=True):
        party.backward(gradient)
    return Step(step=embeddings[0].step, loss=label.update())


def predict(
    rows: Rows, *, features: Sequence[FeatureEnd], label: LabelEnd, batch_size: int = 8192
) -> Tensor:
    """Return the predicted probabilities of some examples, in their order."""
    parts = [
        label.predict(part, [party.embed(part) for party in features])
        for part in torch.split(rows, batch_size)
    ]
    return torch.cat(parts)
