"""Convolutional nets: the one of the Marvell paper on ISIC, and ExPLOit's on MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, final

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from tacit.nets.base import MODELS
from tacit.nets.image import Block, ImageStacked, Shape
from tacit.nets.initial_weights import Init, WeightDraws, convolution, linear
from tacit.spec import require


@final
class _ConvModule(nn.Module):
    """A convolution, a pool of 2 x 2 if asked for, and a ReLU.

    The maximum and the ReLU commute, in value and in gradient; pooling first saves three quarters
    of the ReLU's work.
    """

    def __init__(self, conv: nn.Conv2d, *, pool: bool) -> None:
        super().__init__()
        self.conv = conv
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, channels, height, width]``."""
        out: Tensor = self.conv(x)
        return relu(max_pool2d(out, 2) if self.pool else out)


@final
@dataclass(frozen=True)
class Conv(Block):
    """A 3 x 3 convolution that keeps the size, a ReLU, and a pool that halves it."""

    channels: int
    pool: bool = False

    def shape(self, inputs: Shape) -> Shape:
        """Return what becomes of the shape of one image."""
        _, height, width = inputs
        shrink = 2 if self.pool else 1
        return self.channels, height // shrink, width // shrink

    def module(self, inputs: Shape, draws: WeightDraws, init: Init) -> nn.Module:
        """Return the layer with fresh weights."""
        return _ConvModule(convolution(inputs[0], self.channels, draws, init=init), pool=self.pool)


@final
class _DenseModule(nn.Module):
    """A linear function of all values of an image, and a ReLU if asked for."""

    def __init__(self, linear: nn.Linear, *, active: bool) -> None:
        super().__init__()
        self.linear = linear
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, units, 1, 1]``."""
        out: Tensor = self.linear(x.flatten(1))
        return (relu(out) if self.active else out)[:, :, None, None]


@final
@dataclass(frozen=True)
class DenseBlock(Block):
    """A fully connected layer over all values of an image."""

    units: int
    active: bool = True

    def shape(self, inputs: Shape) -> Shape:  # noqa: ARG002 - whatever comes in
        """Return the units as channels of one pixel."""
        return self.units, 1, 1

    def module(self, inputs: Shape, draws: WeightDraws, init: Init) -> nn.Module:
        """Return the layer with fresh weights."""
        return _DenseModule(linear(prod(inputs), self.units, draws, init=init), active=self.active)


@final
@MODELS.register("isic_conv")
@dataclass(frozen=True)
class IsicConv(ImageStacked):
    """The Marvell paper's net on ISIC: six convolutions of 64 channels, each pooled, two dense.

    ``[conv 3x3, ReLU, pool 2x2] x 6, FC(64), ReLU, logit``; at 84 x 84 the default cut, after the
    fourth pool, is 64 x 5 x 5 = 1,600 wide.

    References:
        Li et al., ICLR 2022, appendix A.6.2 and Table 1. The paper measures layers before the cut
        after their ReLU, here after their pool: the pool passes each value's gradient to one
        place, so norms are the same.

    Weights start with Glorot's distribution and biases at zero, as in ``wdl``.

    >>> MODELS.get("isic_conv").cut_shape()
    (64, 5, 5)
    """

    init: ClassVar[Init] = "glorot"
    channels: int = 64
    hidden: int = 64
    size: int = 84
    colours: int = 3

    def __post_init__(self) -> None:
        require(self.channels >= 1, "isic_conv: channels must be at least 1", self.channels)
        require(self.hidden >= 1, "isic_conv: hidden must be at least 1", self.hidden)
        require(self.size >= 64, "isic_conv: size must be at least 64, for six pools", self.size)
        require(self.colours >= 1, "isic_conv: colours must be at least 1", self.colours)

    @property
    def image(self) -> Shape:
        """The images that it takes."""
        return self.colours, self.size, self.size

    @property
    def published_cut(self) -> int:
        """After the fourth pool."""
        return 4

    def blocks(self) -> tuple[Block, ...]:
        """Return six convolutions and a dense layer."""
        return *(Conv(self.channels, pool=True),) * 6, DenseBlock(self.hidden)

    def last(self, logits: int) -> Block:
        """Return the layer that makes logits."""
        return DenseBlock(logits, active=False)


@final
@MODELS.register("mnist_conv")
@dataclass(frozen=True)
class MnistConv(ImageStacked):
    """ExPLOit's net on MNIST and Fashion-MNIST: four convolutions and two dense layers.

    ``config=1``: ``Conv x 4 | FC x 2``; ``config=2``: ``Conv x 3 | Conv-FC x 2``.

    References:
        ExPLOit (Kariyappa and Qureshi), section 5.1 and Table 1.

    The paper gives no widths. Here the convolutions are 3 x 3 with ``channels`` (twice) and twice
    as many (twice) outputs and a ReLU, the first three followed by a pool: both cuts are 64 x 3 x 3
    = 576 wide at 28 x 28. The dense layer has ``hidden`` units.

    >>> [MODELS.get(f"mnist_conv(config={k})").cut_shape() for k in (1, 2)]
    [(64, 3, 3), (64, 3, 3)]
    """

    config: int = 1
    channels: int = 32
    hidden: int = 128
    size: int = 28
    colours: int = 1

    def __post_init__(self) -> None:
        require(self.config in (1, 2), "mnist_conv: config must be 1 or 2", self.config)
        require(self.channels >= 1, "mnist_conv: channels must be at least 1", self.channels)
        require(self.hidden >= 1, "mnist_conv: hidden must be at least 1", self.hidden)
        require(self.size >= 8, "mnist_conv: size must be at least 8, for three pools", self.size)
        require(self.colours >= 1, "mnist_conv: colours must be at least 1", self.colours)

    @property
    def image(self) -> Shape:
        """The images that it takes."""
        return self.colours, self.size, self.size

    @property
    def published_cut(self) -> int:
        """After the last convolution, or the one before it."""
        return 5 - self.config

    def blocks(self) -> tuple[Block, ...]:
        """Return four convolutions and a dense layer."""
        few, many = self.channels, 2 * self.channels
        pooled = (Conv(width, pool=True) for width in (few, few, many))
        return *pooled, Conv(many), DenseBlock(self.hidden)

    def last(self, logits: int) -> Block:
        """Return the layer that makes logits."""
        return DenseBlock(logits, active=False)
