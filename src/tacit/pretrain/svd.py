"""Singular vectors of one-hot columns, for tables with many categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.pretrain.base import (
    PRETRAINERS,
    FrozenBottom,
    Pretrainer,
    constant,
    generator,
)
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import empty_like
from tacit.rng import Key
from tacit.spec import require

_BINS = 32
_CURVES = 6
_NUMBERS = 0.8  # so that a number has about as much variance as a category
_SAMPLE = 100_000
_ROUNDS = 4
_SPARE = 16


@final
class SingularBottom(FrozenBottom):
    """The sum of one vector for each value of a row: ``z = sum_j P[code_j(x_j)] - mean``.

    A value that was too rare has the vector 0.
    """

    edges: Tensor
    codes: Tensor
    vectors: Tensor
    mean: Tensor

    def __init__(self, inputs: Inputs, state: State) -> None:
        vectors = empty_like(state, "vectors")
        super().__init__(inputs, vectors.shape[1])
        for name in ("edges", "codes", "vectors", "mean"):
            self.register_buffer(name, empty_like(state, name))

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the sums."""
        places = value_places(self.inputs, self.edges, numeric, categorical)
        return embedding_bag(self.codes[places], self.vectors, mode="sum") - self.mean


@final
@PRETRAINERS.register("svd")
@dataclass(frozen=True)
class SingularVectors(Pretrainer):
    """Project one-hot categories and binned numbers on their leading singular vectors.

    ``A_ij = f_j^-scale [row i has value j]`` with the share ``f_j`` of rows with value ``j``;
    ``A = U S V'``; ``z = c (A_i V - mean)``, the same ``c`` for all, so that the mean square of
    ``z`` is 1. Values that fewer than ``least`` rows have are left out. Numbers are in 32 bins of
    quantiles, and six smooth curves of the bin are columns of ``A``. Not whitened: a direction
    keeps its share of the variance.

    Guarantee: sees no labels. The embeddings show the inputs: frequent values can be read off by
    whoever knows ``V``, rare ones below ``least`` are not in them.

    References:
        Halko, Martinsson and Tropp, "Finding structure with randomness" (2011), Algorithm 4.4;
        ``scale = 1/2`` is multiple correspondence analysis (Greenacre 1984, chapter 5).

    Departures: ``scale = 1/4`` is between counts and correspondences. A number has curves, not
    one-hot bins, which would take up the width that categories need (``ads``, width 128, seeds 10
    and 11: test AUC .72 and .70 in place of .82 and .81).

    >>> codes = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [2, 1], [2, 0]])
    >>> bottom = SingularVectors(width=2, least=1).fit(Inputs(0, (3, 2)), None, codes, seed=0)
    >>> bottom(None, codes).shape
    torch.Size([6, 2])
    """

    width: int = 256
    least: int = 10
    scale: float = 0.25

    def __post_init__(self) -> None:
        require(self.width >= 1, "svd: width must be at least 1", self.width)
        require(self.least >= 1, "svd: least must be at least 1", self.least)
        require(0 <= self.scale <= 1, "svd: scale must be 0 to 1", self.scale)

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
        """Return bins, the values that are kept, and a vector for each."""
        edges = quantile_edges(numeric)
        places = value_places(inputs, edges, numeric, categorical)
        bins = inputs.numeric * _BINS
        curves = bin_curves(places[:, : inputs.numeric], inputs.numeric)
        # A value that every row has tells nothing: a constant column is left out.
        values = places[:, inputs.numeric :][:, ~constant(categorical)] - bins
        found = torch.bincount(values.flatten(), minlength=sum(inputs.cardinalities))
        kept = found >= self.least
        most = inputs.numeric * _CURVES + int(kept.sum())
        if most < self.width:
            raise InputError(
                f"{self}: {int(kept.sum())} values have {self.least} rows or more, and with the "
                f"numbers they give {most} directions at most: take svd(width={max(most, 1)}) or "
                "a smaller least"
            )
        weights = (found[kept] / len(places)) ** -self.scale
        codes = torch.where(kept, kept.cumsum(0), 0)
        shown = curves[places[:, : inputs.numeric]].flatten(1)
        matrix = _sparse(shown, codes[values], weights)
        directions = _leading(matrix, self.width, generator(key, "svd"))
        at = inputs.numeric * _CURVES
        of_curves, of_values = directions[:at], directions[at:]
        by_column = of_curves.reshape(-1, _CURVES, self.width)
        of_bins = torch.bmm(curves.reshape(-1, _BINS, _CURVES), by_column).flatten(0, 1)
        none = torch.zeros(1, self.width)
        vectors = torch.cat([none, of_bins, of_values * weights[:, None]])
        places_to_vectors = [torch.arange(1, bins + 1), torch.where(codes > 0, codes + bins, 0)]
        state = _scaled(edges, torch.cat(places_to_vectors), vectors, places)
        progress(1, 1)
        return state

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the sums of vectors."""
        return SingularBottom(inputs, state).freeze(state)


def quantile_edges(numeric: Tensor) -> Tensor:
    """Return the inner quantiles ``[n, 31]`` of every column; equal ones leave bins empty."""
    sample = numeric[:: max(1, -(-len(numeric) // _SAMPLE))]
    shares = torch.linspace(0, 1, _BINS + 1)[1:-1]
    if not numeric.shape[1]:
        return torch.zeros(0, _BINS - 1)
    ordered = sample.sort(0).values
    return ordered[(shares * (len(ordered) - 1)).round().long()].T.contiguous()


def value_places(inputs: Inputs, edges: Tensor, numeric: Tensor, categorical: Tensor) -> Tensor:
    """Return the place of every value of a row among all values of all columns, ``[B, n + c]``.

    >>> edges = torch.tensor([[1.0] * 31])
    >>> value_places(Inputs(1, (4,)), edges, torch.tensor([[0.5], [1.0]]), torch.tensor([[3], [0]]))
    tensor([[ 0, 35],
            [31, 32]])
    """
    starts = [0, *accumulate([_BINS] * inputs.numeric + list(inputs.cardinalities))][:-1]
    bins = torch.searchsorted(edges, numeric.T.contiguous(), right=True).T
    return torch.cat([bins, categorical], dim=1) + torch.tensor(starts, device=categorical.device)


def bin_curves(bins: Tensor, columns: int) -> Tensor:
    """Return smooth curves of the rank ``r`` of a bin, ``[32 columns, 6]``, of mean 0 over rows.

    ``sqrt(2) a / k cos(pi k r)`` for ``k = 1 to 6``: the principal components of all thresholds of
    a number, so that few directions hold most of it.
    """
    found = torch.bincount(bins.flatten(), minlength=columns * _BINS).reshape(columns, _BINS)
    shares = found / max(1, len(bins))
    rank = shares.cumsum(1) - shares / 2
    waves = torch.arange(1, _CURVES + 1)
    curves = (math.sqrt(2) * _NUMBERS / waves) * torch.cos(math.pi * rank[..., None] * waves)
    return (curves - (shares[..., None] * curves).sum(1, keepdim=True)).flatten(0, 1)


def _scaled(edges: Tensor, codes: Tensor, vectors: Tensor, places: Tensor) -> State:
    """Return the bottom's tensors, moved and scaled so that rows have mean 0 and mean square 1."""
    sums = embedding_bag(codes[places], vectors, mode="sum")
    mean = sums.mean(0)
    factor = 1 / (sums - mean).square().mean().sqrt().clamp(min=1e-12)
    return {"edges": edges, "codes": codes, "vectors": vectors * factor, "mean": mean * factor}


def _sparse(curves: Tensor, codes: Tensor, weights: Tensor) -> Any:  # noqa: ANN401 - scipy's
    """Return the rows of ``A``: curves of numbers, then weighted values; code 0 is left out."""
    from scipy.sparse import csr_matrix, hstack  # noqa: PLC0415 - slow to load, only needed here

    kept = codes > 0
    columns = (codes[kept] - 1).numpy()
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)]).numpy()
    shape = (len(codes), len(weights))
    values = csr_matrix((weights.float().numpy()[columns], columns, ends), shape=shape)
    return hstack([csr_matrix(curves.float().numpy()), values]).tocsr()


def _leading(matrix: Any, width: int, draws: torch.Generator) -> Tensor:  # noqa: ANN401 - scipy's
    """Return the leading right singular vectors ``[columns, width]``."""
    from sklearn.utils.extmath import randomized_svd  # noqa: PLC0415 - slow to load

    _, _, right = randomized_svd(
        matrix,
        width,
        n_oversamples=_SPARE,
        n_iter=_ROUNDS,
        random_state=int(torch.randint(2**31, (), generator=draws)),
    )
    return torch.from_numpy(right.T.copy()).float()
