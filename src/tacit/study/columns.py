"""A party's columns of a table: what a model must know of them, and the way to their rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tacit import data, nets

__all__ = ["Source", "inputs_of", "sources_of"]

Source = Callable[[Tensor], tuple[Tensor, Tensor]]


def inputs_of(table: data.Table, columns: data.Columns) -> nets.Inputs:
    """Return how many numbers and which categories the columns hold."""
    return nets.Inputs(
        numeric=len(columns.numeric),
        cardinalities=tuple(table.cardinalities[i] for i in columns.categorical),
    )


def sources_of(table: data.Table) -> Callable[[data.Columns], Source]:
    """Return the way to a party's columns; parties that hold the same ones read them once."""
    last: dict[data.Columns, tuple[Tensor, data.Features]] = {}

    def source(columns: data.Columns) -> Source:
        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            if columns not in last or last[columns][0] is not rows:
                last[columns] = (rows, data.take(table, rows.numpy(), columns))
            found = last[columns][1]
            return found.numeric, found.categorical

        return take

    return source
