"""The columns of a tape as Arrow arrays, and checks for damaged files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from tacit.errors import InputError, UsageError
from tacit.rows import as_rows

VERSION = 1
DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError)
_OFFSET = 4  # bytes: text has one offset more than rows, which nbytes does not count
_KINDS = {
    "id": (pa.int64(), pa.string()),
    "step": (pa.int64(),),
    "epoch": (pa.int32(),),
}
_KEPT = (torch.float16, torch.float32, torch.float64)

Ids = Tensor | Sequence[str] | npt.NDArray[Any]


def id_array(ids: Ids) -> npt.NDArray[Any]:
    """Return ids as an array of int64 or of text."""
    found = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
    if found.ndim != 1 or found.dtype.kind not in "iuUO":
        raise InputError(f"ids must be [B] integers or text, got {found.dtype} {found.shape}")
    if found.dtype.kind == "u" and bool((found >= 2**63).any()):
        raise InputError(f"ids must be below 2**63, got {found.max()}: give them as text")
    return found.astype(np.int64) if found.dtype.kind in "iu" else found.astype(np.str_)


def list_array(values: Tensor | npt.NDArray[Any], name: str, count: int) -> pa.Array:
    """Return rows as fixed-size lists; types that Arrow lacks become ``float32``."""
    rows = as_rows(torch.as_tensor(values).detach(), name=name).cpu()
    if len(rows) != count:
        raise InputError(f"{name} must have {count} rows like ids, got {len(rows)}")
    kept = rows if rows.dtype in _KEPT else rows.float()
    flat = np.ascontiguousarray(kept.numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), rows.shape[1])


def row_tensor(column: pa.Array) -> Tensor:
    """Return fixed-size lists as a matrix, copied out of the file's memory."""
    width = column.type.list_size
    return torch.from_numpy(column.flatten().to_numpy().reshape(-1, width).copy())


def checksum(batch: pa.RecordBatch) -> int:
    """Return the sum of a batch's bytes as 64-bit words: ten times as fast as a CRC.

    It is there to notice damage (a flipped bit, a block of zeros), not malice.
    """
    found = 0
    for column in batch.columns:
        flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        for buffer in flat.buffers():
            if buffer is not None:
                words, rest = divmod(buffer.size, 8)
                found += int(np.frombuffer(buffer, np.uint64, words).sum(dtype=np.uint64))
                found += sum(buffer[buffer.size - rest :].to_pybytes()) if rest else 0
    return found % 2**64


def is_intact(batch: pa.RecordBatch, notes: pa.KeyValueMetadata | None) -> bool:
    """Whether a batch is as it was written: whole columns, and the right checksum."""
    try:
        batch.validate()  # first: what it refuses would end the process in the next line
        whole = batch.num_rows > 0 and all(_filled(column) for column in batch.columns)
        noted = -1 if notes is None else int(notes.get(b"sum64", b"-1"))
        return whole and noted == checksum(batch)
    except (*DAMAGE, OverflowError):
        return False


def _filled(column: pa.Array) -> bool:
    """Whether all of a column's memory is in use and no value is missing."""
    flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    if column.null_count or flat.null_count:
        return False
    used = sum(buffer.size for buffer in flat.buffers() if buffer is not None)
    return bool(used == flat.nbytes + _OFFSET * pa.types.is_string(flat.type))


def uncompressed_batches(part: Path) -> int | None:
    """Return how many batches come before one that must not be read; None if all may be read.

    A compressed batch takes its full memory before it can be checked, and tapes have none. Damage
    is left to the reader.
    """
    try:
        with pa.memory_map(str(part)) as file:
            for number, message in enumerate(pa.ipc.MessageReader.open_stream(file)):
                kind = "schema" if number == 0 else "record batch"
                if message.type != kind or (number and _is_compressed(message.metadata)):
                    return max(0, number - 1)
    except (*DAMAGE, struct.error):
        pass
    return None


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a batch's flatbuffer has a field for its compression, the fourth of its fields."""
    content = metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """Return where a field of a table is, 0 where it has none."""
        fields = table - struct.unpack_from("<i", content, table)[0]
        at = 4 + 2 * number
        if fields < 0 or at >= struct.unpack_from("<H", content, fields)[0]:
            return 0
        offset = struct.unpack_from("<H", content, fields + at)[0]
        return table + int(offset) if offset else 0

    header = field(struct.unpack_from("<I", content, 0)[0], 2)
    return bool(field(header + struct.unpack_from("<I", content, header)[0], 3))


def read_schema(part: Path) -> pa.Schema:
    """Return the schema of a part, or raise if it is not an Arrow stream."""
    try:
        with pa.OSFile(str(part)) as file:
            found = pa.ipc.open_stream(file).schema
            describe(found)  # a name that is no text is damage too
            return found
    except DAMAGE as error:
        raise UsageError(f"{part}: not an Arrow stream ({error}): remove or restore it") from None


def check_schema(schema: pa.Schema, part: Path, column: str) -> None:
    """Refuse a part of another kind, of a later format or without the column asked for."""
    version = (schema.metadata or {}).get(b"tacit_tape")
    if version is None or not version.isdigit():
        raise UsageError(f"{part}: an Arrow file, but not a tape: record one with TapeWriter")
    if int(version) > VERSION:
        raise UsageError(
            f"{part}: a tape of format {int(version)}, this version reads up to {VERSION}: "
            "update tacit"
        )
    if schema.get_field_index(column) < 0:
        raise UsageError(f"{part}: has no {column}, it has {describe(schema)}")
    lists = {column, "embedding"} & set(schema.names)
    whole = all(
        schema.get_field_index(name) >= 0 and schema.field(name).type in kinds
        for name, kinds in _KINDS.items()
    )
    if not whole or not all(_is_rows(schema.field(name).type) for name in lists):
        raise UsageError(f"{part}: is damaged, it has {describe(schema)}: remove or restore it")


def _is_rows(kind: pa.DataType) -> bool:
    rows = pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
    return bool(rows and kind.list_size > 0)


def describe(schema: pa.Schema) -> str:
    """Return the columns and their types, for messages."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def count_rows(part: Path) -> int:
    """Return the number of rows of a part from its message headers alone."""
    rows = 0
    try:
        with pa.memory_map(str(part)) as file:
            for batch in pa.ipc.open_stream(file):
                rows += batch.num_rows
    except DAMAGE:
        pass  # the rows after the damage are lost; reading says so
    return rows
