"""Semi-supervised learning on embeddings: a few labelled rows, many without a label."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional

from tacit.attack._replay import Adam
from tacit.attack._surrogate import Surrogate

__all__ = ["MixMatch", "mix_match"]

_BATCH: Final = 128
_RATE: Final = 2e-3
_KEEP: Final = 0.99  # of the averaged weights per step


@final
@dataclass(frozen=True, kw_only=True)
class MixMatch:
    """The settings, as the model completion attack has them.

    Attributes:
        temperature: guessed labels are sharpened to the power of its inverse.
        weight: of the loss on rows without a label, reached at the end of training.
        alpha: mixing shares are drawn from ``Beta(alpha, alpha)``.
        epochs: passes over the rows without a label.
    """

    temperature: float = 0.8
    weight: float = 50.0
    alpha: float = 0.5
    epochs: int = 100


def mix_match(
    net: Surrogate,
    labelled: tuple[Tensor, Tensor],
    rows: Tensor,
    *,
    settings: MixMatch,
    rng: torch.Generator,
    until: float | None,
) -> bool:
    """Train the network in place and leave it with averaged weights; return whether time ran out.

    Labels of other rows are guessed and sharpened, all rows are mixed with others, and the loss is
    cross-entropy on the labelled ones plus the squared error on the rest.
    """
    optimiser = Adam(net.parameters, _RATE)
    kept = [value.detach().clone() for value in net.parameters]
    late, done = False, 0
    total = settings.epochs * -(-len(rows) // _BATCH)
    for epoch in range(settings.epochs):
        for batch in torch.split(torch.randperm(len(rows), generator=rng), _BATCH):
            known = torch.randint(len(labelled[0]), (len(batch),), generator=rng)
            pair = labelled[0][known], labelled[1][known]
            with torch.enable_grad():
                ramp = settings.weight * done / total
                loss = _loss(net, pair, rows[batch], settings=settings, weight=ramp, rng=rng)
                grads = torch.autograd.grad(loss, net.parameters)
            optimiser.step(grads)
            done += 1
            keep = min(_KEEP, done / (done + 9))
            for old, value in zip(kept, net.parameters, strict=True):
                old.lerp_(value.detach(), 1 - keep)
        if until is not None and time.perf_counter() > until and epoch + 1 < settings.epochs:
            late = True
            break
    for old, value in zip(kept, net.parameters, strict=True):
        value.detach().copy_(old)
    return late


def _loss(
    net: Surrogate,
    labelled: tuple[Tensor, Tensor],
    rows: Tensor,
    *,
    settings: MixMatch,
    weight: float,
    rng: torch.Generator,
) -> Tensor:
    with torch.no_grad():
        guess = net.forward(rows)[0].div(settings.temperature).softmax(dim=1)
    inputs, targets = torch.cat([labelled[0], rows]), torch.cat([labelled[1], guess])
    other = torch.randperm(len(inputs), generator=rng)
    share = _beta(len(inputs), settings.alpha, rng)
    inputs = share * inputs + (1 - share) * inputs[other]
    targets = share * targets + (1 - share) * targets[other]
    chances = functional.log_softmax(net.forward(inputs)[0], dim=1)
    count = len(labelled[0])
    fit = -(targets[:count] * chances[:count]).sum(dim=1).mean()
    return fit + weight * functional.mse_loss(chances[count:].exp(), targets[count:])


def _beta(count: int, alpha: float, rng: torch.Generator) -> Tensor:
    """Return draws ``[count, 1]`` of ``max(b, 1 - b)`` with ``b`` from ``Beta(alpha, alpha)``.

    By Johnk's method: of two powers of uniforms whose sum is below one, the first one's share.
    """
    drawn = torch.rand(16, 2, count, generator=rng).pow(1 / alpha)
    fits = drawn.sum(dim=1) <= 1
    fits[-1] = True  # in one of a million rows: any draw will do
    first = fits.int().argmax(dim=0)
    pair = drawn[first, :, torch.arange(count)]
    share = pair[:, 0] / pair.sum(dim=1).clamp_min(1e-30)
    return torch.maximum(share, 1 - share).unsqueeze(1)
