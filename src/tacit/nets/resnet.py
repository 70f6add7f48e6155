"""A residual net for small colour images."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import final

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu

from tacit.nets.base import MODELS
from tacit.nets.conv import DenseBlock
from tacit.nets.image import Block, ImageStacked, Shape
from tacit.nets.initial_weights import Init, WeightDraws, convolution
from tacit.spec import require

_GROUPS = 8


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(_GROUPS, channels), channels)


@final
class _StemModule(nn.Module):
    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.norm = _norm(conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, channels, height, width]``."""
        return relu(self.norm(self.conv(x)))


@final
@dataclass(frozen=True)
class Stem(Block):
    """The first convolution: 3 x 3, normalised, with a ReLU."""

    channels: int

    def shape(self, inputs: Shape) -> Shape:
        """Return what becomes of the shape of one image."""
        return self.channels, *inputs[1:]

    def module(self, inputs: Shape, draws: WeightDraws, init: Init) -> nn.Module:
        """Return the layer with fresh weights."""
        return _StemModule(convolution(inputs[0], self.channels, draws, init=init, bias=False))


@final
class _ResidualModule(nn.Module):
    """A residual block.

    ``way``, the shortcut, is a 1 x 1 convolution of stride 1 over every ``stride``-th pixel, which
    is what a strided one computes. Strided itself, with a batch in ``channels_last`` and fewer than
    8 channels, oneDNN's AVX2 kernel (torch 2.13.0) writes past its buffer in the backward pass.
    """

    def __init__(
        self, first: nn.Conv2d, second: nn.Conv2d, way: nn.Conv2d | None, *, pool: bool
    ) -> None:
        super().__init__()
        self.first, self.second, self.way = first, second, way
        self.norms = nn.ModuleList(_norm(first.out_channels) for _ in range(2))
        self.stride = first.stride[0]
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, channels, height, width]``."""
        out = relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(out))
        if self.way is not None:
            x = self.way(x[:, :, :: self.stride, :: self.stride])
        out = relu(out + x)
        return adaptive_avg_pool2d(out, 1) if self.pool else out


@final
@dataclass(frozen=True)
class Residual(Block):
    """``relu(x + conv(relu(conv(x))))``, both normalised; ``stride=2`` halves the size.

    Where the shape changes, a 1 x 1 convolution takes the place of ``x``. With ``pool``, the mean
    over the image follows.
    """

    channels: int
    stride: int = 1
    pool: bool = False

    def shape(self, inputs: Shape) -> Shape:
        """Return what becomes of the shape of one image."""
        if self.pool:
            return self.channels, 1, 1
        height, width = (-(-side // self.stride) for side in inputs[1:])
        return self.channels, height, width

    def module(self, inputs: Shape, draws: WeightDraws, init: Init) -> nn.Module:
        """Return the layer with fresh weights."""
        wide, step = self.channels, self.stride
        first = convolution(inputs[0], wide, draws, init=init, bias=False, stride=step)
        second = convolution(wide, wide, draws, init=init, bias=False)
        same = step == 1 and inputs[0] == wide
        way = None if same else convolution(inputs[0], wide, draws, init=init, bias=False, kernel=1)
        return _ResidualModule(first, second, way, pool=self.pool)


@final
@MODELS.register("resnet")
@dataclass(frozen=True)
class ResNet(ImageStacked):
    """ExPLOit's residual net on CIFAR: a convolution, three groups of residual blocks, two dense.

    ``config=1``: ``Conv-Res x 3 | FC x 2``; ``config=2``: ``Conv-Res x 2 | Res-FC x 2``. With three
    blocks of two convolutions a group there are 1 + 18 + 2 = 21 layers. The groups have
    ``channels``, twice and four times as many outputs, and the mean over the image ends the last:
    the cuts are 64 and 32 x 16 x 16 = 8,192 wide at 32 x 32. Each residual block is a layer to cut
    after: ``cut=1`` is the first convolution, ``cut=10`` the last block.

    References:
        ExPLOit (Kariyappa and Qureshi), section 5.1 and Table 1, which name 21 layers and the
        groups; widths and blocks are those of He et al. 2016, section 4.2.

    Values are normalised over groups of channels of one image, not over the batch: the gradient of
    an example then depends on its own label alone, and predicting changes nothing.

    >>> [MODELS.get(f"resnet(config={k})").cut_shape() for k in (1, 2)]
    [(64, 1, 1), (32, 16, 16)]
    """

    config: int = 1
    blocks_each: int = 3
    channels: int = 16
    hidden: int = 64
    size: int = 32
    colours: int = 3

    def __post_init__(self) -> None:
        require(self.config in (1, 2), "resnet: config must be 1 or 2", self.config)
        require(self.blocks_each >= 1, "resnet: blocks_each must be at least 1", self.blocks_each)
        require(self.channels >= 1, "resnet: channels must be at least 1", self.channels)
        require(self.hidden >= 1, "resnet: hidden must be at least 1", self.hidden)
        require(self.size >= 4, "resnet: size must be at least 4", self.size)
        require(self.colours >= 1, "resnet: colours must be at least 1", self.colours)

    @property
    def image(self) -> Shape:
        """The images that it takes."""
        return self.colours, self.size, self.size

    @property
    def published_cut(self) -> int:
        """After the third group, or the second."""
        return 1 + (4 - self.config) * self.blocks_each

    def blocks(self) -> tuple[Block, ...]:
        """Return the first convolution, three groups and a dense layer."""
        count = 3 * self.blocks_each
        residual = (
            Residual(
                self.channels << at // self.blocks_each,
                stride=2 if at and at % self.blocks_each == 0 else 1,
                pool=at == count - 1,
            )
            for at in range(count)
        )
        return Stem(self.channels), *residual, DenseBlock(self.hidden)

    def last(self, logits: int) -> Block:
        """Return the layer that makes logits."""
        return DenseBlock(logits, active=False)
