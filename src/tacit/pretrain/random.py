"""The control: what a head makes of directions that nothing was learned for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from tacit.nets import Inputs
from tacit.pretrain.base import PRETRAINERS, FrozenBottom, Pretrainer
from tacit.pretrain.pca import PrincipalBottom
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import Standardiser, named
from tacit.rng import Key
from tacit.spec import require


@final
@PRETRAINERS.register("random")
@dataclass(frozen=True)
class RandomProjection(Pretrainer):
    """Project standardised columns on random directions: the control for methods that learn.

    ``z = R'((t(x) - mean) / std)``, ``R_jk ~ N(0, 1 / d)`` for ``d`` dense columns.

    Guarantee: sees no labels. The embeddings show the inputs: with as many directions as columns
    whoever knows ``R`` inverts them.

    References:
        Dasgupta and Gupta, "An elementary proof of a theorem of Johnson and Lindenstrauss" (2003).

    >>> import torch
    >>> x = torch.tensor([[0.5, 1], [1.5, 2.25], [2.5, 3], [3.5, 4.25]])
    >>> RandomProjection(width=3).fit(Inputs(2), x, seed=0)(x).shape
    torch.Size([4, 3])
    """

    width: int = 32

    def __post_init__(self) -> None:
        require(self.width >= 1, "random: width must be at least 1", self.width)

    def embedding_width(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the width."""
        return self.width

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return statistics and directions."""
        columns = Standardiser(inputs)
        columns.learn(numeric, categorical)
        count = len(columns.mean)
        directions = key.stream("random projection").normal(count, self.width) / math.sqrt(count)
        progress(1, 1)
        return {**named("columns", columns), "directions": directions.float()}

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the linear map."""
        return PrincipalBottom(inputs, self.width).freeze(state)
