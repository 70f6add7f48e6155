"""A table of examples, and how parties divide, order and read it.

Both parties hold a table of the same rows and derive the same split and the same batches from
public seeds; only row numbers decide which examples meet, so nothing about labels is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np

from tacit.data.draws import Array, permutation
from tacit.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Image:
    """The form of images whose pixels are the numeric columns, one channel after the other.

    ``shape`` is channels, height and width. Pixels stay bytes on disk; a batch of them becomes
    ``(byte / 255 - mean) / spread`` with the statistics of its channel.

    >>> form = Image((1, 2, 2), mean=(0.5,), spread=(0.25,))
    >>> form.normalise(np.array([[0, 255, 0, 255]], dtype=np.uint8)).tolist()
    [[-2.0, 2.0, -2.0, 2.0]]
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != self.shape[0] or len(self.spread) != self.shape[0]:
            raise InputError(
                f"an image has a mean and a spread for each of its {self.shape[0]} channels, "
                f"got {len(self.mean)} and {len(self.spread)}"
            )

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def pixels(self) -> int:
        """How many columns an image fills."""
        return prod(self.shape)

    def normalise(self, block: Array) -> Array:
        """Return a block [B, pixels] of bytes as float32 of about mean 0 and variance 1."""
        spread = np.asarray(self.spread, dtype=np.float64)
        scale = (1.0 / (255.0 * np.where(spread > 0, spread, 1.0))).astype(np.float32)
        shift = (np.asarray(self.mean) * 255.0).astype(np.float32)
        channels = block.reshape(len(block), self.shape[0], -1).astype(np.float32)
        channels -= shift[:, None]
        channels *= scale[:, None]
        return channels.reshape(len(block), -1)


@final
@dataclass(frozen=True)
class Columns:
    """The columns of one feature party, as positions in the numeric and categorical columns."""

    numeric: tuple[int, ...]
    categorical: tuple[int, ...]
    party: str | None = None

    def __len__(self) -> int:
        return len(self.numeric) + len(self.categorical)


@final
@dataclass(frozen=True, eq=False)
class Features:
    """Some rows as tensors: ``numeric`` [B, n] float32 and ``categorical`` [B, c] int64."""

    numeric: Tensor
    categorical: Tensor


