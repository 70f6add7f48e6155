"""A sweep's records as one flat row per trial, in Parquet or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.experiment.sweep_store import FORMAT, TrialRecord

_LISTS = ("history",)


def row_of(record: TrialRecord) -> dict[str, Any]:
    """Return one flat row: the configuration, then the results, then the facts of the run.

    Nested records become dotted names (``test.auc``, ``leak.cosine.q95``); the history of the
    epochs stays in the store.

    >>> row = row_of(TrialRecord(key="k", task="a:b", config={"seed": 1}, state="done", error=None,
    ...                     results={"test": {"auc": 0.7}, "history": []}, run={"seconds": 2.0}))
    >>> row["seed"], row["test.auc"], row["run.seconds"]
    (1, 0.7, 2.0)
    """
    found = {name: v for name, v in (record.results or {}).items() if name not in _LISTS}
    # Many results repeat the configuration, which a failed trial has as well.
    results = {name: v for name, v in _flat(found) if record.config.get(name) is None}
    head = {"key": record.key, "state": record.state, "error": record.error}
    return {**head, **record.config, **results, **dict(_flat({"run": record.run}))}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every column that some row has, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a list is written as JSON, what is missing as nothing."""
    columns = columns_of(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as Parquet, with the format's version in the schema."""
    import pyarrow as pa  # noqa: PLC0415 - loads only when used
    import pyarrow.parquet as pq  # noqa: PLC0415

    columns = {name: _column([row.get(name) for row in rows]) for name in columns_of(rows)}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    kept = {"tacit sweep": json.dumps({"format": FORMAT})}
    pq.write_table(table.replace_schema_metadata(kept), path)


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: whole numbers among others become numbers, a mixture text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(_cell(value)) for value in values]
