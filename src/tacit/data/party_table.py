"""One party's own file: ids, features, and the labels at the label party.

Two companies hold one file each. The schema beside a file says what its columns mean; ids decide
which rows of the two files belong together, and only they are ever compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import numpy as np

from tacit.data.draws import Array
from tacit.data.encoding import Encoding
from tacit.data.tables import row_numbers

if TYPE_CHECKING:
    from torch import Tensor


Role: TypeAlias = Literal["feature", "label"]
Source: TypeAlias = "Callable[[Tensor], tuple[Tensor, Tensor]]"


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PartyTable:
    """The rows of one party's file; the arrays are memory-mapped files.

    ``ids`` is [N], int64 or text, each once. ``numeric`` is [N, n] float32, scaled;
    ``categorical`` is [N, c] int32, codes from 0 below ``cardinalities``, the last of which stands
    for values that the training file did not have: ``unseen`` counts its rows per column.
    ``labels`` is [N] int64 below ``classes``; both are None at a feature party, and ``labels``
    also where a file to predict has none. Rows are in the order of the file, or in time order
    where the schema names a time.
    """

    name: str
    role: Role
    ids: Array
    numeric: Array
    categorical: Array
    labels: Array | None
    classes: int | None
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    cardinalities: tuple[int, ...]
    unseen: tuple[int, ...]
    encoding: Encoding

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"PartyTable({self.name!r}, {self.role} party, {len(self):,} rows, "
            f"{len(self.numeric_names)} numeric, {len(self.categorical_names)} categorical)"
        )

    @property
    def inputs(self) -> tuple[int, tuple[int, ...]]:
        """The number of numeric columns and the cardinalities: what a model must know."""
        return len(self.numeric_names), self.cardinalities

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Return rows as tensors: numbers [B, n] float32 and codes [B, c] int64."""
        import torch  # noqa: PLC0415 - a file is read and checked without torch

        rows = row_numbers(rows, name=self.name, size=len(self))
        numeric = np.take(np.asarray(self.numeric), rows, axis=0)
        categorical = np.take(np.asarray(self.categorical), rows, axis=0)
        return torch.from_numpy(numeric), torch.from_numpy(categorical.astype(np.int64))

    def source(self, order: Array) -> Source:
        """Return the way from positions in a shared order to this party's columns.

        ``order`` [M] int64 holds, for each position that the parties agreed on, the row here.
        """
        places = row_numbers(order, name=self.name, size=len(self)).astype(np.int64)

        def take(positions: Tensor) -> tuple[Tensor, Tensor]:
            shared = f"the shared order of {self.name}"
            return self.take(places[row_numbers(positions.numpy(), name=shared, size=len(places))])

        return take
