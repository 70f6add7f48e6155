"""Training by epochs that goes on where it was interrupted, with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tacit.errors import InputError
from tacit.pretrain.base import generator
from tacit.pretrain.progress import FitProgress, State
from tacit.rng import Key

BatchLoss: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""The loss of the rows with these numbers; what is random in it is drawn from the generator."""

_DONE = "epochs_done"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@final
@dataclass(frozen=True, kw_only=True)
class Epochs:
    """How long and how fast: AdamW, a rate that falls to 0 along a cosine, batches of equal size.

    Each epoch draws from a generator of its own, keyed by its number, so that an epoch needs
    nothing of those before it but the weights and the optimizer's moments.
    """

    purpose: str
    epochs: int
    steps: int
    rate: float
    weight_decay: float

    @torch.enable_grad()
    def train(
        self, model: nn.Module, loss: BatchLoss, *, rows: int, key: Key, progress: FitProgress
    ) -> None:
        """Train the model, from the epoch on that was saved last."""
        optimizer = AdamW(model.parameters(), lr=self.rate, weight_decay=self.weight_decay)
        first = _resume(model, optimizer, progress.resume())
        if first:
            progress(first, self.epochs)
        for epoch in range(first, self.epochs):
            draws = generator(key, self.purpose, epoch)
            for group in optimizer.param_groups:
                group["lr"] = self.rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            for batch in torch.randperm(rows, generator=draws).tensor_split(self.steps):
                value = loss(batch, draws)
                optimizer.zero_grad(set_to_none=True)
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            done = epoch + 1
            progress.keep(partial(_tensors, model, optimizer, done), done)
            progress(done, self.epochs)


def _tensors(model: nn.Module, optimizer: AdamW, done: int) -> State:
    """Return copies of the weights and of the optimizer's moments."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": tensor for name, tensor in moments.items()}
    copies = {name: tensor.detach().clone() for name, tensor in found.items()}
    return {**copies, _DONE: torch.tensor(done)}


def _resume(model: nn.Module, optimizer: AdamW, saved: State) -> int:
    """Take what was saved, and return how many epochs are done."""
    if not saved:
        return 0
    weights = {name: saved.get(f"model.{name}") for name in model.state_dict()}
    moments = {
        number: {moment: saved.get(f"optimizer.{number}.{moment}") for moment in _MOMENTS}
        for number, _ in enumerate(model.parameters())
    }
    done = saved.get(_DONE)
    found = [*weights.values(), *(part for each in moments.values() for part in each.values())]
    if done is None or any(part is None for part in found):
        raise InputError("the kept tensors are not complete: delete them to start anew")
    model.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return int(done)
