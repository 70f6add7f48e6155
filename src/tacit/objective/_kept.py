"""Weights and the state of their optimiser as they were, to go back to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

__all__ = ["Kept"]


@final
class Kept:
    """A copy of models and optimisers at one moment.

    >>> model = nn.Linear(1, 1)
    >>> kept = Kept([model], [])
    >>> _ = model.weight.data.fill_(7.0)
    >>> kept.restore()
    >>> bool((model.weight == 7).any())
    False
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._values: list[tuple[Tensor, Tensor]] = [
            (value, value.detach().clone())
            for model in models
            for value in (*model.parameters(), *model.buffers())
        ]
        self._optimizers = optimizers
        self._fresh = [not optimizer.state for optimizer in optimizers]
        self._values += [
            (value, value.clone())
            for optimizer in optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]

    def restore(self) -> None:
        """Put everything back where it was."""
        with torch.no_grad():
            for value, before in self._values:
                value.copy_(before)
        for optimizer, fresh in zip(self._optimizers, self._fresh, strict=True):
            if fresh:
                optimizer.state.clear()
