"""Tapes that other systems recorded: ``.npz``, Parquet, folders of ``.npy`` or ``.pt`` files.

All of them are the same columns: ``grads`` [N, ...], and where there are any ``embeddings``,
``ids``, ``step`` and ``epoch``, one row per example and release. Rows of one step stand together.
Without ``step`` a step is taken to be 1,024 rows; without ``epoch`` a new one begins when an id
comes again; without ``ids`` an example is its row number within the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from tacit.errors import UsageError
from tacit.tape.columns import NAMES, Array, Columns, ColumnTape, canonical
from tacit.tape.file_limits import (
    check_npy,
    check_parquet,
    check_tensor,
    check_torch_file,
    one_line,
    read_members,
)
from tacit.tape.tape import RecordedTape, Recording, is_tape

_CHUNK = 8192
_LONGEST = 4096  # bytes of one text id
_UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)
_SINGLE = 4  # bytes; shorter floats are not all known to numpy


def open_tape(path: Path | str, *, layer: str | None = None) -> Recording:
    """Return the tape at a path, whichever system recorded it."""
    found = Path(path)
    if not found.exists():
        raise UsageError(f"{path}: there is no such tape: record one with `tacit train --record`")
    if is_tape(found):
        return RecordedTape(found, layer=layer)
    if layer is not None:
        raise UsageError(f"{path}: only tapes recorded by tacit have layers, leave out {layer!r}")
    if found.is_dir():
        return _folder(found)
    openers = {".npz": _npz, ".npy": _npy, ".parquet": _parquet, ".pt": _torch_file}
    kind = found.suffix.lower()
    if kind not in openers:
        known = ", ".join(openers)
        raise UsageError(f"{path}: a tape is a folder or one of {known}, got {found.suffix!r}")
    return openers[kind](found)


def _npz(path: Path) -> ColumnTape:
    try:
        columns, names = read_members(path, lambda name: canonical(name) in NAMES)
    except Exception as error:  # whatever a foreign file makes the reader raise
        reason = one_line(error)
        raise UsageError(f"{path}: not a readable .npz file ({reason}): save it again") from None
    return ColumnTape.of({n: np.zeros(0) for n in names} | columns, source=str(path))


def _npy(path: Path) -> ColumnTape:
    return ColumnTape.of({"grads": load_array(path)}, source=str(path))


def _torch_file(path: Path) -> ColumnTape:
    return ColumnTape.of(_torch_columns(path), source=str(path))


def _parquet(path: Path) -> ColumnTape:
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if canonical(name) in NAMES]
            text = check_parquet(file, path, names)
            rows = file.metadata.num_rows
    except _UNREADABLE as error:
        raise _no_parquet(path, error) from None

    def chunks() -> Iterator[Columns]:
        try:  # text as a dictionary: a repeated text is in memory once
            with pq.ParquetFile(path, read_dictionary=text) as file:
                for batch in file.iter_batches(batch_size=_CHUNK, columns=names):
                    yield {name: _matrix(batch.column(name), path, name) for name in names}
        except UsageError:
            raise
        except _UNREADABLE as error:
            raise _no_parquet(path, error) from None

    return ColumnTape(chunks, source=str(path), rows=rows)


def _no_parquet(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path}: not a readable Parquet file ({one_line(error)}): save it again")


def _folder(path: Path) -> ColumnTape:
    """Return whole columns (``grads.npy`` and so on), or one file or set of files per step."""
    files = {p.stem: p for p in sorted(path.glob("*.npy")) if canonical(p.stem) in NAMES}
    if "grads" in map(canonical, files):
        return ColumnTape.of({n: load_array(p) for n, p in files.items()}, source=str(path))
    steps: dict[tuple[str, ...], dict[str, Path]] = {}
    found = [p for p in path.iterdir() if p.suffix in (".npy", ".pt")]
    # Beside grads_7, step_7 is a column; on its own, it is what was seen in step 7.
    columns = NAMES if any(_split(p, NAMES[:1])[1] != (p.stem,) for p in found) else NAMES[:3]
    for file in sorted(found, key=lambda p: _natural(p.stem)):
        column, key = _split(file, columns)
        steps.setdefault(key, {})[column] = file
    if not steps:
        raise UsageError(f"{path}: neither a tape nor a folder of .npy or .pt files")

    def chunks() -> Iterator[Columns]:
        for files in steps.values():
            step: dict[str, Array] = {}
            for column, file in files.items():
                step |= (
                    _torch_columns(file, column)
                    if file.suffix == ".pt"
                    else {column: load_array(file)}
                )
            yield _spread(step)

    return ColumnTape(chunks, source=str(path), steps_are_chunks=True)


def _spread(columns: Columns) -> Columns:
    """Return the columns; a step or epoch that is one number is repeated for every row."""
    count = len(columns["grads"]) if "grads" in columns else 0
    return {n: np.full(count, v) if np.ndim(v) == 0 else v for n, v in columns.items()}


def _split(file: Path, columns: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the column and the step in a file's name, such as ``grads_0012``."""
    found = re.fullmatch(r"([A-Za-z]+)[-_.]?(\d+)", file.stem)
    if found and canonical(found.group(1)) in columns:
        return canonical(found.group(1)), (found.group(2).zfill(20),)
    return "grads", (file.stem,)


