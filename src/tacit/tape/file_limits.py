"""How much memory a foreign file may take, checked before any of it is allocated.

A file of a megabyte can declare terabytes, or hold gigabytes of compressed zeros. What is read into
memory at once is at most ``max(FREE, GROWTH * size on disk)``: recorded gradients shrink by less
than a half when they are compressed.
"""

from __future__ import annotations

import ast
import math
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import pyarrow.parquet as pq
import torch

from tacit.errors import UsageError

FREE = 256 << 20
GROWTH = 16
_HEADER = 10_000  # bytes, as numpy's own limit
_SIZES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT = 4  # bytes of a text's index in its dictionary; the texts are counted as stored
_LONGEST = 1 << 20  # bytes of a page header
_DEEPEST = 8
_SIZE, _PAGES, _VALUES = 3, (5, 8), 1  # fields: compressed size, data page, number of values

Struct = dict[int, "int | Struct"]
Array = np.ndarray[Any, np.dtype[Any]]


def one_line(error: object, *, longest: int = 160) -> str:
    """Return what an error says as one line of printable text."""
    text = "".join(c if c.isprintable() else " " for c in str(error))
    return " ".join(text.split())[:longest] or type(error).__name__


def allowed(path: Path) -> int:
    """Return how many bytes a file may take when it is read."""
    return max(FREE, GROWTH * path.stat().st_size)


