"""What readers hand over: chunks of rows, the layout of the table, and how numbers are scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np

from tacit.data._arrow import Arrow
from tacit.data.draws import Array
from tacit.data.tables import Columns

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

    ``labels`` is None where the file has none: that of a feature party, or one to predict.
    ``ids`` are int64 or text; ``time`` is int64 seconds since 1970 and orders the rows; ``test``
    marks rows of a test part that comes with the data.
    """

    numeric: Array
    categorical: tuple[Arrow, ...]
    labels: Array | None
    ids: Array | None = None
    time: Array | None = None
    test: Array | None = None

    def __len__(self) -> int:
        return len(self.numeric)


@final
@dataclass(frozen=True, eq=False)
class Coding:
    """How raw values become scaled numbers and codes: learned from one file, used on any.

    A number becomes ``(number - offset) / spread``, and 0 in a column whose ``spread`` is 0. A
    category becomes its place in the sorted ``values`` of its column; a value that is not there
    takes the place after the last.

    >>> coding = Coding(np.array([2.0, 7.0]), np.array([4.0, 0.0]), ())
    >>> coding.scale(np.array([[5.0, 9.0]])).tolist()
    [[0.75, 0.0]]
    """

    offset: Array
    spread: Array
    values: tuple[Arrow, ...]

    def scale(self, block: Array) -> Array:
        """Return a block [B, n] scaled, as float32."""
        constant = self.spread == 0.0
        scaled: Array = (block - self.offset) / np.where(constant, 1.0, self.spread)
        scaled[:, constant] = 0.0
        return scaled.astype(np.float32)


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

    def coding(self, values: tuple[Arrow, ...] = ()) -> Coding:
        """Return what was learned of the numbers, with the values of the categories."""
        if self.kind == "none":
            return Coding(np.zeros_like(self.mean), np.ones_like(self.mean), values)
        offset, spread = self.low, self.high - self.low
        if self.kind == "standard":
            offset, spread = self.mean, np.sqrt(self.square / max(1, self.count))
        return Coding(offset, np.where(self.high == self.low, 0.0, spread), values)

    def apply(self, block: Array) -> Array:
        """Return the block scaled, as float32."""
        return self.coding().scale(block)