def _natural(text: str) -> list[str]:
    return [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def load_array(path: Path) -> Array:
    """Return an array that stays on disk until its rows are read; nothing in it can execute."""
    try:
        if check_npy(path):  # before the next line maps what the file declares
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
            return found
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except Exception as error:  # whatever a foreign file makes the reader raise
        reason = one_line(error)
        raise UsageError(f"{path}: not a readable .npy file ({reason}): save it again") from None
    raise UsageError(f"{path}: holds several arrays, not one: save the one that is meant")


def _torch_columns(path: Path, alone: str = "grads") -> dict[str, Array]:
    """Return the columns in a file; a single tensor is the column ``alone``."""
    try:
        check_torch_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a foreign file makes the loader raise
        reason = one_line(str(error).split("\n", 1)[0])
        raise UsageError(f"{path}: not tensors alone ({reason}): save plain tensors") from None
    if isinstance(found, torch.Tensor):
        found = {alone: found}
    if not isinstance(found, dict):
        raise UsageError(f"{path}: holds a {type(found).__name__}, not a tensor or a dict of them")
    known = {str(name): value for name, value in found.items() if canonical(str(name)) in NAMES}
    return {
        name: _plain(value, path, name)
        for name, value in (known or dict.fromkeys(map(str, found))).items()
    }


def _plain(value: object, path: Path, name: str) -> Array:
    if isinstance(value, torch.Tensor):
        check_tensor(value, path, name)
        value = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        small = value.is_floating_point() and value.dtype.itemsize < _SINGLE
        return (value.float() if small else value).numpy()
    return np.asarray(value)


def _matrix(column: pa.Array, path: Path, name: str) -> Array:
    if pa.types.is_dictionary(column.type):
        column = _decoded(column, path, name)
    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    count = len(column)
    while _is_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(lengths) == 0 or not (lengths == lengths[0]).all():
            raise UsageError(f"{path}: the rows of {name} differ in length: a cut has one width")
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(count, -1)


def _decoded(column: pa.DictionaryArray, path: Path, name: str) -> pa.Array:
    """Return the texts of a dictionary column; refuse texts that are too long to be ids."""
    words = column.dictionary
    if len(words) and _is_text(words.type):
        longest = pc.max(pc.binary_length(words)).as_py() or 0
        if longest > _LONGEST:
            raise UsageError(
                f"{path}: a text in {name} has {longest} bytes, at most {_LONGEST} are read: give "
                "rows shorter ids"
            )
    return column.dictionary_decode()


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