def _npy_facts(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Return type, shape, whether columns come first, and where the array begins; or raise."""
    start = file.read(8)
    if start[:6] != b"\x93NUMPY" or len(start) < 8 or start[6] not in (1, 2, 3):
        raise ValueError("it does not begin like an array")
    size = struct.Struct("<H" if start[6] == 1 else "<I")
    (length,) = size.unpack(file.read(size.size))
    if length > _HEADER:
        raise ValueError(f"its header has {length} bytes, at most {_HEADER} are read")
    text = file.read(length).decode("latin-1" if start[6] < 3 else "utf-8")
    facts = ast.literal_eval(text.strip())
    dtype = np.lib.format.descr_to_dtype(facts["descr"])
    shape = tuple(facts["shape"])
    if not all(type(side) is int and 0 <= side < 2**63 for side in shape):
        raise ValueError(f"its shape is {shape}")
    if dtype.hasobject:
        raise ValueError("it is no array of numbers or text, and nothing is unpickled")
    return dtype, shape, bool(facts["fortran_order"]), len(start) + size.size + length


def check_npy(path: Path) -> bool:
    """Refuse an ``.npy`` file that is shorter than it says; return False for an ``.npz`` file."""
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            return False
        file.seek(0)
        dtype, shape, _, start = _npy_facts(file)
        size, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - start
        if size > held:
            raise ValueError(f"it declares {dtype} {shape}, {size} bytes, and holds {held}")
        return True


def read_members(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of an ``.npz`` file that are wanted, and the names of all."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = {name: info for name, info in members.items() if wanted(name)}
        declared, most = sum(info.file_size for info in chosen.values()), allowed(path)
        if declared > most:
            raise ValueError(_too_much(declared, path))
        return {n: _member(archive, info) for n, info in chosen.items()}, list(members)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is packed by method {info.compress_type}, not by numpy")
    with archive.open(info) as file:
        dtype, shape, columns_first, start = _npy_facts(file)  # type: ignore[arg-type]
        size = math.prod(shape) * dtype.itemsize
        if start + size != info.file_size:
            raise ValueError(
                f"{info.filename} declares {dtype} {shape}, {size} bytes, and holds "
                f"{info.file_size - start}"
            )
        content = file.read(size)
        if len(content) != size or file.read(1):  # the end is where its sum is checked
            raise ValueError(f"{info.filename} is cut short")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if columns_first else "C")


def check_parquet(file: pq.ParquetFile, path: Path, columns: list[str]) -> list[str]:
    """Refuse columns that take far more memory than the file has bytes; return those of text.

    Text must be read as a dictionary: then it takes as much memory as it takes in the file.
    """
    facts, declared, text = file.metadata, 0, set()
    for number in range(facts.num_columns):
        kind = facts.schema.column(number)
        if kind.path.split(".")[0] not in columns:
            continue
        if kind.physical_type == "BYTE_ARRAY":
            text.add(kind.path)
        width = _SIZES.get(kind.physical_type, max(_TEXT, kind.length))
        for group in range(facts.num_row_groups):
            chunk = facts.row_group(group).column(number)
            declared += max(_values(chunk, path) * width, chunk.total_uncompressed_size)
    if max(declared, facts.num_rows) > allowed(path):
        raise ValueError(_too_much(max(declared, facts.num_rows), path))
    if not text <= set(columns):
        raise ValueError(f"{', '.join(sorted(text - set(columns)))} is text within a list")
    return sorted(text)


def _values(chunk: pq.ColumnChunkMetaData, path: Path) -> int:
    """Return the number of values in a column's pages; it must be the number in the footer."""
    start = chunk.dictionary_page_offset
    start = chunk.data_page_offset if start is None else min(start, chunk.data_page_offset)
    with path.open("rb") as file:
        held = count_values(file, start=start, size=chunk.total_compressed_size)
    if held != chunk.num_values:
        raise ValueError(f"{chunk.path_in_schema} has {held} values, not {chunk.num_values}")
    return held


def check_torch_file(path: Path) -> None:
    """Refuse a file of tensors whose members are compressed: ``torch.save`` never does that."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        declared = sum(info.file_size for info in archive.infolist())
    if declared > path.stat().st_size:
        raise ValueError(f"{_too_much(declared, path)}, and torch.save does not compress")


def check_tensor(value: torch.Tensor, path: Path, name: str) -> None:
    """Refuse a tensor of more numbers than the file holds: one that repeats or is sparse."""
    size = value.numel() * value.element_size()
    if size > allowed(path):
        raise UsageError(
            f"{path}: {name} declares shape {tuple(value.shape)}, {size} bytes, in a file of "
            f"{path.stat().st_size}: save it as a plain tensor, with .contiguous()"
        )


def _too_much(declared: int, path: Path) -> str:
    size = path.stat().st_size
    return (
        f"it would unfold from {size} to {declared} bytes, at most {allowed(path)} are read: save "
        "it without compression"
    )


def count_values(file: BinaryIO, *, start: int, size: int) -> int:
    """Return the number of values in the pages of one column, or raise ValueError."""
    values, end = 0, start + size
    while start < end:
        file.seek(start)
        header = _ThriftReader(file.read(min(_LONGEST, end - start)))
        page = header.read_struct()
        for field in _PAGES:
            data = page.get(field)
            if isinstance(data, dict):
                values += _number(data.get(_VALUES))
        start += header.offset + _number(page.get(_SIZE))
    return values


def _number(value: int | Struct | None) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a page without a size or a number of values")
    return value


@final
class _ThriftReader:
    """Reads the numbers of a Thrift structure in the compact protocol, and skips the rest."""

    def __init__(self, content: bytes) -> None:
        self.offset = 0
        self._content = content

    def read_struct(self, depth: int = 0) -> Struct:
        """Return the whole numbers and structures of a structure, by their field numbers."""
        if depth > _DEEPEST:
            raise ValueError("a page header that is nested too deep")
        found: Struct = {}
        field = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._signed()
            value = self._value(kind, depth)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, depth: int) -> int | Struct | None:
        if kind in (1, 2):  # a truth value is in its kind
            return None
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 12:
            return self.read_struct(depth + 1)
        steps = {3: 1, 7: 8}
        if kind in steps:
            self._skip(steps[kind])
        elif kind == 8:
            self._skip(self._unsigned())
        elif kind in (9, 10):
            self._skip_list(depth)
        else:
            raise ValueError(f"a page header with a field of kind {kind}")
        return None

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        for _ in range(min(count, len(self._content))):
            if head & 15 in (1, 2):
                self._skip(1)
            else:
                self._value(head & 15, depth + 1)

    def _byte(self) -> int:
        self._skip(1)
        return self._content[self.offset - 1]

    def _skip(self, count: int) -> None:
        if self.offset + count > len(self._content):
            raise ValueError("a page header that is cut short")
        self.offset += count

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a page header with a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
