"""A party's columns of a table: what a model must know of them, and the way to their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tacit import data, nets
from tacit.errors import UsageError
from tacit.study.bins import Bins

__all__ = ["Reader", "Source"]

Source = Callable[[Tensor], tuple[Tensor, Tensor]]


@final
class Reader:
    """Reads parties' columns of a table; with ``bins``, numbers come encoded by their quantiles.

    The quantiles are those of ``rows``. Parties that hold the same columns read them once.
    """

    def __init__(
        self, table: data.Table, *, bins: int | None = None, rows: npt.NDArray[np.int64]
    ) -> None:
        if bins is not None and not table.numeric_names:
            raise UsageError(f"--bins {bins}: {table.name} has no numbers to encode: leave it out")
        if bins is not None and table.image is not None:
            raise UsageError(f"--bins {bins}: {table.name} has images, not numbers: leave it out")
        self._table, self._bins, self._rows = table, bins, rows
        self._encodings: dict[data.Columns, Bins] = {}
        self._last: dict[data.Columns, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def inputs(self, columns: data.Columns) -> nets.Inputs:
        """Return how many numbers and which categories the columns hold."""
        encoding, form = self._encoding(columns), self._table.image
        return nets.Inputs(
            numeric=len(columns.numeric) if encoding is None else encoding.width,
            cardinalities=tuple(self._table.cardinalities[i] for i in columns.categorical),
            image=None if form is None or form.pixels != len(columns) else form.shape,
        )

    def source(self, columns: data.Columns) -> Source:
        """Return the way to the columns."""
        encoding, last = self._encoding(columns), self._last

        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            if columns not in last or last[columns][0] is not rows:
                found = data.take(self._table, rows.numpy(), columns)
                numeric = found.numeric if encoding is None else encoding(found.numeric)
                last[columns] = (rows, (numeric, found.categorical))
            return last[columns][1]

        return take

    def _encoding(self, columns: data.Columns) -> Bins | None:
        if self._bins is None or not columns.numeric:
            return None
        if columns not in self._encodings:
            sample = np.sort(self._rows[: Bins.SAMPLE])
            numeric = np.asarray(self._table.numeric)[sample][:, list(columns.numeric)]
            self._encodings[columns] = Bins.of(numeric, self._bins)
        return self._encodings[columns]
