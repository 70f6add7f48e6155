"""Initial weights that depend on a key and a position in the model, and on nothing else.

Every layer draws from a sequence of its own, derived from a 256-bit key and the layer's position.
So a layer starts the same on whichever side of the cut it lies, whoever builds it and in whatever
order, on every processor, and torch's generators have no part in it: they keep 32 bits of a seed,
so whoever can test a guess of the top model's first weights could search them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.rng import Key

Init: TypeAlias = Literal["torch", "glorot"]
Seed: TypeAlias = int | Key
"""A secret key, or the seed of an experiment, which is only as secret as it is."""


@final
class WeightDraws:
    """The random numbers of one position in a model: AES in counter mode under its own key.

    >>> WeightDraws(Key.from_seed(7), "layer", 1).uniform(2, 3).shape
    torch.Size([2, 3])
    """

    def __init__(self, key: Key, *place: int | str) -> None:
        name = repr(place).encode()
        halves = (key.digest(b"first weights 0" + name), key.digest(b"first weights 1" + name))
        self._cipher = Cipher(algorithms.AES(b"".join(halves)), modes.CTR(bytes(16))).encryptor()
        self._normals = key.stream("first weights", *place)

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers of (-1, 1) as ``float64``: odd multiples of 2^-53, without rounding."""
        count = math.prod(shape)
        words = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 + (2.0**-53 - 1)
        return torch.from_numpy(numbers).view(shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normals as ``float64``."""
        return self._normals.normal(*shape).to(torch.float64)


def draws_at(seed: Seed, *place: int | str) -> WeightDraws:
    """Return the draws of one position in the model; every bit of a seed counts.

    >>> a, b = draws_at(7, "layer", 1), draws_at(7 + 2**32, "layer", 1)
    >>> bool(torch.equal(a.uniform(3), b.uniform(3)))
    False
    """
    return WeightDraws(seed if isinstance(seed, Key) else Key.from_seed(seed), *place)


def linear(
    inputs: int,
    outputs: int,
    draws: WeightDraws,
    *,
    bias: bool = True,
    init: Init = "torch",
) -> nn.Linear:
    """Return a linear layer with fresh weights.

    ``torch``: weights and bias ``U(-1, 1) / sqrt(inputs)``, what ``nn.Linear`` does by itself.
    ``glorot``: weights ``U(-1, 1) * sqrt(6 / (inputs + outputs))``, bias zero.

    >>> linear(4, 2, draws_at(0), init="glorot").bias.tolist()
    [0.0, 0.0]
    """
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    _fill(layer.weight, layer.bias if bias else None, (inputs, outputs), draws, init)
    return layer


def convolution(
    inputs: int,
    outputs: int,
    draws: WeightDraws,
    *,
    kernel: int = 3,
    stride: int = 1,
    bias: bool = True,
    init: Init = "torch",
) -> nn.Conv2d:
    """Return a convolution that keeps the size (at stride 1) with fresh weights.

    As in :func:`linear`, where ``inputs`` and ``outputs`` are channels times the kernel's area.

    >>> convolution(3, 8, draws_at(0))(torch.zeros(1, 3, 5, 5)).shape
    torch.Size([1, 8, 5, 5])
    """
    layer = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias, device="meta"
    ).to_empty(device="cpu")
    area = kernel * kernel
    fans = inputs * area, outputs * area
    _fill(layer.weight, layer.bias if bias else None, fans, draws, init)
    return layer


def _fill(
    weight: Tensor, bias: Tensor | None, fans: tuple[int, int], draws: WeightDraws, init: Init
) -> None:
    bound = math.sqrt(6 / sum(fans)) if init == "glorot" else 1 / math.sqrt(fans[0])
    with torch.no_grad():
        weight.copy_(draws.uniform(*weight.shape) * bound)
        if bias is not None and init == "glorot":
            bias.zero_()
        elif bias is not None:
            bias.copy_(draws.uniform(*bias.shape) * bound)


def table(cardinalities: Sequence[int], dim: int, draws: WeightDraws) -> nn.Embedding:
    """Return the tables of several columns below each other, each with Glorot's distribution.

    ``U(-1, 1) * sqrt(6 / (cardinality + dim))`` for the rows of one column: the more values a
    column has, the rarer each is and the smaller it starts.

    References:
        Glorot and Bengio 2010, Eq. 16; the Marvell authors' released code starts its embeddings
        so. torch's own ``N(0, 1)`` starts them so large that rare values never recover: on
        a Criteo sample (90,000 rows, 316,191 categories) Wide & Deep with the published optimiser
        had a test AUC of 0.64 after 5 epochs with it, and 0.72 with this.

    >>> table((5, 2), 3, draws_at(0)).weight.shape
    torch.Size([7, 3])
    """
    sizes = torch.tensor(cardinalities, device="cpu")
    bound = torch.sqrt(6 / (sizes + dim).double()).repeat_interleave(sizes).unsqueeze(1)
    weight = (draws.uniform(len(bound), dim) * bound).float()
    return nn.Embedding(len(bound), dim, _weight=weight)


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
            draw(layer, WeightDraws(root, "module", name))
    return module


def _way(name: str, layer: nn.Module, own: set[str]) -> Callable[[nn.Module, WeightDraws], None]:
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


def _draw_dense(layer: nn.Module, draws: WeightDraws) -> None:
    """Return ``U(-1, 1) / sqrt(fan in)``, as torch has it for dense layers and convolutions."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, nn.Parameter)  # noqa: S101 - the layer's type says so
    bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
    weight.copy_(draws.uniform(*weight.shape) * bound)
    if isinstance(bias, nn.Parameter):
        bias.copy_(draws.uniform(*bias.shape) * bound)


def _draw_rows(layer: nn.Module, draws: WeightDraws) -> None:
    """Return ``N(0, 1)``, and zero for padding."""
    assert isinstance(layer, nn.Embedding | nn.EmbeddingBag)  # noqa: S101 - the caller has looked
    layer.weight.copy_(draws.normal(*layer.weight.shape))
    if layer.padding_idx is not None:
        layer.weight[layer.padding_idx].zero_()


def _draw_nothing(layer: nn.Module, _: WeightDraws) -> None:
    """Return ones and zeros."""
    layer.reset_parameters()  # type: ignore[operator]
