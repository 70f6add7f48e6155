"""The generated conversion table as files: one Parquet file, or one CSV file per party."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from tacit.data.datasets.ads import CATEGORICAL, DAYS, NUMERIC, AdsRows, ads_rows
from tacit.data.draws import Array, permutation
from tacit.data.readers import Arrow
from tacit.data.schema import schema_path
from tacit.errors import InputError

_OWN = ("basket_value", "segment")
"""Features of the label party's own in the sample of two parties."""


def write_ads_parquet(path: str | Path, rows: int, seed: int = 0, *, positive: float = 0.1) -> Path:
    """Write generated rows with their schema beside them, and return the path.

    Numbers are raw, categories are text such as ``device_0``. Loading the file gives the rows of
    ``load("ads")``; codes skip values that never occur.
    """
    path = Path(path)
    at = 0
    blocks = ads_rows(rows, seed=seed, positive=positive)
    with parquet.ParquetWriter(path, _arrow_schema(), compression="zstd") as writer:
        for block in blocks:
            numbers = np.arange(at, at + len(block.labels), dtype=np.int64)
            writer.write_batch(_batch(block, numbers, rows))
            at += len(block.labels)
    schema_path(path).write_text(_ads_schema(), encoding="utf-8")
    return path


def category_values(name: str, size: int) -> list[str]:
    """Return the values of a category as text, in the order of their codes.

    >>> category_values("device", 3)
    ['device_0', 'device_1', 'device_2']
    """
    width = len(str(size - 1))
    return [f"{name}_{k:0{width}}" for k in range(size)]


def _arrow_schema() -> Arrow:
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {"id": pa.int64(), "day": pa.int64(), "converted": pa.int8()}
    kinds |= dict.fromkeys(NUMERIC, pa.float64()) | dict.fromkeys(CATEGORICAL, text)
    return pa.schema(list(kinds.items()))


def _batch(block: AdsRows, numbers: Array, rows: int) -> Arrow:
    columns = [numbers, numbers * DAYS // rows, block.labels.astype(np.int8), *block.numeric.T]
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
    for (name, size), codes in zip(CATEGORICAL.items(), block.categorical.T, strict=True):
        known = pa.array(category_values(name, size))
        arrays.append(pa.DictionaryArray.from_arrays(np.ascontiguousarray(codes), known))
    return pa.record_batch(arrays, schema=_arrow_schema())


def _ads_schema() -> str:
    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(f'"{name}"' for name in names)

    return (
        'label = "converted"\nid = "id"\ntime = "day"\ntime_unit = "days"\n'
        f"numeric = [{listed(NUMERIC)}]\ncategorical = [{listed(tuple(CATEGORICAL))}]\n"
    )


def write_party_sample(
    folder: str | Path, *, rows: int = 6_000, seed: int = 0, overlap: float = 0.9
) -> tuple[Path, Path]:
    """Write ``features.csv`` and ``labels.csv`` with their schemas, and return the two paths.

    The rows are those of the generated data set ``ads``. The share ``overlap`` of them is in both
    files; of the rest each file has a half that the other lacks. The files have different row
    orders, and ids that say nothing. ``basket_value`` and ``segment`` are the label party's own.
    """
    if rows < 20:
        raise InputError(f"a sample has at least 20 rows, got {rows}")
    if not 0.0 < overlap <= 1.0:
        raise InputError(f"the share of common rows is above 0 and at most 1, got {overlap}")
    folder = Path(folder).expanduser()
    paths = folder / "features.csv", folder / "labels.csv"
    for path in (*paths, *map(schema_path, paths)):
        if path.exists():
            raise InputError(f"{path} exists already: remove it or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    columns = _columns(rows, seed)
    common = round(rows * overlap)
    half = common + (rows - common) // 2
    features = ("id", *(n for n in (*NUMERIC, *CATEGORICAL) if n not in _OWN))
    held = np.arange(half), np.r_[np.arange(common), np.arange(half, rows)]
    for path, names, part in zip(paths, (features, ("id", "converted", *_OWN)), held, strict=True):
        mixed = part[permutation(len(part), "party sample", seed, path.name)]
        table = pa.table({name: columns[name].take(pa.array(mixed)) for name in names})
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
        schema_path(path).write_text(_PARTY_SCHEMAS[path.name], encoding="utf-8")
    return paths


def _columns(rows: int, seed: int) -> dict[str, Arrow]:
    """Return every column of the generated rows as it is written to a file."""
    blocks = list(ads_rows(rows, seed=seed))
    numeric = np.concatenate([block.numeric for block in blocks])
    codes = np.concatenate([block.categorical for block in blocks])
    labels = np.concatenate([block.labels for block in blocks])
    columns = {"id": _ids(rows, seed), "converted": pa.array(np.where(labels == 1, "yes", "no"))}
    columns |= {n: pa.array(np.round(v, 4)) for n, v in zip(NUMERIC, numeric.T, strict=True)}
    for (name, size), column in zip(CATEGORICAL.items(), codes.T, strict=True):
        columns[name] = pa.array(category_values(name, size)).take(pa.array(column))
    return columns


def _ids(rows: int, seed: int) -> Arrow:
    numbers: Array = permutation(rows, "party sample", seed, "ids")
    return pa.array([f"click-{number:0{len(str(rows - 1))}}" for number in numbers.tolist()])


def _listed(names: list[str]) -> str:
    return "".join(f'    "{name}",\n' for name in names)


_PARTY_SCHEMAS = {
    "features.csv": f"""\
# What the columns of features.csv mean. This is a feature party's file: it has no label.
id = "id"                # rows of the two files with the same id are the same example
scale = "standard"       # numbers: mean 0 and variance 1; or unit, or none
numeric = [
{_listed([n for n in NUMERIC if n not in _OWN])}]
categorical = [
{_listed([n for n in CATEGORICAL if n not in _OWN])}]
""",
    "labels.csv": """\
# What the columns of labels.csv mean. This is the label party's file.
id = "id"                # rows of the two files with the same id are the same example
label = "converted"      # never leaves this side
positive = "yes"         # the value that counts as 1
# Features of the label party's own, used in its part of the model; both lines may be left out.
numeric = ["basket_value"]
categorical = ["segment"]
""",
}
