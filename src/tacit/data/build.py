"""Turn chunks of rows into the files of a table, in memory that does not grow with the rows.

Readers hand over :class:`Chunk` after :class:`Chunk`; :class:`Layout` names the columns, and
:class:`Coding` is what was learned of them. Two passes. The first appends every chunk to raw files:
numbers as read, categories as codes of a dictionary of that chunk. The second knows the scales and
all values, and writes the arrays. What stays in memory is one chunk and the distinct values of each
chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.data.draws import Array
from tacit.data.readers import Arrow
from tacit.data.tables import Columns
from tacit.errors import InputError

Scale: TypeAlias = Literal["unit", "standard", "none"]
DAY = 86_400
_BLOCK = 1 << 17


@final
@dataclass(frozen=True)
class Layout:
    """The columns of a table to be built, how to scale its numbers and how to divide its rows."""

    name: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    scale: Scale
    test_fraction: float
    parties: tuple[Columns, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows as read: raw numbers [B, n], one text array per category, labels [B] from 0.

    ``labels`` is None where the file has none: that of a feature party, or one to predict.
    ``ids`` are int64 or text; ``time`` is int64 seconds since 1970 and orders the rows; ``test``
    marks rows of a test part that comes with the data.
    """

    numeric: Array
    categorical: tuple[Arrow, ...]
    labels: Array | None
    ids: Array | None = None
    time: Array | None = None
    test: Array | None = None

    def __len__(self) -> int:
        return len(self.numeric)


@final
@dataclass(frozen=True, eq=False)
class Coding:
    """How raw values become scaled numbers and codes: learned from one file, used on any.

    A number becomes ``(number - offset) / spread``, and 0 in a column whose ``spread`` is 0. A
    category becomes its position in the sorted ``values`` of its column; a value that is not
    there gets the code after the last.

    >>> coding = Coding(np.array([2.0, 7.0]), np.array([4.0, 0.0]), ())
    >>> coding.scale(np.array([[5.0, 9.0]])).tolist()
    [[0.75, 0.0]]
    """

    offset: Array
    spread: Array
    values: tuple[Arrow, ...]

    def scale(self, block: Array) -> Array:
        """Return a block [B, n] scaled, as float32."""
        constant = self.spread == 0.0
        scaled: Array = (block - self.offset) / np.where(constant, 1.0, self.spread)
        scaled[:, constant] = 0.0
        return scaled.astype(np.float32)


@final
class Scaler:
    """Scale columns by statistics of all rows, gathered block by block.

    ``unit`` maps the smallest value to 0 and the largest to 1; ``standard`` gives mean 0 and
    variance 1; a constant column becomes 0. The statistics are those of all rows, training and
    test together, because the papers scale before they split.

    >>> scaler = Scaler("unit", 1)
    >>> scaler.update(np.array([[2.0], [6.0], [4.0]]))
    >>> scaler.apply(np.array([[2.0], [5.0]])).tolist()
    [[0.0], [0.75]]
    """

    def __init__(self, kind: Scale, width: int) -> None:
        self.kind = kind
        self.count = 0
        self.low = np.full(width, np.inf)
        self.high = np.full(width, -np.inf)
        self.mean = np.zeros(width)
        self.square = np.zeros(width)

    def update(self, block: Array) -> None:
        """Take a block [B, n] into account (means and squares merge as Chan et al. do)."""
        size = len(block)
        if not size:
            return
        self.low = np.minimum(self.low, block.min(axis=0))
        self.high = np.maximum(self.high, block.max(axis=0))
        mean = block.mean(axis=0, dtype=np.float64)
        total = self.count + size
        apart = mean - self.mean
        self.square += ((block - mean) ** 2).sum(axis=0) + apart**2 * (self.count * size / total)
        self.mean += apart * (size / total)
        self.count = total

    def coding(self, values: tuple[Arrow, ...] = ()) -> Coding:
        """Return what was learned of the numbers, with the values of the categories."""
        if self.kind == "none":
            return Coding(np.zeros_like(self.mean), np.ones_like(self.mean), values)
        offset, spread = self.low, self.high - self.low
        if self.kind == "standard":
            offset, spread = self.mean, np.sqrt(self.square / max(1, self.count))
        return Coding(offset, np.where(self.high == self.low, 0.0, spread), values)

    def apply(self, block: Array) -> Array:
        """Return the block scaled, as float32."""
        return self.coding().scale(block)


