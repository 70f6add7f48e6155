"""The data sets by name: what they are, where their files come from, where they belong.

Nothing here loads numpy, pyarrow or torch before a table is read.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tacit.data.entries import ENTRIES, DataSet
from tacit.data.places import data_directory
from tacit.errors import InputError, SpecError
from tacit.spec import nearest

if TYPE_CHECKING:
    from tacit.data.tables import Table

__all__ = ["Checked", "check", "describe", "find", "load", "names"]

_FILES = (".csv", ".csv.gz", ".parquet")


@final
@dataclass(frozen=True)
class Checked:
    """What a data set turned out to be when it was read."""

    name: str
    files: tuple[str, ...]
    rows: int
    positives: float | None
    classes: int
    numeric: int
    categorical: int
    image: tuple[int, int, int] | None
    published_rows: int | None
    seconds: float


def names() -> list[str]:
    """Return the name of every data set.

    >>> "criteo" in names() and "ads" in names()
    True
    """
    return list(ENTRIES)


def describe(name: str) -> DataSet:
    """Return what is known about a data set; an unknown name is refused with the nearest one.

    >>> describe("spambase").rows
    4601
    """
    if name not in ENTRIES:
        raise SpecError(f"unknown data set {name!r}: {nearest(name, names())}")
    return ENTRIES[name]


def find(name: str, data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Return the files of a data set that are here: those of the first place that has any."""
    entry, root = describe(name), data_directory(data_dir)
    for place in entry.places:
        found = sorted(root.glob(place))
        if found:
            return tuple(found if entry.several else found[:1])
    return ()


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    rows: int | None = None,
    seed: int = 0,
    **options: object,
) -> Table:
    """Return a data set by name, or the table of a CSV or Parquet file by its path.

    ``rows`` draws that many by ``seed``, without changing their order; for generated data it is
    the number of rows made. ``options`` are those of the data set, such as ``positive`` of
    ``ads``, or ``schema`` of a file.
    """
    if seed < 0:
        raise InputError(f"seed is a whole number from 0, got {seed}")
    if name.endswith(_FILES):
        return _sampled(_call("tacit.data.columns:load_file", name, options, name), rows, seed)
    entry = describe(name)
    if "rows" in inspect.signature(_loader(entry.loader)).parameters:
        size = {} if rows is None else {"rows": rows}
        return _call(entry.loader, name, {**options, **size, "seed": seed})
    if not entry.places:
        return _sampled(_call(entry.loader, name, options), rows, seed)
    files = find(name, data_dir)
    if not files:
        raise InputError(_missing(entry, data_directory(data_dir)))
    return _sampled(_call(entry.loader, name, options, files), rows, seed)


def check(name: str, data_dir: str | Path | None = None) -> Checked:
    """Read a data set and return its counts; refuse files that are missing or do not parse."""
    start = time.perf_counter()
    table = load(name, data_dir=data_dir)
    known = ENTRIES.get(name)
    return Checked(
        name=name,
        files=tuple(str(path) for path in (find(name, data_dir) if known else [Path(name)])),
        rows=len(table),
        positives=table.positives if table.classes == 2 else None,
        classes=table.classes,
        numeric=len(table.numeric_names),
        categorical=len(table.categorical_names),
        image=None if table.image is None else table.image.shape,
        published_rows=known.rows if known else None,
        seconds=round(time.perf_counter() - start, 3),
    )


def _missing(entry: DataSet, root: Path) -> str:
    places = " or ".join(entry.places)
    return (
        f"the files of {entry.name} are not in {root}: get them from {entry.source} "
        f"and put them there as {places} (or name another directory with TACIT_DATA)"
    )


def _loader(address: str) -> Callable[..., Any]:
    module, _, function = address.partition(":")
    loader: Callable[..., Any] = getattr(import_module(module), function)
    return loader


def _call(address: str, name: str, options: dict[str, object], *subject: object) -> Table:
    """Call a loader after checking that it takes the options."""
    loader = _loader(address)
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            way_out = nearest(option, known) if known else "it takes none"
            raise SpecError(f"{name} has no option {option!r}: {way_out}")
    table: Table = loader(*subject, **options)
    return table


def _sampled(table: Table, rows: int | None, seed: int) -> Table:
    from tacit.data.draws import permutation  # noqa: PLC0415 - numpy loads only when it is used
    from tacit.data.tables import subset  # noqa: PLC0415 - as above

    if rows is None or rows == len(table):
        return table
    if not 2 <= rows < len(table):
        raise InputError(
            f"{table.name} has {len(table)} rows here: ask for 2 to {len(table)}, got {rows}"
        )
    chosen = permutation(len(table), "sample", seed)[:rows]
    chosen.sort()
    return subset(table, chosen)
