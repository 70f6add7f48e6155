"""A party's columns of a table: what a model must know of them, and the way to their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tacit import data, nets
from tacit.errors import UsageError
from tacit.study.ahead import ahead, augmented
from tacit.study.bins import Bins
from tacit.study.defaults import BINS
from tacit.study.rare import Common

__all__ = ["Reader", "Source"]

Source = Callable[[Tensor], tuple[Tensor, Tensor]]


@final
class Reader:
    """Reads parties' columns of a table; with ``bins``, numbers come encoded by their quantiles.

    With ``rare``, values of a category that fewer rows have are one. Quantiles and counts are those
    of ``rows``. The default count of bins means nothing to images and tables without numbers, any
    other is refused there. Parties that hold the same columns read them once. Images
    to train on are read one batch ahead, and with ``augment``, a seed, shifted and mirrored.
    """

    def __init__(
        self,
        table: data.Table,
        *,
        bins: int | None = None,
        rare: int | None = None,
        rows: npt.NDArray[np.int64],
        augment: int | None = None,
    ) -> None:
        if bins == BINS and (table.image is not None or not table.numeric_names):
            bins = None
        if bins is not None and not table.numeric_names:
            raise UsageError(f"--bins {bins}: {table.name} has no numbers to encode: leave it out")
        if bins is not None and table.image is not None:
            raise UsageError(f"--bins {bins}: {table.name} has images, not numbers: leave it out")
        if augment is not None and table.image is None:
            raise UsageError(f"--augment: {table.name} has no images to change: leave it out")
        self._augment, self._steps = augment, count()
        self._table, self._bins, self._rare, self._rows = table, bins, rare, rows
        self._encodings: dict[data.Columns, Bins] = {}
        self._values: dict[data.Columns, Common] = {}
        self._used: set[data.Columns] = set()
        self._last: dict[data.Columns, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def inputs(self, columns: data.Columns) -> nets.Inputs:
        """Return how many numbers and which categories the columns hold."""
        encoding, common = self._encoding(columns), self._common(columns)
        sizes, form = self._sizes(columns), self._table.image
        return nets.Inputs(
            numeric=len(columns.numeric) if encoding is None else encoding.width,
            cardinalities=sizes if common is None else common.cardinalities,
            image=None if form is None or form.pixels != len(columns) else form.shape,
        )

    def source(self, columns: data.Columns) -> Source:
        """Return the way to the columns."""
        last = self._last
        self._used.add(columns)

        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            found = last.get(columns)
            if found is None or found[0] is not rows:
                found = last[columns] = (rows, self._read(rows, columns))
            return found[1]

        return take

    def batches(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield batches to train on; images are ready by then."""
        if self._table.image is None:
            yield from batches
            return
        for rows, found in ahead(batches, self._prepare):
            self._last.update({columns: (rows, read) for columns, read in found.items()})
            yield rows

    def _prepare(self, rows: Tensor) -> dict[data.Columns, tuple[Tensor, Tensor]]:
        step, form = next(self._steps), self._table.image
        found = {columns: self._read(rows, columns) for columns in self._used}
        if self._augment is None or form is None:
            return found
        if any(len(columns) != form.pixels for columns in found):
            raise UsageError("--augment: every party needs whole images: use it with --parties 1")
        return {
            columns: (augmented(pixels, form.shape, self._augment, step), codes)
            for columns, (pixels, codes) in found.items()
        }

    def _read(self, rows: Tensor, columns: data.Columns) -> tuple[Tensor, Tensor]:
        encoding, common = self._encoding(columns), self._common(columns)
        found = data.take(self._table, rows.numpy(), columns)
        return (
            found.numeric if encoding is None else encoding(found.numeric),
            found.categorical if common is None else common(found.categorical),
        )

    def _sizes(self, columns: data.Columns) -> tuple[int, ...]:
        return tuple(self._table.cardinalities[i] for i in columns.categorical)

    def _common(self, columns: data.Columns) -> Common | None:
        if self._rare is None or not columns.categorical:
            return None
        if columns not in self._values:
            rows, codes = np.sort(self._rows), np.asarray(self._table.categorical)
            one_by_one = (codes[rows, place] for place in columns.categorical)  # a column fits
            self._values[columns] = Common.of(one_by_one, self._sizes(columns), self._rare)
        return self._values[columns]

    def _encoding(self, columns: data.Columns) -> Bins | None:
        if self._bins is None or not columns.numeric:
            return None
        if columns not in self._encodings:
            sample = np.sort(self._rows[: Bins.SAMPLE])
            numeric = np.asarray(self._table.numeric)[sample][:, list(columns.numeric)]
            self._encodings[columns] = Bins.of(numeric, self._bins)
        return self._encodings[columns]
