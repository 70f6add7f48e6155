"""A plain multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tacit.nets.base import MODELS
from tacit.nets.stack import Layer, Stack, Stacked
from tacit.spec import require


@final
@MODELS.register("mlp")
@dataclass(frozen=True)
class Mlp(Stacked):
    """A plain perceptron: equal ReLU layers over numbers and embedded categories.

    ``logit = h_(L+1)(relu_L(... relu_1([E(c), x])))``

    The label party's own columns enter the first layer after the cut, next to the cut itself.
    Nothing is published about this one: the default cut is in the middle.

    >>> from tacit.nets import Inputs
    >>> model = MODELS.get("mlp(hidden=16)").build(parties=[Inputs(57)], seed=0)
    >>> model.width, len(model.bottoms[0].layers), len(model.top.layers)
    (16, 2, 3)
    """

    hidden: int = 64
    layers: int = 4
    embedding: int = 4

    def __post_init__(self) -> None:
        require(self.hidden >= 1, "mlp: hidden must be at least 1", self.hidden)
        require(self.layers >= 1, "mlp: layers must be at least 1", self.layers)
        require(self.embedding >= 1, "mlp: embedding must be at least 1", self.embedding)

    def stack(self, classes: int) -> Stack:  # noqa: ARG002 - no hidden layer depends on it
        """Return equal ReLU layers, cut in the middle."""
        return Stack(
            hidden=(Layer(self.hidden),) * self.layers,
            published_cut=max(1, self.layers // 2),
            embedding=self.embedding,
        )
