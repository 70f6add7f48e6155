"""A small network as a learner: what it finds is added to what a regression has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from tacit.attack._learners import Floats, Learned, Lesson, cross_entropy, learn_quadratic, tuned

__all__ = ["learn_mlp"]

_HIDDEN = 64
_EPOCHS, _PATIENCE, _UNCHECKED_EPOCHS = 100, 12, 10
_BATCH, _RATE, _DECAY, _GAIN = 256, 5e-3, 1.0, 0.5
_WORTHWHILE = 1e-4  # a smaller fall of the loss is no reason to go on


def learn_mlp(lesson: Lesson, rng: torch.Generator) -> Learned:
    """Fit a network of two hidden layers, stopped where the loss on the rows kept back is least.

    It learns what the regression leaves: its own output is added to the regression's. Where there
    is no more to learn, the regression stays as it is.
    """
    if not lesson.features.shape[1]:
        return learn_quadratic(lesson, rng)
    _, start = tuned(lesson)
    network = _Network(lesson.features.shape[1], lesson.count, rng)
    if lesson.check.any():
        _stop_early(network, lesson, start)
    else:
        rows = _Given.of(lesson.features, start)
        for _ in range(_UNCHECKED_EPOCHS):
            network.epoch(rows, torch.from_numpy(lesson.classes))

    def logits(rows: Floats) -> Floats:
        found: Floats = network(_Given.of(rows, start)).numpy()
        return found

    return Learned(checked=logits(lesson.features[lesson.check]), logits=logits)


def _stop_early(network: _Network, lesson: Lesson, start: Callable[[Floats], Floats]) -> None:
    """Train until the loss on the rows kept back has not fallen for a while, and go back there."""
    rows, spare = (_Given.of(lesson.features[m], start) for m in (~lesson.check, lesson.check))
    classes, truth = torch.from_numpy(lesson.classes[~lesson.check]), lesson.classes[lesson.check]
    best, since, kept = cross_entropy(network(spare).numpy(), truth), 0, network.copied()
    for _ in range(_EPOCHS):
        network.epoch(rows, classes)
        loss = cross_entropy(network(spare).numpy(), truth)
        since += 1
        if loss < best - _WORTHWHILE:
            best, since, kept = loss, 0, network.copied()
        if since == _PATIENCE:
            break
    network.restore(kept)


@final
class _Given(NamedTuple):
    """Rows for a network: their features, and the logits that it adds its own to."""

    features: Tensor
    logits: Tensor

    @classmethod
    def of(cls, features: Floats, start: Callable[[Floats], Floats]) -> _Given:
        return cls(torch.from_numpy(features), torch.from_numpy(start(features)))


@final
class _Network:
    """Two hidden layers and an optimiser, drawn from a generator of its own; at first it says 0.

    In ``float64``: rounding grows with every step, and scores must not depend on the order of rows
    or on their unit.
    """

    def __init__(self, inputs: int, outputs: int, rng: torch.Generator) -> None:
        self._rng = rng
        self._weights: list[Tensor] = []
        for fan, width in ((inputs, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, outputs)):
            drawn = torch.randn(fan, width, generator=rng, dtype=torch.float64)
            self._weights += [drawn * (_GAIN / max(1, fan)) ** 0.5, torch.zeros(width).double()]
        self._weights[-2].zero_()
        for weight in self._weights:
            weight.requires_grad_()
        self._optimiser = torch.optim.AdamW(self._weights, lr=_RATE, weight_decay=_DECAY)

    def __call__(self, rows: _Given) -> Tensor:
        with torch.no_grad():
            return self._forward(rows)

    def epoch(self, rows: _Given, classes: Tensor) -> None:
        """Take one step for each batch of the rows, in a new order."""
        order = torch.randperm(len(classes), generator=self._rng)
        for batch in torch.split(order, max(1, min(_BATCH, len(order) // 4))):
            with torch.enable_grad():
                found = self._forward(_Given(rows.features[batch], rows.logits[batch]))
                loss = functional.cross_entropy(found, classes[batch])
                self._optimiser.zero_grad()
                torch.autograd.backward(loss)
            self._optimiser.step()

    def copied(self) -> list[Tensor]:
        """Return a copy of the weights."""
        return [weight.detach().clone() for weight in self._weights]

    def restore(self, weights: list[Tensor]) -> None:
        """Go back to copied weights."""
        with torch.no_grad():
            for weight, kept in zip(self._weights, weights, strict=True):
                weight.copy_(kept)

    def _forward(self, rows: _Given) -> Tensor:
        first, bias_1, second, bias_2, last, bias_3 = self._weights
        hidden = torch.relu(torch.addmm(bias_1, rows.features, first))
        hidden = torch.relu(torch.addmm(bias_2, hidden, second))
        return rows.logits + torch.addmm(bias_3, hidden, last)