@final
@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Examples in rows; the arrays may be memory-mapped files.

    ``numeric`` is [N, n] float32, scaled; ``categorical`` is [N, c] int32, codes from 0 below
    ``cardinalities``; ``labels`` is [N] int64 below ``classes``; ``ids`` is [N], int64 or text.
    ``day`` is [N] int32 where the data has a time: rows are then in time order. ``fixed_test``
    marks the test part of data that comes with one; otherwise ``test_fraction`` is drawn.
    ``parties`` names the owner of each column where the data says so. With ``image``, ``numeric``
    holds the pixels as bytes, scaled when they are taken. Rows of one of the ``groups`` [N] int64
    stay on one side of a split.
    """

    name: str
    numeric: Array
    categorical: Array
    cardinalities: tuple[int, ...]
    labels: Array
    ids: Array
    day: Array | None
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    test_fraction: float
    fixed_test: Array | None
    classes: int
    parties: tuple[Columns, ...] = ()
    image: Image | None = None
    groups: Array | None = None

    def __post_init__(self) -> None:
        rows = len(self.labels)
        parts = {
            "numeric": self.numeric,
            "categorical": self.categorical,
            "ids": self.ids,
            "day": self.day,
            "fixed_test": self.fixed_test,
            "groups": self.groups,
        }
        for part, array in parts.items():
            if array is not None and len(array) != rows:
                raise InputError(
                    f"every array of a table has one row per label: {part} of {self.name} "
                    f"has {len(array)}, labels {rows}"
                )
        widths = (len(self.numeric_names), len(self.categorical_names), len(self.cardinalities))
        if widths != (self.numeric.shape[1], *[self.categorical.shape[1]] * 2):
            raise InputError(
                f"a table has a name for each column and a cardinality for each categorical one: "
                f"{self.name} has {widths} for {self.numeric.shape[1]} and "
                f"{self.categorical.shape[1]} columns"
            )

        if self.image is not None and self.image.pixels != self.numeric.shape[1]:
            raise InputError(
                f"images of {self.image} have {self.image.pixels} pixels, "
                f"{self.name} has {self.numeric.shape[1]} columns"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        columns = (
            f"{len(self.numeric_names)} numeric, {len(self.categorical_names)} categorical"
            if self.image is None
            else f"images of {self.image}"
        )
        return f"Table({self.name!r}, {len(self):,} rows, {columns}, {self.classes} classes)"

    @property
    def positives(self) -> float:
        """The share of rows with label 1."""
        return float(np.mean(np.asarray(self.labels) == 1))


def split(table: Table, *, seed: int) -> tuple[Array, Array]:
    """Return the training and the test rows, each shuffled; every row is in exactly one.

    The test part is ``table.fixed_test`` where there is one, and otherwise a random
    ``table.test_fraction`` of the rows, or of the groups where there are any. A part with a
    single class is refused: nothing could be learned from it or measured on it.
    """
    shuffled = permutation(len(table), "split", _natural("seed", seed))
    if table.fixed_test is not None:
        chosen = np.asarray(table.fixed_test)[shuffled]
    elif table.groups is not None:
        _, group = np.unique(np.asarray(table.groups), return_inverse=True)
        count = int(group.max()) + 1
        drawn = permutation(count, "split groups", seed)[
            : max(1, round(count * table.test_fraction))
        ]
        chosen = np.isin(group, drawn)[shuffled]
    else:
        chosen = np.arange(len(table)) < max(1, round(len(table) * table.test_fraction))
    parts = shuffled[~chosen], shuffled[chosen]
    for name, rows in zip(("training", "test"), parts, strict=True):
        found = np.unique(np.asarray(table.labels)[rows])
        if len(found) < 2:
            raise InputError(
                f"both parts of a split need two classes: the {len(rows)} {name} rows of "
                f"{table.name} have {len(found)}; load more rows or take another seed than {seed}"
            )
    return parts


def order(
    rows: Array, *, batch_size: int, seed: int, epoch: int, drop_last: bool = True
) -> Iterator[Array]:
    """Return the batches of one epoch: the rows shuffled by (seed, epoch), cut into pieces.

    Every party derives the same batches from the same numbers, with any version of numpy.

    >>> [len(batch) for batch in order(np.arange(10), batch_size=4, seed=0, epoch=0)]
    [4, 4]
    """
    rows = np.asarray(rows)
    if not 1 <= batch_size <= len(rows):
        raise InputError(
            f"a batch has from 1 to {len(rows)} rows here, got {batch_size}: "
            f"take a smaller batch or load more rows"
        )
    key = _natural("seed", seed), _natural("epoch", epoch)
    shuffled = rows[permutation(len(rows), "order", *key)]
    stop = len(rows) - len(rows) % batch_size if drop_last else len(rows)
    return (shuffled[at : at + batch_size] for at in range(0, stop, batch_size))


def stream(
    table: Table, *, batch_size: int, drop_last: bool = False
) -> Iterator[tuple[int, Array]]:
    """Return (day, batch) in time order, each row once: the stream protocol of online learning.

    A batch never holds rows of two days, so that measures can be averaged by day.

    References: the 2021 Marvell report, section 5.4, footnote 6.
    """
    if table.day is None:
        raise InputError(f"a stream needs rows with a time, {table.name} has none: use order()")
    if batch_size < 1:
        raise InputError(f"a batch has at least 1 row, got {batch_size}")
    days, starts = np.unique(np.asarray(table.day), return_index=True)
    stops = [*starts[1:], len(table)]
    return (
        (int(day), np.arange(at, min(at + batch_size, stop), dtype=np.int64))
        for day, start, stop in zip(days, starts, stops, strict=True)
        for at in range(start, stop, batch_size)
        if not drop_last or at + batch_size <= stop
    )


def take(table: Table, rows: Array, columns: Columns | None = None) -> Features:
    """Return rows as tensors, all columns or those of one party."""
    import torch  # noqa: PLC0415 - tables are listed, split and checked without torch

    rows = row_numbers(rows, name=table.name, size=len(table))
    numeric = np.take(np.asarray(table.numeric), rows, axis=0)
    numeric = numeric if table.image is None else table.image.normalise(numeric)
    categorical = np.take(np.asarray(table.categorical), rows, axis=0)
    everything = (*range(numeric.shape[1]),), (*range(categorical.shape[1]),)
    if columns is not None and (columns.numeric, columns.categorical) != everything:
        numeric = numeric[:, list(columns.numeric)]
        categorical = categorical[:, list(columns.categorical)]
    return Features(
        numeric=torch.from_numpy(np.ascontiguousarray(numeric, dtype=np.float32)),
        categorical=torch.from_numpy(np.ascontiguousarray(categorical, dtype=np.int64)),
    )


def subset(table: Table, rows: Array) -> Table:
    """Return a table of the given rows, in the given order, in memory.

    Codes, cardinalities and scales stay those of the whole table, as in the papers, which code
    and scale before they sample.
    """
    rows = row_numbers(rows, name=table.name, size=len(table))
    return replace(
        table,
        numeric=np.asarray(table.numeric)[rows],
        categorical=np.asarray(table.categorical)[rows],
        labels=np.asarray(table.labels)[rows],
        ids=np.asarray(table.ids)[rows],
        day=None if table.day is None else np.asarray(table.day)[rows],
        fixed_test=None if table.fixed_test is None else np.asarray(table.fixed_test)[rows],
        groups=None if table.groups is None else np.asarray(table.groups)[rows],
    )


def assign(table: Table, parties: int) -> tuple[Columns, ...]:
    """Return the columns of each feature party; every column belongs to exactly one.

    A table that names its parties is divided as it says. Otherwise the columns, numeric before
    categorical, are cut into contiguous pieces whose sizes differ by one at most.
    """
    if table.parties:
        if parties != len(table.parties):
            raise InputError(
                f"the schema of {table.name} names {len(table.parties)} parties, got {parties}: "
                f"ask for {len(table.parties)} or take [parties] out of the schema"
            )
        return table.parties
    width = len(table.numeric_names)
    total = width + len(table.categorical_names)
    if not 1 <= parties <= total:
        raise InputError(
            f"every feature party owns a column: {table.name} has {total} columns, "
            f"so from 1 to {total} parties, got {parties}"
        )
    pieces = [piece.tolist() for piece in np.array_split(np.arange(total), parties)]
    return tuple(
        Columns(
            numeric=tuple(at for at in piece if at < width),
            categorical=tuple(at - width for at in piece if at >= width),
        )
        for piece in pieces
    )


def _natural(name: str, value: int) -> int:
    if value < 0 or int(value) != value:
        raise InputError(f"{name} is a whole number from 0, got {value}")
    return int(value)


def row_numbers(rows: Array, *, name: str, size: int) -> Array:
    """Return row numbers as an array; what is no row of a table of this size is refused."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"rows are a list of row numbers, got shape {rows.shape} of {rows.dtype}: "
            f"turn a mask into numbers with numpy.flatnonzero"
        )
    if len(rows) and not (rows.min() >= 0 and rows.max() < size):
        raise InputError(
            f"rows of {name} are numbered from 0 to {size - 1}, got {rows.min()} to {rows.max()}"
        )
    return rows
