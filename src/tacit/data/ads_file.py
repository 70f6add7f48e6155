"""The generated conversion table as a Parquet file of any length, written block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data._arrow import Arrow, pa, parquet
from tacit.data.datasets.ads import CATEGORICAL, DAYS, NUMERIC, AdsRows, ads_rows
from tacit.data.draws import Array
from tacit.data.schema import schema_path


def write_ads_parquet(path: str | Path, rows: int, seed: int = 0, *, positive: float = 0.1) -> Path:
    """Write generated rows with their schema beside them, and return the path.

    Numbers are raw, categories are text such as ``device_0``. Loading the file gives the rows of
    ``load("ads")``; codes skip values that never occur.
    """
    path = Path(path)
    at = 0
    blocks = ads_rows(rows, seed=seed, positive=positive)
    with parquet.ParquetWriter(path, _schema(), compression="zstd") as writer:
        for block in blocks:
            numbers = np.arange(at, at + len(block.labels), dtype=np.int64)
            writer.write_batch(_batch(block, numbers, rows))
            at += len(block.labels)
    schema_path(path).write_text(_meaning(), encoding="utf-8")
    return path


def words(name: str, size: int) -> list[str]:
    """Return the values of a category as text, in the order of their codes.

    >>> words("device", 3)
    ['device_0', 'device_1', 'device_2']
    """
    width = len(str(size - 1))
    return [f"{name}_{k:0{width}}" for k in range(size)]


def _schema() -> Arrow:
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {"id": pa.int64(), "day": pa.int64(), "converted": pa.int8()}
    kinds |= dict.fromkeys(NUMERIC, pa.float64()) | dict.fromkeys(CATEGORICAL, text)
    return pa.schema(list(kinds.items()))


def _batch(block: AdsRows, numbers: Array, rows: int) -> Arrow:
    columns = [numbers, numbers * DAYS // rows, block.labels.astype(np.int8), *block.numeric.T]
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
    for (name, size), codes in zip(CATEGORICAL.items(), block.categorical.T, strict=True):
        known = pa.array(words(name, size))
        arrays.append(pa.DictionaryArray.from_arrays(np.ascontiguousarray(codes), known))
    return pa.record_batch(arrays, schema=_schema())


def _meaning() -> str:
    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f'"{name}"' for name in names)

    return (
        'label = "converted"\nid = "id"\ntime = "day"\ntime_unit = "days"\n'
        f"numeric = [{listed(NUMERIC)}]\ncategorical = [{listed(tuple(CATEGORICAL))}]\n"
    )
