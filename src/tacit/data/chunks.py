"""What readers hand over: chunks of rows, the layout of the table, and how numbers are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from tacit.data._arrow import Arrow
from tacit.data.draws import Array
from tacit.data.tables import Columns

__all__ = ["Chunk", "Layout", "Scale", "Scaler"]

Scale: TypeAlias = Literal["unit", "standard", "none"]


@final
@dataclass(frozen=True)
class Layout:
    """The columns of a table to be built, how to scale its numbers and how to divide its rows."""

    name: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    scale: Scale
    test_fraction: float
    parties: tuple[Columns, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows as read: raw numbers [B, n], one text array per category, labels [B] from 0.

    ``ids`` are int64 or text; ``time`` is int64 seconds since 1970 and orders the rows; ``test``
    marks rows of a test part that comes with the data.
    """

    numeric: Array
    categorical: tuple[Arrow, ...]
    labels: Array
    ids: Array | None = None
    time: Array | None = None
    test: Array | None = None


@final
class Scaler:
    """Scale columns by statistics of all rows, gathered block by block.

    ``unit`` maps the smallest value to 0 and the largest to 1; ``standard`` gives mean 0 and
    variance 1; a constant column becomes 0. The statistics are those of all rows, training and
    test together, because the papers scale before they split.

    >>> scaler = Scaler("unit", 1)
    >>> scaler.update(np.array([[2.0], [6.0], [4.0]]))
    >>> scaler.apply(np.array([[2.0], [5.0]])).tolist()
    [[0.0], [0.75]]
    """

    def __init__(self, kind: Scale, width: int) -> None:
        self.kind = kind
        self.count = 0
        self.low = np.full(width, np.inf)
        self.high = np.full(width, -np.inf)
        self.mean = np.zeros(width)
        self.square = np.zeros(width)

    def update(self, block: Array) -> None:
        """Take a block [B, n] into account (means and squares merge as Chan et al. do)."""
        size = len(block)
        if not size:
            return
        self.low = np.minimum(self.low, block.min(axis=0))
        self.high = np.maximum(self.high, block.max(axis=0))
        mean = block.mean(axis=0, dtype=np.float64)
        total = self.count + size
        apart = mean - self.mean
        self.square += ((block - mean) ** 2).sum(axis=0) + apart**2 * (self.count * size / total)
        self.mean += apart * (size / total)
        self.count = total

    def apply(self, block: Array) -> Array:
        """Return the block scaled, as float32."""
        if self.kind == "none":
            return block.astype(np.float32)
        shift, spread = self.low, self.high - self.low
        if self.kind == "standard":
            shift, spread = self.mean, np.sqrt(self.square / max(1, self.count))
        constant = (self.high == self.low) | (spread == 0.0)
        scaled: Array = (block - shift) / np.where(constant, 1.0, spread)
        scaled[:, constant] = 0.0
        return scaled.astype(np.float32)
