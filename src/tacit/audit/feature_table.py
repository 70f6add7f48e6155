"""The features of examples by column, for an audit of what embeddings show of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tacit.data import Table, read_schema, schema_path
from tacit.data.readers import MISSING, Refuse, RowReader, categories, ids
from tacit.data.table_file import reader_of
from tacit.data.text_file import TextFile
from tacit.errors import UsageError
from tacit.spec import nearest

Array = npt.NDArray[Any]
_ID = "id"
_WHOLE = 2**63


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureTable:
    """Columns of features, one value for each example.

    Attributes:
        numeric: numbers by column; NaN where one is missing.
        categorical: values by column, texts or codes; a missing one is a value of its own.
        ids: the id of each row; without them, row ``i`` is example ``i``.
        source: where the features come from, for messages.
    """

    numeric: Mapping[str, Array] = field(default_factory=dict)
    categorical: Mapping[str, Array] = field(default_factory=dict)
    ids: Array | None = None
    source: str = "the features given"

    def __post_init__(self) -> None:
        columns = {**self.numeric, **self.categorical}
        if not columns or set(self.numeric) & set(self.categorical):
            raise UsageError(f"{self.source}: has no columns, or one twice: name each once")
        for name, values in columns.items():
            if np.shape(values) != (len(self),):
                raise UsageError(
                    f"{self.source}: column {name!r} must be [{len(self)}], one value for each "
                    f"example, got {np.shape(values)}"
                )
        if self.ids is not None and len(self.ids) != len(self):
            raise UsageError(f"{self.source}: has {len(self.ids)} ids for {len(self)} rows")
        for name, values in self.numeric.items():
            odd = np.isinf(np.asarray(values, dtype=np.float64))
            if odd.any():
                raise UsageError(
                    f"{self.source}: column {name!r} is infinite in row {int(odd.argmax())}: "
                    "leave the cell empty, which means missing"
                )

    def __len__(self) -> int:
        return len(next(iter({**self.numeric, **self.categorical}.values())))

    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """Return some rows, without their ids."""
        return type(self)(
            numeric={n: np.asarray(v)[rows].astype(np.float64) for n, v in self.numeric.items()},
            categorical={n: np.asarray(v)[rows] for n, v in self.categorical.items()},
            source=self.source,
        )

    def rows_by_id(self, *, text: bool) -> dict[str | int, int]:
        """Return the row of each id, as text or as whole numbers."""
        given = range(len(self)) if self.ids is None else np.asarray(self.ids).tolist()
        found: dict[str | int, int] = {}
        for row, name in enumerate(given):
            key = str(name) if text else _whole(name)
            if key is None:
                continue  # no example of a tape with whole ids has this one
            if found.setdefault(key, row) != row:
                raise UsageError(
                    f"{self.source}: id {name!r} is in rows {found[key]} and {row}: an example has "
                    "one row"
                )
        return found

    @classmethod
    def of_data(cls, table: Table, columns: Sequence[str] | None = None) -> Self:
        """Return the columns of a data set, as ids of a run count them: by row number.

        ``columns`` keeps those of one party. Where a tape has text, ids are those of the data.
        """
        numeric = {n: np.asarray(table.numeric[:, i]) for i, n in enumerate(table.numeric_names)}
        codes = {
            n: np.asarray(table.categorical[:, i]) for i, n in enumerate(table.categorical_names)
        }
        kept = set(numeric) | set(codes) if columns is None else set(columns)
        return cls(
            numeric={n: v for n, v in numeric.items() if n in kept},
            categorical={n: v for n, v in codes.items() if n in kept},
            source=table.name,
        )

    @classmethod
    def read(cls, path: Path, *, id_column: str | None = None) -> Self:
        """Return the columns of a file of any kind that a data set can be in.

        A tacit schema beside it says which columns are numbers and categories, and names the id.
        Without one, a column that holds only numbers is numeric, every other one categorical. An
        empty cell is a missing value.
        """
        beside = schema_path(path)
        schema = read_schema(beside) if beside.is_file() else None
        name = id_column or (schema.id if schema is not None else None) or _ID
        reader = reader_of(path, None if schema is None else schema.separator)
        typed = not isinstance(reader, TextFile)
        columns, refuse = _read(reader)
        if name not in columns:
            raise UsageError(
                f"{path}: has no id column {name!r}, {nearest(name, list(columns))}: name it with "
                "--id-column"
            )
        if schema is not None:
            schema.match(columns, where=str(path))
            kinds = dict.fromkeys(schema.numeric, True) | dict.fromkeys(schema.categorical, False)
        else:
            kinds = {n: _is_number(v, typed=typed) for n, v in columns.items() if n != name}
        return cls(
            numeric={n: _numbers(columns[n], refuse, name=n) for n, v in kinds.items() if v},
            categorical={
                n: np.asarray(categories(columns[n], refuse, name=n).to_pylist(), dtype=np.str_)
                for n, v in kinds.items()
                if not v
            },
            ids=ids(columns[name], refuse, name=name),
            source=str(path),
        )


def _whole(name: object) -> int | None:
    """Return an id as a whole number, or None if it is none."""
    try:
        found = int(str(name))
    except ValueError:
        return None
    return found if abs(found) < _WHOLE else None


def _read(reader: RowReader) -> tuple[dict[str, Any], Refuse]:
    """Return the columns of a file, and what refuses one of its rows."""
    found = list(reader.batches(reader.columns()))
    if not found:
        raise UsageError(f"{reader.where}: holds no rows: give the features of the tape's examples")
    table = pa.Table.from_batches([batch for _, batch in found])
    return {n: table[n].combine_chunks() for n in table.column_names}, found[0][0]


def _is_number(column: Any, *, typed: bool) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether a column is numeric: by its type, or in a text file because all cells are numbers."""
    kind = column.type
    if typed:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    filled = column.filter(pc.invert(_missing(column)))
    try:
        pc.utf8_trim_whitespace(filled).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return len(filled) > 0


def _missing(column: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return which cells of a text column are missing."""
    blank = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(MISSING, column.type))
    return pc.fill_null(blank, True)


def _numbers(column: Any, refuse: Refuse, *, name: str) -> Array:  # noqa: ANN401 - as above
    """Return a column as float64, NaN where a number is missing."""
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if text:
        column = pc.if_else(_missing(column), "nan", pc.utf8_trim_whitespace(column))
    try:
        found = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        cells = column.to_pylist()
        row = next(i for i, cell in enumerate(cells) if not _reads_as_number(cell))
        refuse(row, f"{name} must be a number, got {str(cells[row])!r}")
    return np.asarray(pc.fill_null(found, np.nan).to_numpy(zero_copy_only=False), dtype=np.float64)


def _reads_as_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True
