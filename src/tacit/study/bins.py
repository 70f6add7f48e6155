"""Numbers by the quantiles of their columns: a feature party's own matter, without any label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Bins"]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Bins:
    """Piecewise-linear encoding: how far a number lies into each bin of its column.

    ``e_j(x) = 2 clip((x - k_j) / (k_(j+1) - k_j), 0, 1) - 1``, with the knots ``k`` at equally
    spaced quantiles of the column. Equal knots are one: a column of few values has fewer bins. A
    constant column keeps one, which is -1 for all its rows.

    A linear function of the encoding is any function of the number that bends at the knots only,
    so that little has to be learned from labels, of which randomised ones teach little each; and
    outliers end at the outer knots.

    References:
        Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning"
        (NeurIPS 2022), Eq. 1, with quantiles for knots (section 3.2.1).

    Departures: the outer bins are clipped too, and values go from -1 to 1.

    >>> bins = Bins.of(np.array([[0.0], [1.0], [2.0], [6.0], [10.0]]), 2)
    >>> bins(torch.tensor([[-5.0], [1.0], [6.0], [99.0]])).tolist()
    [[-1.0, -1.0], [0.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """

    SAMPLE: ClassVar[int] = 100_000
    """How many rows are enough to take the quantiles of hundreds of bins from."""

    columns: Tensor
    starts: Tensor
    widths: Tensor

    @classmethod
    def of(cls, numeric: npt.NDArray[Any], count: int) -> Self:
        """Return the bins of the columns of ``numeric``, at most ``count`` each."""
        found = [_knots(column, count) for column in np.asarray(numeric).T]
        place = [number for number, knots in enumerate(found) for _ in knots[1:]]
        starts = [knot for knots in found for knot in knots[:-1]]
        widths = [width for knots in found for width in np.diff(knots)]
        return cls(
            columns=torch.tensor(place, dtype=torch.int64),
            starts=torch.tensor(starts, dtype=torch.float32),
            widths=torch.tensor(widths, dtype=torch.float32),
        )

    @property
    def width(self) -> int:
        """How many numbers the encoding has."""
        return len(self.columns)

    def __call__(self, numeric: Tensor) -> Tensor:
        """Return ``[B, width]`` for numbers ``[B, n]``."""
        into = (numeric[:, self.columns] - self.starts) / self.widths
        return into.clamp_(0, 1).mul_(2).sub_(1)


def _knots(column: npt.NDArray[Any], count: int) -> npt.NDArray[np.float32]:
    """Return the quantiles of a column, each once; of a constant one its value and the next."""
    found = np.unique(np.quantile(column, np.linspace(0, 1, count + 1)).astype(np.float32))
    return found if len(found) > 1 else np.array([found[0], found[0] + 1], dtype=np.float32)
