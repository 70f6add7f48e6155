"""First weights of any module out of a 256-bit key, distributed as torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from tacit.errors import InputError
from tacit.nets.initial import Draws
from tacit.rng import Key

__all__ = ["initialise"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def initialise(module: nn.Module, *, key: bytes | None = None) -> nn.Module:
    """Draw every parameter of a module anew, in place, and return the module.

    For a top model that was written by hand: torch draws first weights from a generator that keeps
    32 bits of its seed, so they can be searched. Each layer has its default distribution in torch;
    the name of a layer decides which numbers it gets, so the same key gives the same weights.
    torch's generators have no part in it.

    Args:
        module: of dense, convolutional, embedding and normalising layers; any other that holds
            parameters of its own is refused by name, before anything is changed.
        key: 32 bytes; fresh from the operating system by default. That of a guard will do: the
            weights and its noise are independent.

    >>> top = initialise(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)))
    >>> bool(top[0].weight.abs().max() <= 32**-0.5)
    True
    """
    root = Key.fresh() if key is None else Key(key)
    found = []
    for name, layer in module.named_modules():
        own = {n for n, _ in layer.named_parameters(recurse=False)}
        if own:
            found.append((name, layer, _way(name, layer, own)))
    with torch.no_grad():
        for name, layer, draw in found:
            draw(layer, Draws(root, "module", name))
    return module


def _way(name: str, layer: nn.Module, own: set[str]) -> Callable[[nn.Module, Draws], None]:
    """Return what draws the parameters of a layer, or refuse a layer that is not known."""
    known = own <= {"weight", "bias"}
    if known and isinstance(layer, (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)):
        return _draw_dense
    if known and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return _draw_rows
    if known and isinstance(layer, _NORMS):
        return _draw_nothing
    raise InputError(
        f"{type(layer).__name__} {name!r} holds {', '.join(sorted(own))}, and how torch starts it "
        "is not known here: initialise takes dense, convolutional, embedding and normalising "
        "layers; draw its first weights from secrets of your own"
    )


def _draw_dense(layer: nn.Module, draws: Draws) -> None:
    """Return ``U(-1, 1) / sqrt(fan in)``, as torch has it for dense layers and convolutions."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, nn.Parameter)  # noqa: S101 - the layer's type says so
    bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
    weight.copy_(draws.uniform(*weight.shape) * bound)
    if isinstance(bias, nn.Parameter):
        bias.copy_(draws.uniform(*bias.shape) * bound)


def _draw_rows(layer: nn.Module, draws: Draws) -> None:
    """Return ``N(0, 1)``, and zero for padding."""
    assert isinstance(layer, nn.Embedding | nn.EmbeddingBag)  # noqa: S101 - the caller has looked
    layer.weight.copy_(draws.normal(*layer.weight.shape))
    if layer.padding_idx is not None:
        layer.weight[layer.padding_idx].zero_()


def _draw_nothing(layer: nn.Module, _: Draws) -> None:
    """Return ones and zeros."""
    layer.reset_parameters()  # type: ignore[operator]
