"""Principal components of standardised columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.nets import Inputs
from tacit.pretrain.base import PRETRAINERS, FrozenBottom, Pretrainer
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import Standardiser, named, principal_directions
from tacit.rng import Key
from tacit.spec import require


@final
class PrincipalBottom(FrozenBottom):
    """A linear map of standardised columns."""

    directions: Tensor

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__(inputs, width)
        self.columns = Standardiser(inputs)
        self.register_buffer("directions", torch.zeros(len(self.columns.mean), width))

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the scores of the rows."""
        scores: Tensor = self.columns(numeric, categorical) @ self.directions
        return scores


@final
@PRETRAINERS.register("pca")
@dataclass(frozen=True)
class PrincipalComponents(Pretrainer):
    """Project standardised numbers, log counts and one-hot categories on their main directions.

    ``z = V'((t(x) - mean) / std)``, ``V`` the ``width`` leading eigenvectors of the correlations;
    ``t`` is the logarithm for numbers with a long tail, as counts have.

    Guarantee: sees no labels, so the embeddings tell of labels only what the inputs do. They show
    the inputs: up to the variance of the directions left out, whoever knows ``V`` inverts them.

    References:
        Jolliffe, "Principal Component Analysis" (2002), chapter 2.3: the correlation matrix.

    >>> x = torch.tensor([[0.5, 1], [1.5, 2.25], [2.5, 3], [3.5, 4.25]])
    >>> PrincipalComponents(width=1).fit(Inputs(2), x, seed=0)(x).shape
    torch.Size([4, 1])
    """

    width: int = 128

    def __post_init__(self) -> None:
        require(self.width >= 1, "pca: width must be at least 1", self.width)

    def embedding_width(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the width."""
        return self.width

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,  # noqa: ARG002 - nothing is drawn
        progress: FitProgress,
    ) -> State:
        """Return statistics and directions."""
        columns = Standardiser(inputs)
        rows = columns.learn(numeric, categorical)
        _, directions = principal_directions(rows, self.width, name=str(self))
        progress(1, 1)
        return {**named("columns", columns), "directions": directions.contiguous()}

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the linear map."""
        return PrincipalBottom(inputs, self.width).freeze(state)
