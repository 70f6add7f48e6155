"""Categories whose rare values are one: a feature party's own matter, without any label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Common"]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Common:
    """The values of categorical columns that enough rows have; all others of a column are value 0.

    A value that few training rows have gets an embedding of its own out of the labels of those few,
    which is learned by heart. Values without any training row are among the others, so that the
    embedding of unseen values is trained wherever a column has rare ones.

    >>> common = Common.of([np.array([0, 1, 1, 3, 3])], (4,), 2)
    >>> common(torch.tensor([[0], [1], [2], [3]])).flatten().tolist(), common.cardinalities
    ([0, 1, 0, 2], (3,))
    """

    offsets: Tensor
    codes: Tensor
    cardinalities: tuple[int, ...]

    @classmethod
    def of(cls, columns: Iterable[npt.NDArray[Any]], sizes: Sequence[int], least: int) -> Self:
        """Return the values that at least ``least`` rows of each column have."""
        kept = [
            np.bincount(column, minlength=size) >= least
            for column, size in zip(columns, sizes, strict=True)
        ]
        codes = [np.where(keep, np.cumsum(keep), 0) for keep in kept]
        return cls(
            offsets=torch.tensor([0, *accumulate(sizes)][:-1], dtype=torch.int64),
            codes=torch.from_numpy(np.concatenate(codes)),
            cardinalities=tuple(int(keep.sum()) + 1 for keep in kept),
        )

    def __call__(self, categorical: Tensor) -> Tensor:
        """Return the new codes ``[B, c]`` of categories ``[B, c]``."""
        return self.codes[categorical + self.offsets]
