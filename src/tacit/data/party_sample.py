"""Two files as two companies would hold them, made from a seed: to try a run of two parties."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data._arrow import Arrow, csv, pa
from tacit.data.ads_file import words
from tacit.data.datasets.ads import CATEGORICAL, NUMERIC, ads_rows
from tacit.data.draws import Array, permutation
from tacit.data.schema import schema_path
from tacit.errors import InputError

_OWN = ("basket_value", "segment")


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
            raise InputError(f"{path} is there already: remove it or name another folder")
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
        schema_path(path).write_text(_MEANING[path.name], encoding="utf-8")
    return paths


def _columns(rows: int, seed: int) -> dict[str, Arrow]:
    """Return every column of the generated rows as it stands in a file."""
    blocks = list(ads_rows(rows, seed=seed))
    numeric = np.concatenate([block.numeric for block in blocks])
    codes = np.concatenate([block.categorical for block in blocks])
    labels = np.concatenate([block.labels for block in blocks])
    columns = {"id": _ids(rows, seed), "converted": pa.array(np.where(labels == 1, "yes", "no"))}
    columns |= {n: pa.array(np.round(v, 4)) for n, v in zip(NUMERIC, numeric.T, strict=True)}
    for (name, size), column in zip(CATEGORICAL.items(), codes.T, strict=True):
        columns[name] = pa.array(words(name, size)).take(pa.array(column))
    return columns


def _ids(rows: int, seed: int) -> Arrow:
    numbers: Array = permutation(rows, "party sample", seed, "ids")
    return pa.array([f"click-{number:0{len(str(rows - 1))}}" for number in numbers.tolist()])


def _listed(names: list[str]) -> str:
    return "".join(f'    "{name}",\n' for name in names)


_MEANING = {
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
