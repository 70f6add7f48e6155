"""The features for ``tacit audit --inputs``, and what is shown of them in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from tacit.cli.run_config import config_beside
from tacit.errors import UsageError
from tacit.spec import nearest

if TYPE_CHECKING:
    from tacit.audit import FeatureTable
    from tacit.experiment.config import TrainConfig

_SHOWN = 25


def features_of(
    tape: Path, given: str, id_column: str | None, data_dir: Path | None
) -> FeatureTable:
    """Return the features in a file, by id, or those of a data set, by row.

    The ids of a run of ``tacit train`` are the rows that it drew from its data set, also where
    that is a file.
    """
    from tacit.audit import FeatureTable  # noqa: PLC0415 - loads torch
    from tacit.data import names  # noqa: PLC0415 - loads numpy
    from tacit.data.formats import TABLE_FILES, is_table_file  # noqa: PLC0415 - as above

    config = config_beside(tape)
    trained = config is not None and config.dataset == given
    if not trained and is_table_file(given):
        if not Path(given).is_file():
            raise UsageError(f"--inputs {given}: there is no such file: check the path")
        return FeatureTable.read(Path(given), id_column=id_column)
    if not trained and given not in names():
        raise UsageError(
            f"--inputs {given}: neither a {', '.join(TABLE_FILES)} file nor a data set: "
            f"{nearest(given, names())}"
        )
    if id_column is not None:
        raise UsageError(f"--id-column {id_column}: a data set's ids are its rows, leave it out")
    return _of_data(tape, given, config if trained else None, data_dir)


def _of_data(
    tape: Path, name: str, config: TrainConfig | None, data_dir: Path | None
) -> FeatureTable:
    from tacit.audit import FeatureTable  # noqa: PLC0415 - loads torch
    from tacit.data import assign, load  # noqa: PLC0415 - loads numpy

    table = load(
        name,
        data_dir=data_dir or (None if config is None else config.data_dir),
        rows=None if config is None else config.rows,
        seed=0 if config is None else config.seed,
    )
    number = tape.stem.removeprefix("feature_party_").removeprefix("embeddings_")
    parties = 1 if config is None else config.parties or len(table.parties) or 1
    if parties == 1 or not number.isdigit() or int(number) >= parties:
        return FeatureTable.of_data(table)
    own = assign(table, parties)[int(number)]  # what other parties hold was not sent here
    columns = [table.numeric_names[i] for i in own.numeric]
    columns += [table.categorical_names[i] for i in own.categorical]
    return FeatureTable.of_data(table, columns)


def inputs_table(record: Mapping[str, Any]) -> Table:
    """Return the columns that are shown most, as a table for the terminal."""
    rows, every = record["inputs"], record["inputs_all_epochs"]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("column", overflow="fold")
    for name in ("R2", "accuracy", "interval", "baseline"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True)
    later = {row["column"]: row for row in every or ()}
    if later:
        table.add_column("all epochs", justify="right", no_wrap=True)
    for row in rows[:_SHOWN]:
        between = "" if row["low"] is None else f"{row['low']:.3f}-{row['high']:.3f}"
        cells = [_number(row["r2"]), _number(row["accuracy"]), between, _number(row["baseline"])]
        cells += [row["method"]]
        if later:
            cells.append(_number(_measure(later[row["column"]])))
        table.add_row(escape(row["column"]), *cells)
    if len(rows) > _SHOWN:
        table.caption = f"The worst {_SHOWN} of {len(rows)} columns; --json and --out have all."
    return table


def _measure(row: Mapping[str, Any]) -> float | None:
    found: float | None = row["r2"] if row["kind"] == "numeric" else row["accuracy"]
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