def build(
    chunks: Iterable[Chunk],
    layout: Layout,
    folder: Path,
    *,
    known: Coding | None = None,
    check_ids: Callable[[Array], None] | None = None,
) -> Coding:
    """Write the arrays of a table and ``table.json`` into an empty folder; return the coding.

    With ``known``, numbers and categories are coded as in the file that it was learned from, and
    the labels, if any, need not have every class. ``check_ids`` sees all ids in the order of the
    file.
    """
    with _Spool(folder, layout) as spool:
        for chunk in chunks:
            spool.add(chunk)
    return spool.finish(known, check_ids)


@final
class _Spool:
    """The raw files of the first pass, and what the second pass must know."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self.scaler = Scaler(layout.scale, len(layout.numeric))
        self.words: list[list[Arrow]] = [[] for _ in layout.categorical]
        self.sizes: list[int] = []
        self.id_types: list[np.dtype[np.generic]] = []
        self.seen = np.zeros(0, dtype=np.int64)
        self.latest, self.sorted = -(1 << 62), True
        self.files = ExitStack()
        self.raw: dict[str, BinaryIO] = {}

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()

    def add(self, chunk: Chunk) -> None:
        """Append one chunk to the raw files."""
        if not len(chunk):
            return
        self.sizes.append(len(chunk))
        self.scaler.update(chunk.numeric)
        self._append("numeric", chunk.numeric)
        codes = [self._encode(at, column) for at, column in enumerate(chunk.categorical)]
        if codes:
            self._append("categorical", np.column_stack(codes))
        if chunk.labels is not None:
            self._append("labels", chunk.labels)
            counts = np.bincount(chunk.labels, minlength=len(self.seen))
            counts[: len(self.seen)] += self.seen
            self.seen = counts
        if chunk.ids is not None:
            self.id_types.append(chunk.ids.dtype)
            self._append("ids", chunk.ids)
        if chunk.time is not None:
            steps = np.diff(chunk.time, prepend=self.latest)
            self.sorted, self.latest = self.sorted and bool((steps >= 0).all()), chunk.time[-1]
            self._append("time", chunk.time)
        if chunk.test is not None:
            self._append("test", chunk.test)

    def _append(self, part: str, array: Array) -> None:
        if part not in self.raw:
            path = self.folder / f"{part}.raw"
            self.raw[part] = self.files.enter_context(path.open("wb"))
        array.tofile(self.raw[part])

    def _encode(self, column: int, text: Arrow) -> Array:
        encoded = text.cast(pa.large_string()).dictionary_encode()
        self.words[column].append(encoded.dictionary)
        codes: Array = encoded.indices.to_numpy().astype(np.int32)
        return codes

    def finish(
        self, known: Coding | None = None, check_ids: Callable[[Array], None] | None = None
    ) -> Coding:
        """Write the arrays from the raw files, remove those, and describe the table."""
        rows = sum(self.sizes)
        if not rows:
            name = self.layout.name
            raise InputError(f"{name} has no rows: check that the file is complete")
        coding = known
        if coding is None:
            self._check_labels()
            coding = self.scaler.coding(self._values())
        self._write("numeric", np.dtype(np.float32), len(coding.offset), self._numbers(coding))
        self._write_categories(coding)
        if "labels" in self.raw:
            whole = np.dtype(np.int64)
            self._write("labels", whole, None, self._blocks("labels", whole))
        self._write("ids", *self._ids())
        if check_ids is not None:
            check_ids(np.load(self.folder / "ids.npy", mmap_mode="r", allow_pickle=False))
        if "time" in self.raw:
            days = (t // DAY for t in self._blocks("time", np.dtype(np.int64)))
            self._write("day", np.dtype(np.int32), None, days)
        if "test" in self.raw:
            self._write("test", np.dtype(bool), None, self._blocks("test", np.dtype(bool)))
        if not self.sorted:
            self._sort()
        for path in self.folder.glob("*.raw"):
            path.unlink()
        cardinalities = [len(values) for values in coding.values]
        facts = {"rows": rows, "cardinalities": cardinalities, "classes": len(self.seen)}
        text = json.dumps({**asdict(self.layout), **facts})
        (self.folder / "table.json").write_text(text, encoding="utf-8")
        return coding

    def _check_labels(self) -> None:
        name, rows = self.layout.name, sum(self.sizes)
        if "labels" not in self.raw:
            return
        if np.count_nonzero(self.seen) < 2:
            raise InputError(
                f"labels of {name} must have two classes, all {rows} rows have "
                f"label {int(np.argmax(self.seen))}: check the label column"
            )
        if not self.seen.all():
            raise InputError(
                f"labels of {name} must be 0, 1, ... without a gap, no row has label "
                f"{int(np.argmin(self.seen))}: renumber them or name the positive value"
            )

    def _blocks(self, part: str, dtype: np.dtype[np.generic], width: int = 1) -> Iterator[Array]:
        """Yield a raw file chunk by chunk, as it was appended."""
        with (self.folder / f"{part}.raw").open("rb") as file:
            for size in self.sizes:
                yield np.fromfile(file, dtype, size * width)

    def _numbers(self, coding: Coding) -> Iterator[Array]:
        width = len(self.layout.numeric)
        for block in self._blocks("numeric", np.dtype(np.float64), width):
            yield coding.scale(block.reshape(-1, width))

    def _values(self) -> tuple[Arrow, ...]:
        """Return the distinct values of each category, sorted."""
        return tuple(pa.concat_arrays(words).unique().sort() for words in self.words)

    def _write_categories(self, coding: Coding) -> None:
        """Write the position of each value among the known ones."""
        maps = []
        for words, known in zip(self.words, coding.values, strict=True):
            found = pc.index_in(pa.concat_arrays(words), value_set=known)
            codes = pc.fill_null(found, len(known)).to_numpy().astype(np.int32)
            maps.append(np.split(codes, np.cumsum([len(chunk) for chunk in words])[:-1]))
        width = len(maps)
        blocks = (
            np.column_stack([maps[at][chunk][local] for at, local in enumerate(block.T)])
            for chunk, block in enumerate(
                raw.reshape(-1, width)
                for raw in self._blocks("categorical", np.dtype(np.int32), width)
            )
        )
        self._write("categorical", np.dtype(np.int32), width, blocks)

    def _ids(self) -> tuple[np.dtype[np.generic], None, Iterator[Array]]:
        """Return the ids; text as wide as the widest, row numbers where there are none."""
        if not self.id_types:
            starts = np.cumsum([0, *self.sizes[:-1]])
            counted = (
                np.arange(at, at + size) for at, size in zip(starts, self.sizes, strict=True)
            )
            return np.dtype(np.int64), None, counted
        return np.result_type(*self.id_types), None, self._stored_ids()

    def _stored_ids(self) -> Iterator[Array]:
        with (self.folder / "ids.raw").open("rb") as file:
            for size, dtype in zip(self.sizes, self.id_types, strict=True):
                yield np.fromfile(file, dtype, size)

    def _write(
        self, part: str, dtype: np.dtype[np.generic], width: int | None, blocks: Iterable[Array]
    ) -> None:
        shape = (sum(self.sizes), *([] if width is None else [width]))
        if 0 in shape:
            return
        with npy_file(self.folder / f"{part}.npy", dtype, shape) as file:
            for block in blocks:
                block.astype(dtype, copy=False).tofile(file)

    def _sort(self) -> None:
        """Put the rows of every array in time order; rows of one time keep their order."""
        order = np.argsort(np.fromfile(self.folder / "time.raw", np.int64), kind="stable")
        for path in sorted(self.folder.glob("*.npy")):
            unsorted = path.rename(path.with_suffix(".unsorted"))
            array = np.load(unsorted, mmap_mode="r", allow_pickle=False)
            with npy_file(path, array.dtype, array.shape) as file:
                for at in range(0, len(order), _BLOCK):
                    np.ascontiguousarray(array[order[at : at + _BLOCK]]).tofile(file)
            del array
            unsorted.unlink()


@contextmanager
def npy_file(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Open an array file behind its header, to be filled block by block."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_2_0(file, header)
        yield file
