"""Columns as one dense matrix: numbers standardised, long tails by logs, categories one-hot."""

from __future__ import annotations

from itertools import accumulate
from typing import final

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.pretrain.progress import State

MOST = 4096
"""Dense columns; a table with more is for ``svd``, which never writes them down."""

_LONG = 2.0


def dense_width(inputs: Inputs) -> int:
    """Return how many columns the dense matrix has; refuse more than fit.

    >>> dense_width(Inputs(3, (2, 5)))
    10
    """
    width = inputs.numeric + sum(inputs.cardinalities)
    if width > MOST:
        raise InputError(
            f"one-hot, these columns are {width}, and at most {MOST} are written out: take svd"
        )
    return width


def one_hot(inputs: Inputs, categorical: Tensor) -> Tensor:
    """Return 0 and 1 ``[B, sum of cardinalities]``, one column for each value of each category.

    >>> one_hot(Inputs(0, (2, 3)), torch.tensor([[1, 0]])).tolist()
    [[0.0, 1.0, 1.0, 0.0, 0.0]]
    """
    sizes = inputs.cardinalities
    offsets = torch.tensor([0, *accumulate(sizes)][:-1], device=categorical.device)
    out = torch.zeros(len(categorical), sum(sizes), device=categorical.device)
    return out.scatter_(1, categorical + offsets, 1.0) if sizes else out


@final
class Standardiser(nn.Module):
    """Dense columns with mean 0 and variance 1; constant columns are 0.

    ``x_j -> (t_j(x_j) - mean_j) / std_j``, with ``t(x) = log(1 + max(0, x - least) / spread)`` for
    numbers with a long tail (a skewness above 2), as counts have, and ``t(x) = x`` for all others.
    The least value and the spread are the column's: it does not matter how counts were scaled.
    """

    long_tail: Tensor
    least: Tensor
    spread: Tensor
    mean: Tensor
    inverse: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        width = dense_width(inputs)
        self.register_buffer("long_tail", torch.zeros(inputs.numeric, dtype=torch.bool))
        self.register_buffer("least", torch.zeros(inputs.numeric))
        self.register_buffer("spread", torch.ones(inputs.numeric))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("inverse", torch.zeros(width))

    def learn(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Take the statistics of these rows, and return the rows standardised."""
        mean, inverse = _moments(numeric)
        skewness = ((numeric.double() - mean) * inverse).pow(3).mean(0)
        self.long_tail = skewness > _LONG
        self.least = numeric.amin(0)
        self.spread = torch.where(inverse > 0, 1 / inverse, 1.0).float()
        raw = self._raw(numeric, categorical)
        mean, inverse = _moments(raw)
        self.mean, self.inverse = mean.float(), inverse.float()
        return (raw - self.mean) * self.inverse

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return ``[B, dense width]``."""
        return (self._raw(numeric, categorical) - self.mean) * self.inverse

    def _raw(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        logs = ((numeric - self.least) / self.spread).clamp(min=0).log1p()
        numbers = torch.where(self.long_tail, logs, numeric)
        return torch.cat([numbers, one_hot(self.inputs, categorical)], dim=1)


def _moments(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and the inverse standard deviations; 0 for those of constant columns."""
    wide = columns.double()
    std = wide.std(0, correction=0)
    varies = std > 1e-6 * wide.abs().amax(0)
    return wide.mean(0), torch.where(varies, 1 / std, 0.0)


def named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module under the name that it has in a larger one."""
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def principal_directions(rows: Tensor, width: int, *, name: str) -> tuple[Tensor, Tensor]:
    """Return the mean of rows ``[N, d]`` and their leading directions ``[d, width]``.

    ``C = E[(x - mean)(x - mean)'] = V diag(l) V'``, by decreasing ``l``; of every direction the
    largest entry is positive.

    >>> principal_directions(torch.tensor([[0.0, 1], [2, 1], [4, 1]]), 1, name="pca")[1].tolist()
    [[1.0], [0.0]]
    """
    if width > rows.shape[1]:
        raise InputError(
            f"{name}: the columns give {rows.shape[1]} directions, got width={width}: "
            f"take width={rows.shape[1]} or less"
        )
    mean = rows.double().mean(0)
    centred = rows.double() - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(rows))
    leading = vectors.flip(1)[:, :width]
    largest = leading.gather(0, leading.abs().argmax(0, keepdim=True))
    return mean.float(), (leading * largest.sign()).float()


def empty_like(state: State, name: str) -> Tensor:
    """Return zeros in the form that a tensor of the state has; refuse a state without it."""
    if name not in state:
        raise InputError(f"the saved tensors have no {name!r}: they are of another method")
    return torch.zeros_like(state[name])
