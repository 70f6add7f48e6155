"""Architectures over images: a stack of blocks, cut after any of them.

An image arrives as a row of pixels ``[B, n]``, one channel after the other, and the embedding
leaves as a row ``[B, width]``: between the parties there are rows only, whatever the shape inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets.base import Architecture, Inputs, logit_count
from tacit.nets.initial_weights import Init, Seed, WeightDraws, draws_at
from tacit.nets.stack import Layer, Own, Stack, refuse_columns
from tacit.spec import require

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width."""

_PIECE = 256
_OWN = Stack(hidden=(Layer(1),), published_cut=1, embedding=1, wide=True)


class Block(ABC):
    """A layer over images before it has weights."""

    @abstractmethod
    def shape(self, inputs: Shape) -> Shape:
        """Return what becomes of the shape of one image."""

    @abstractmethod
    def module(self, inputs: Shape, draws: WeightDraws, init: Init) -> nn.Module:
        """Return the layer with fresh weights, for inputs ``[B, channels, height, width]``."""


def _shape(image: Shape, blocks: Sequence[Block]) -> Shape:
    return reduce(lambda shape, block: block.shape(shape), blocks, image)


def _modules(
    blocks: Sequence[Block], shape: Shape, *, first: int, seed: Seed, party: int, init: Init
) -> nn.ModuleList:
    """Return the layers of some blocks; their numbers in the whole decide about the weights."""
    modules = nn.ModuleList()
    for number, block in enumerate(blocks, start=first):
        modules.append(block.module(shape, draws_at(seed, "layer", number, party), init))
        shape = block.shape(shape)
    return modules


def _through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Return ``[B, width]``; without gradients in pieces, which bounds the memory for pixels."""
    if len(x) > _PIECE and not torch.is_grad_enabled():
        return torch.cat([_through(layers, piece) for piece in torch.split(x, _PIECE)])
    x = x.contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
    for layer in layers:
        x = layer(x)
    return x.flatten(1)


@final
class ImageBottom(nn.Module):
    """A feature party's part: its images through the blocks before the cut.

    ``shape`` is that of an embedding before it becomes a row.
    """

    def __init__(
        self, image: Shape, blocks: Sequence[Block], *, seed: Seed, party: int, init: Init
    ) -> None:
        super().__init__()
        self.image = image
        self.shape = _shape(image, blocks)
        self.width = prod(self.shape)
        self.layers = _modules(blocks, image, first=1, seed=seed, party=party, init=init)

    def forward(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None = None,
        *,
        check: bool = False,  # noqa: ARG002 - there are no categories to check
    ) -> Tensor:
        """Return the embedding ``[B, width]``."""
        pixels = prod(self.image)
        if numeric is None or numeric.shape[1:] != (pixels,):
            got = None if numeric is None else tuple(numeric.shape)
            raise InputError(f"numeric must be [batch, {pixels}], a pixel a column, got {got}")
        if categorical is not None and categorical.shape[1:].numel():
            raise InputError(
                f"a model of images takes no categories, got {tuple(categorical.shape)}"
            )
        return _through(self.layers, numeric.reshape(-1, *self.image))


@final
class ImageTop(nn.Module):
    """The label party's part: the blocks after the cut, then the layer that makes logits.

    The label party's own columns, if any, are added to the logits as a linear function.
    """

    def __init__(
        self,
        shape: Shape,
        blocks: Sequence[Block],
        *,
        last: Block,
        own: Inputs | None,
        first: int,
        classes: int,
        seed: Seed,
        init: Init,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.single = classes == 2
        self.layers = _modules([*blocks, last], shape, first=first, seed=seed, party=0, init=init)
        logits = logit_count(classes)
        self.own = Own(own, _OWN, logits, seed=seed) if own and own.columns else None

    def forward(
        self,
        z: Tensor,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
        *,
        check: bool = False,
    ) -> Tensor:
        """Return logits, ``[B]`` for two classes and ``[B, classes]`` for more."""
        logits = _through(self.layers, z.reshape(-1, *self.shape))
        if self.own is None:
            refuse_columns(numeric, categorical)
        else:
            logits = logits + self.own(numeric, categorical, check=check)
        return logits.squeeze(1) if self.single else logits


class ImageStacked(Architecture, ABC):
    """An architecture that is a stack of blocks over images of one size."""

    init: ClassVar[Init] = "torch"

    @property
    @abstractmethod
    def image(self) -> Shape:
        """The images that it takes."""

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """Return every block but the one that makes logits."""

    @abstractmethod
    def last(self, logits: int) -> Block:
        """Return the block that makes logits."""

    @final
    @property
    def depth(self) -> int:
        """How many layers there are before the one that makes logits: the largest cut."""
        return len(self.blocks())

    @final
    def cut_shape(self, cut: int | None = None) -> Shape:
        """Return the shape of one example's embedding at this cut, before it becomes a row."""
        return _shape(self.image, self.blocks()[: self.resolve(cut)])

    @final
    def cut_width(self, *, cut: int | None, classes: int) -> int:  # noqa: ARG002 - not by classes
        """Return the width of one party's embedding at this cut."""
        return prod(self.cut_shape(cut))

    @final
    def bottom(
        self,
        inputs: Inputs,
        *,
        cut: int | None,
        classes: int,  # noqa: ARG002 - no layer before the cut depends on them
        seed: Seed,
        party: int = 0,
    ) -> nn.Module:
        """Return the part of one feature party alone."""
        shown = "x".join(map(str, self.image))
        given = inputs.image or (self.image if inputs.numeric == prod(self.image) else None)
        if given != self.image or inputs.cardinalities:
            got = (
                f"{inputs.columns} columns: use one feature party, or mlp, which takes any columns"
                if given is None or inputs.cardinalities
                else f"images of {'x'.join(map(str, given))}: set size= and colours= of the model"
            )
            raise InputError(f"{self} takes whole images of {shown}, party {party} has {got}")
        chosen = self.blocks()[: self.resolve(cut)]
        return ImageBottom(self.image, chosen, seed=seed, party=party, init=self.init)

    @final
    def top(
        self, width: int, *, own: Inputs | None, cut: int | None, classes: int, seed: Seed
    ) -> nn.Module:
        """Return the label party's part alone; embeddings side by side are more channels."""
        _, height, across = self.cut_shape(cut)
        require(
            width % (height * across) == 0,
            f"{self}: the width of a cut must be a multiple of {height} x {across}",
            width,
        )
        place = self.resolve(cut)
        return ImageTop(
            (width // (height * across), height, across),
            self.blocks()[place:],
            last=self.last(logit_count(classes)),
            own=own,
            first=place + 1,
            classes=classes,
            seed=seed,
            init=self.init,
        )
