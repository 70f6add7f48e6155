"""Architectures that are a stack of dense layers behind one party's columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, final

from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets.base import Architecture, Inputs, logit_count
from tacit.nets.embedding import FeatureEncoder
from tacit.nets.initial_weights import Init, Seed, WeightDraws, draws_at, linear
from tacit.spec import require

_ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
}


@final
@dataclass(frozen=True)
class Layer:
    """A dense layer before it has weights."""

    width: int
    activation: Literal["relu", "leaky_relu", "sigmoid", "none"] = "relu"


@final
@dataclass(frozen=True, kw_only=True)
class Stack:
    """A whole stack before it has weights.

    Attributes:
        hidden: every layer but the one that makes logits.
        published_cut: where the paper cuts it.
        embedding: the embedding size of categorical columns.
        wide: True adds the label party's own columns to the logits as a linear function with a
            bias and embeddings of size 1; False feeds them to the first layer after the cut.
        init: the distribution of the first weights.
        l2: the factor of a penalty on the embeddings of categorical columns.
    """

    hidden: tuple[Layer, ...]
    published_cut: int
    embedding: int
    wide: bool = False
    init: Init = "torch"
    l2: float = 0.0

    def numbered(self, inputs: int, first: int, last: int) -> Iterator[tuple[int, int, Layer]]:
        """Yield number, input width and layer of the layers ``first`` to ``last``, from 1 on."""
        for number in range(first, last + 1):
            layer = self.hidden[number - 1]
            yield number, inputs, layer
            inputs = layer.width


@final
class Dense(nn.Module):
    """A linear function, plus a given term if there is one, and an activation.

    ``out = activation(W x + b + extra)``

    >>> import torch
    >>> Dense(3, Layer(2), draws_at(0))(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self, inputs: int, layer: Layer, draws: WeightDraws, *, init: Init = "torch"
    ) -> None:
        super().__init__()
        self.linear = linear(inputs, layer.width, draws, init=init)
        self.activation = _ACTIVATIONS[layer.activation]()

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        """Return ``[B, width]``."""
        total = self.linear(x)
        out: Tensor = self.activation(total if extra is None else total + extra)
        return out


