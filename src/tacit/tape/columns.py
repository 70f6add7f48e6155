"""Tapes made of columns: one row per example and release, in chunks of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import UsageError
from tacit.tape.tape import Recording, Sent
from tacit.types import View

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]

NAMES = ("grads", "embeddings", "ids", "step", "epoch")
_ALIASES = {
    "grad": "grads",
    "gradients": "grads",
    "embedding": "embeddings",
    "id": "ids",
    "steps": "step",
    "epochs": "epoch",
}
_STEP_ROWS = 1024
_CHUNK = 8192
_DOUBLE = 8  # bytes; no attack computes with more


@final
class ColumnTape(Recording):
    """A tape made of columns that are read in chunks.

    Args:
        chunks: starts a new pass over the chunks; a chunk maps column names to rows.
        source: where the columns come from, for messages.
        steps_are_chunks: whether a chunk is one step, as with one file per step.
        rows: how many rows there are, if that is known.

    >>> tape = ColumnTape.of({"grads": np.zeros((3, 2)), "ids": np.array([5, 6, 5])})
    >>> [(view.epoch, view.ids.tolist()) for view in tape]
    [(0, [5, 6]), (1, [5])]
    """

    def __init__(
        self,
        chunks: Callable[[], Iterator[Columns]],
        *,
        source: str,
        steps_are_chunks: bool = False,
        rows: int | None = None,
    ) -> None:
        super().__init__(source)
        self._chunks = chunks
        self._stepwise = steps_are_chunks
        self._rows = rows

    @classmethod
    def of(cls, columns: Mapping[str, Array], *, source: str = "the arrays") -> ColumnTape:
        """Return the tape of whole columns in memory, or mapped from files.

        Without gradients it has no views, only what was ``sent``.
        """
        first = _first_column(columns)
        known = _known(columns, source, first)
        count = len(known[first])

        def chunks() -> Iterator[Columns]:
            for start in range(0, count, _CHUNK):
                yield {name: values[start : start + _CHUNK] for name, values in known.items()}

        return cls(chunks, source=source, rows=count)

    def __iter__(self) -> Iterator[View]:
        """Yield one view per step, oldest first."""
        return map(self._view, self._steps("grads"))

    def sent(self) -> Iterator[Sent]:
        """Yield the embeddings of each step, also where there are no gradients."""
        for columns in self._steps("embeddings"):
            yield Sent(
                ids=self.encode_ids(columns["ids"]),
                epoch=int(columns["epoch"][0]),
                embeddings=_tensor(columns["embeddings"]),
            )

    def _steps(self, needed: str) -> Iterator[Columns]:
        """Yield the columns of each step, of which ``needed`` must be one."""
        splitter = _StepSplitter(stepwise=self._stepwise, source=self.source)
        row = 0
        for chunk in self._chunks():
            known = _known(chunk, self.source, needed)
            row += len(known[needed])
            yield from splitter.add(known, count=len(known[needed])) if len(known[needed]) else ()
        if not row:
            raise UsageError(f"{self.source}: holds no rows: record some steps first")
        yield from splitter.rest()

    def __len__(self) -> int:
        """Return how many rows there are."""
        if self._rows is None:
            self._rows = sum(len(c[_first_column(c)]) for c in map(_by_name, self._chunks()))
        return self._rows

    def _view(self, columns: Columns) -> View:
        sent = columns.get("embeddings")
        return View(
            grads=_tensor(columns["grads"]),
            embeddings=None if sent is None else _tensor(sent),
            ids=self.encode_ids(columns["ids"]),
            step=int(columns["step"][0]),
            epoch=int(columns["epoch"][0]),
        )


@final
class ViewTape(Recording):
    """A tape of views in memory; a view without ids gets its row numbers within the epoch."""

    def __init__(self, views: Iterable[View]) -> None:
        super().__init__("the views given")
        # An iterator can be read only once, and an audit reads twice.
        self._views = list(views) if isinstance(views, Iterator) else views

    def __iter__(self) -> Iterator[View]:
        """Yield one view per step, oldest first."""
        first, epoch, found = 0, None, False
        for step, view in enumerate(self._views):
            found = True
            first, epoch = (0, view.epoch) if view.epoch != epoch else (first, epoch)
            ids = torch.arange(first, first + len(view.grads)) if view.ids is None else view.ids
            first += len(view.grads)
            if len(ids) != len(view.grads):
                raise UsageError(f"view {step} has {len(view.grads)} grads and {len(ids)} ids")
            yield replace(
                view,
                grads=view.grads.detach(),
                ids=ids,
                step=step if view.step is None else view.step,
                epoch=view.epoch or 0,
            )
        if not found:
            raise UsageError("the tape holds no views: record some steps first")


@final
class _StepSplitter:
    """Splits rows into steps: where step or epoch changes, or an id is repeated."""

    def __init__(self, *, stepwise: bool, source: str) -> None:
        self._stepwise = stepwise
        self._source = source
        self._done: set[tuple[int, int]] = set()
        self._row = 0
        self._kept: list[Columns] = []
        self._count, self._step, self._epoch, self._next_id = 0, 0, 0, 0
        self._seen: set[object] = set()

    def add(self, columns: Columns, *, count: int) -> Iterator[Columns]:
        """Take ``count`` rows in; yield every step that is complete."""
        columns = self._numbered(columns, count)
        changes = (np.diff(columns["step"]) != 0) | (np.diff(columns["epoch"]) != 0)
        ends = [*(np.flatnonzero(changes) + 1).tolist(), len(columns["step"])]
        for start, end in zip([0, *ends], ends, strict=False):
            part = {name: values[start:end] for name, values in columns.items()}
            if self._kept and _step_of(self._kept[0]) != _step_of(part):
                yield from self.rest()
            self._check_order(part, self._row + start)
            self._kept.append(part)
        self._row += len(columns["step"])
        if self._stepwise:
            yield from self.rest()

    def rest(self) -> Iterator[Columns]:
        """Yield the step that is still open."""
        if self._kept:
            kept, self._kept = self._kept, []
            self._done.add(_step_of(kept[0]))
            yield {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}

    def _check_order(self, columns: Columns, row: int) -> None:
        if not self._stepwise and _step_of(columns) in self._done:
            epoch, step = _step_of(columns)
            raise UsageError(
                f"{self._source}: step {step} of epoch {epoch} goes on in row {row}, after another "
                "one: sort the rows by epoch and step, or give the epoch"
            )

    def _numbered(self, columns: Columns, count: int) -> Columns:
        """Return the columns with ids, steps and epochs filled in where they are missing."""
        found = dict(columns)
        if "epoch" not in found:
            found["epoch"] = self._epochs(found.get("ids"), count)
        if "ids" not in found:
            found["ids"] = self._row_numbers(found["epoch"])
        if "step" not in found:
            found["step"] = self._steps(found["epoch"])
        return found

    def _epochs(self, ids: Array | None, count: int) -> Array:
        epochs = np.empty(count, dtype=np.int64)
        for row, name in enumerate(range(0) if ids is None else ids.tolist()):
            if name in self._seen:
                self._epoch += 1
                self._seen.clear()
            self._seen.add(name)
            epochs[row] = self._epoch
        if ids is None:
            epochs[:] = self._epoch
        return epochs

    def _row_numbers(self, epochs: Array) -> Array:
        numbers = np.empty(len(epochs), dtype=np.int64)
        for row, epoch in enumerate(epochs.tolist()):
            if epoch != self._epoch:
                self._epoch, self._next_id = epoch, 0
            numbers[row] = self._next_id
            self._next_id += 1
        return numbers

    def _steps(self, epochs: Array) -> Array:
        if self._stepwise:
            self._step += 1
            return np.full(len(epochs), self._step - 1)
        steps = (np.arange(len(epochs)) + self._count) // _STEP_ROWS
        self._count += len(epochs)
        return steps


def _by_name(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the known columns under their canonical names."""
    return {canonical(n): v for n, v in columns.items() if canonical(n) in NAMES}


