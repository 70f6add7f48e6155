"""From columns to the first layer's input: one table for all categories, next to the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets.base import Inputs
from tacit.nets.initial_weights import WeightDraws, table
from tacit.rng import Key
from tacit.spec import require


@final
class StackedEmbedding(nn.Module):
    """The embedding tables of all categorical columns in one, looked up at once.

    ``out[b] = [T[offset_1 + k_b1], ..., T[offset_c + k_bc]]``, with
    ``offset_j = cardinality_1 + ... + cardinality_(j-1)``

    An index outside its own column's range reads a row of another column's table, and only the
    far ends of the whole table raise an error. ``check=True`` refuses such an index by name; it
    takes one pass over the indices, so check data once, when it is loaded. ``l2`` is the factor of
    a penalty ``l2 ||T||^2`` on the tables alone, whose gradient the optimiser adds.

    >>> layer = StackedEmbedding((3, 5), 4)
    >>> layer(torch.tensor([[2, 0], [0, 4]])).shape
    torch.Size([2, 8])
    """

    offsets: Tensor
    sizes: Tensor

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        *,
        draws: WeightDraws | None = None,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        require(len(cardinalities) > 0, "an embedding needs at least one column", 0)
        for size in cardinalities:
            require(size >= 1, "every cardinality must be at least 1", size)
        require(dim >= 1, "the embedding size must be at least 1", dim)
        self.cardinalities = tuple(cardinalities)
        self.dim = dim
        self.l2 = l2
        starts = (0, *accumulate(self.cardinalities[:-1]))
        for name, numbers in (("offsets", starts), ("sizes", self.cardinalities)):
            self.register_buffer(name, torch.tensor(numbers, device="cpu"), persistent=False)
        self.table = table(self.cardinalities, dim, draws or WeightDraws(Key.fresh()))

    def forward(self, categorical: Tensor, *, check: bool = False) -> Tensor:
        """Return ``[B, c * dim]`` for the category indices ``[B, c]``."""
        if check:
            self._check(categorical)
        out: Tensor = self.table(categorical + self.offsets)
        return out.flatten(1)

    def _check(self, categorical: Tensor) -> None:
        outside = (categorical < 0) | (categorical >= self.sizes)
        if outside.any():
            row, column = outside.nonzero()[0].tolist()
            raise InputError(
                f"categories of column {column} go from 0 to {self.cardinalities[column] - 1}, "
                f"got {int(categorical[row, column])} in row {row}: map unseen values first"
            )


@final
class FeatureEncoder(nn.Module):
    """One party's columns as one vector: the embedded categories, then the numbers.

    ``x = [embed(categorical), numeric]``

    References:
        Li et al., ICLR 2022, appendix A.6.2: the raw input vectors.

    >>> features = FeatureEncoder(Inputs(numeric=2, cardinalities=(3,)), 4)
    >>> features(torch.zeros(5, 2), torch.zeros(5, 1, dtype=torch.int64)).shape
    torch.Size([5, 6])
    """

    def __init__(
        self, inputs: Inputs, dim: int, *, draws: WeightDraws | None = None, l2: float = 0.0
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.width = inputs.numeric + len(inputs.cardinalities) * dim
        self.embedding = (
            StackedEmbedding(inputs.cardinalities, dim, draws=draws, l2=l2)
            if inputs.cardinalities
            else None
        )

    def forward(
        self, numeric: Tensor | None, categorical: Tensor | None = None, *, check: bool = False
    ) -> Tensor:
        """Return ``[B, width]``; a kind of columns that the party lacks may be None."""
        _check_columns(numeric, self.inputs.numeric, "numeric")
        _check_columns(categorical, len(self.inputs.cardinalities), "categorical")
        parts = []
        if self.embedding is not None and categorical is not None:
            parts.append(self.embedding(categorical, check=check))
        if self.inputs.numeric and numeric is not None:
            parts.append(numeric)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _check_columns(columns: Tensor | None, count: int, kind: str) -> None:
    if columns is None:
        if count:
            raise InputError(f"{kind} must be [batch, {count}], got none: pass {kind}=")
    elif columns.dim() != 2 or columns.shape[1] != count:
        raise InputError(f"{kind} must be [batch, {count}], got {tuple(columns.shape)}")