@final
class Bottom(nn.Module):
    """A feature party's part: its columns through the layers before the cut.

    >>> import torch
    >>> stack = Stack(hidden=(Layer(8), Layer(4)), published_cut=1, embedding=4)
    >>> Bottom(Inputs(3), stack, cut=2, seed=0, party=0)(torch.zeros(5, 3)).shape
    torch.Size([5, 4])
    """

    def __init__(self, inputs: Inputs, stack: Stack, *, cut: int, seed: Seed, party: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.width = stack.hidden[cut - 1].width
        self.features = FeatureEncoder(
            inputs, stack.embedding, draws=draws_at(seed, "embedding", party), l2=stack.l2
        )
        self.layers = nn.ModuleList(
            Dense(fan_in, layer, draws_at(seed, "layer", number, party), init=stack.init)
            for number, fan_in, layer in stack.numbered(self.features.width, 1, cut)
        )

    def forward(
        self, numeric: Tensor | None, categorical: Tensor | None = None, *, check: bool = False
    ) -> Tensor:
        """Return the embedding ``[B, width]``; ``check`` refuses unknown categories."""
        z: Tensor = self.features(numeric, categorical, check=check)
        for layer in self.layers:
            z = layer(z)
        return z


@final
class Own(nn.Module):
    """The label party's own columns as a linear term.

    ``out = V [embed(categorical), numeric]``, plus a bias in the wide part of Wide & Deep.

    >>> import torch
    >>> stack = Stack(hidden=(Layer(8),), published_cut=1, embedding=4, wide=True)
    >>> Own(Inputs(3), stack, 1, seed=0)(torch.zeros(5, 3), None).shape
    torch.Size([5, 1])
    """

    def __init__(self, inputs: Inputs, stack: Stack, width: int, *, seed: Seed) -> None:
        super().__init__()
        size = 1 if stack.wide else stack.embedding
        self.features = FeatureEncoder(
            inputs, size, draws=draws_at(seed, "own embedding"), l2=stack.l2
        )
        self.linear = linear(
            self.features.width, width, draws_at(seed, "own"), bias=stack.wide, init=stack.init
        )

    def forward(
        self, numeric: Tensor | None, categorical: Tensor | None, *, check: bool = False
    ) -> Tensor:
        """Return the term ``[B, width]``."""
        out: Tensor = self.linear(self.features(numeric, categorical, check=check))
        return out


@final
class Top(nn.Module):
    """The label party's part: the layers after the cut, the last of which makes the logits.

    The term of the label party's own columns joins one of the layers before its activation.
    """

    def __init__(
        self, width: int, stack: Stack, *, own: Inputs | None, cut: int, classes: int, seed: Seed
    ) -> None:
        super().__init__()
        logits = logit_count(classes)
        whole = replace(stack, hidden=(*stack.hidden, Layer(logits, "none")))
        self.layers = nn.ModuleList(
            Dense(fan_in, layer, draws_at(seed, "layer", number, 0), init=stack.init)
            for number, fan_in, layer in whole.numbered(width, cut + 1, len(whole.hidden))
        )
        self.single = logits == 1
        self.joins = len(self.layers) - 1 if stack.wide else 0
        joined = whole.hidden[cut + self.joins].width
        self.own = Own(own, stack, joined, seed=seed) if own and own.columns else None

    def forward(
        self,
        z: Tensor,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
        *,
        check: bool = False,
    ) -> Tensor:
        """Return logits, ``[B]`` for two classes and ``[B, classes]`` for more."""
        extra = self._extra(numeric, categorical, check=check)
        for number, layer in enumerate(self.layers):
            z = layer(z, extra if number == self.joins else None)
        return z.squeeze(1) if self.single else z

    def _extra(
        self, numeric: Tensor | None, categorical: Tensor | None, *, check: bool
    ) -> Tensor | None:
        if self.own is not None:
            term: Tensor = self.own(numeric, categorical, check=check)
            return term
        refuse_columns(numeric, categorical)
        return None


def refuse_columns(*columns: Tensor | None) -> None:
    """Refuse columns of the label party where its part takes none."""
    for found in columns:
        if found is not None and found.shape[1:].numel():
            raise InputError(
                "this top was built without columns of the label party, "
                f"got {tuple(found.shape)}: pass own= when building it"
            )


class Stacked(Architecture, ABC):
    """An architecture that is a :class:`Stack`; its layers count from 1 at the columns."""

    @abstractmethod
    def stack(self, classes: int) -> Stack:
        """Return the layers for so many classes."""

    @final
    @property
    def depth(self) -> int:
        """How many layers there are before the one that makes logits: the largest cut."""
        return len(self.stack(2).hidden)

    @final
    @property
    def published_cut(self) -> int:
        """The cut where nothing else is asked for."""
        return self.stack(2).published_cut

    @final
    def cut_width(self, *, cut: int | None, classes: int) -> int:
        """Return the width of one party's embedding at this cut."""
        return self.stack(classes).hidden[self.resolve(cut) - 1].width

    @final
    def bottom(
        self, inputs: Inputs, *, cut: int | None, classes: int, seed: Seed, party: int = 0
    ) -> nn.Module:
        """Return the part of one feature party alone."""
        require(inputs.columns > 0, f"feature party {party} needs at least one column", 0)
        return Bottom(inputs, self.stack(classes), cut=self.resolve(cut), seed=seed, party=party)

    @final
    def top(
        self, width: int, *, own: Inputs | None, cut: int | None, classes: int, seed: Seed
    ) -> nn.Module:
        """Return the label party's part alone, for a combined cut of this width."""
        place, stack = self.resolve(cut), self.stack(classes)
        return Top(width, stack, own=own, cut=place, classes=classes, seed=seed)