def _first_column(columns: Mapping[str, Array]) -> str:
    """Return the column that the others are as long as: gradients, or embeddings alone."""
    found = _by_name(columns)
    return "embeddings" if "grads" not in found and "embeddings" in found else "grads"


def _known(columns: Mapping[str, Array], source: str, needed: str) -> dict[str, Array]:
    """Return the known columns by name, or raise if the one that is needed is missing."""
    found = _by_name(columns)
    if needed not in found:
        names = "".join(c if c.isprintable() else "?" for c in ", ".join(columns))[:200]
        raise UsageError(
            f"{source}: has no {needed}, only {names or 'nothing'}{_way_out(needed, found)}"
        )
    first = _first_column(found)
    rows = found[first]
    if rows.dtype.kind != "f":
        raise UsageError(f"{source}: {first} must be floats, got {rows.dtype}: convert to float32")
    if rows.ndim == 0 or 0 in rows.shape[1:]:
        raise UsageError(f"{source}: {first} must be [N, ...], got shape {rows.shape}")
    for name, values in found.items():
        if values.ndim == 0 or len(values) != len(rows):
            raise UsageError(
                f"{source}: {name} must have {len(rows)} rows like {first}, got shape "
                f"{values.shape}"
            )
        found[name] = _checked(name, values, source)
    return found


def _way_out(needed: str, found: Mapping[str, Array]) -> str:
    if needed == "embeddings":
        return ": record what was sent, only that can show inputs"
    return ": that shows inputs only, give --inputs and no --truth" if "embeddings" in found else ""


def _checked(name: str, values: Array, source: str) -> Array:
    """Return a column in the type that is used for it, or raise if its values do not fit."""
    if name in ("grads", "embeddings"):
        if values.dtype.kind not in "fiu":
            raise UsageError(f"{source}: {name} must be floats, got {values.dtype}")
        exact = values.dtype.kind == "f" and values.dtype.itemsize <= _DOUBLE
        return values if exact else values.astype(np.float64)
    if values.ndim != 1:
        raise UsageError(f"{source}: {name} must be [N], one for each row, got {values.shape}")
    if values.dtype.kind == "S" and name == "ids":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind in "UO" and name == "ids":
        return values
    odd = _first_non_integer(values)
    if odd is not None:
        more = " or text" if name == "ids" else ""
        raise UsageError(
            f"{source}: {name} must be 64-bit integers{more}, got {values[odd]} in row {odd}"
        )
    return values.astype(np.int64)


def _first_non_integer(values: Array) -> int | None:
    """Return the first row that holds no 64-bit integer, or None."""
    if values.dtype.kind in "ib":
        return None
    if values.dtype.kind not in "uf":
        return 0
    fits = (values < 2**63) & (values == np.floor(values)) & (values >= -(2**63))
    return None if fits.all() else int(fits.argmin())


def _step_of(columns: Columns) -> tuple[int, int]:
    return int(columns["epoch"][0]), int(columns["step"][0])


def canonical(name: str) -> str:
    """Return the canonical name of a column: lower case, without aliases."""
    return _ALIASES.get(name.lower(), name.lower())


def _tensor(values: Array) -> torch.Tensor:
    found = torch.from_numpy(np.array(values))
    return found if found.dim() > 1 else found[:, None]
