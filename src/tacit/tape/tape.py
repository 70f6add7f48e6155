"""The tape: everything a feature party saw, on disk, in the order in which it saw it.

A tape is a folder of Arrow stream files, ``part-00000.arrows`` and so on, which are only ever
appended to. One record batch is one training step::

    id         int64 or string
    step       int64
    epoch      int32
    grad       fixed-size list of floats: the released gradient, one row per example
    embedding  the same, what was sent for it; absent if it was not recorded
    layer:N    the same, the gradient at a layer of the feature party; absent likewise

The schema's metadata holds ``tacit_tape``, the version of the format; each record batch carries a
checksum. There is no column for labels.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from tacit.errors import InputError, UsageError
from tacit.tape._arrow import (
    DAMAGE,
    VERSION,
    Ids,
    check_schema,
    checksum,
    count_rows,
    describe,
    id_array,
    is_intact,
    list_array,
    read_schema,
    row_tensor,
    uncompressed_batches,
)
from tacit.types import Cut, Release, View

_PART_BYTES = 1 << 30


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """What the feature party sent in one step: an embedding ``[B, ...]`` for each example."""

    ids: Tensor
    epoch: int
    embeddings: Tensor


class Recording(ABC):
    """A tape that can be read any number of times, with one batch in memory at a time.

    Attributes:
        source: its path or description, for messages.
        names: the text of every id met so far, by code; None where ids are integers.
        damaged: batches of the last pass that could not be read.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.names: dict[str, int] | None = None
        self.damaged = 0

    @abstractmethod
    def __iter__(self) -> Iterator[View]:
        """Yield one view per step, oldest first."""

    def sent(self) -> Iterator[Sent]:
        """Yield the embeddings of each step; a tape may have these alone, without gradients."""
        for view in self:
            if view.embeddings is None or view.ids is None:
                raise UsageError(
                    f"{self.source}: has no embeddings, and only they can show inputs: record "
                    "them, with embeddings= in every step"
                )
            yield Sent(ids=view.ids, epoch=view.epoch or 0, embeddings=view.embeddings)

    def encode_ids(self, ids: npt.NDArray[Any]) -> Tensor:
        """Return ids as int64: integers as they are, text by the order of first appearance."""
        if ids.dtype.kind in "iu":
            return torch.from_numpy(ids.astype(np.int64))
        names = self.names = {} if self.names is None else self.names
        return torch.tensor([names.setdefault(str(name), len(names)) for name in ids.tolist()])


@final
class RecordedTape(Recording):
    """Reads a tape from disk.

    A batch whose checksum is wrong is left out. Where a file is cut short, the batches before the
    cut are read, if there are any.

    Args:
        path: the tape's folder.
        layer: read the gradients at this layer of the feature party instead of those at the cut.

    Attributes:
        schema: the columns, as the first readable part has them.
    """

    def __init__(self, path: Path | str, *, layer: str | None = None) -> None:
        super().__init__(str(path))
        self._parts = sorted(Path(path).glob("part-*.arrows"))
        if not self._parts:
            raise UsageError(f"{path}: not a tape: there is no part-00000.arrows in it")
        self._column = "grad" if layer is None else f"layer:{layer}"
        found = [schema for part in self._parts if (schema := self._checked(part)) is not None]
        self.schema = found[0] if found else read_schema(self._parts[0])  # says what is wrong

    def _checked(self, part: Path) -> pa.Schema | None:
        """Return the schema of a part, or None if the part is cut short within it."""
        try:
            found = read_schema(part)
        except UsageError:
            return None
        check_schema(found, part, self._column)
        return found

    def __iter__(self) -> Iterator[View]:
        """Yield one view per step, oldest first."""
        self.damaged, found = 0, False
        for part in self._parts:
            for batch in self._batches(part):
                found = True
                yield self._view(batch)
        if not found:
            raise UsageError(
                f"{self.source}: holds no readable batch ({self.damaged} damaged): record it again"
            )

    def __len__(self) -> int:
        """Return how many rows there are, without reading them."""
        return sum(count_rows(part) for part in self._parts)

    def _batches(self, part: Path) -> Iterator[pa.RecordBatch]:
        left = uncompressed_batches(part)
        with pa.OSFile(str(part)) as file:
            try:
                reader = pa.ipc.open_stream(file)
            except DAMAGE:
                self.damaged += 1
                return
            for number in itertools.count():
                if number == left:
                    self.damaged += 1
                    return
                try:
                    batch, notes = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                except DAMAGE:
                    self.damaged += 1  # what follows a broken frame cannot be found again
                    return
                if not is_intact(batch, notes):
                    self.damaged += 1
                    continue
                yield batch

    def _view(self, batch: pa.RecordBatch) -> View:
        sent = batch.schema.get_field_index("embedding") >= 0
        return View(
            grads=row_tensor(batch.column(self._column)),
            embeddings=row_tensor(batch.column("embedding")) if sent else None,
            ids=self.encode_ids(batch.column("id").to_numpy(zero_copy_only=False)),
            step=batch.column("step")[0].as_py(),
            epoch=batch.column("epoch")[0].as_py(),
        )


@final
class TapeWriter:
    """Writes a tape, a step at a time.

    As a watcher of a guard, ``Guard(spec, watch=TapeWriter(path))``, it records what the guard
    releases; every batch needs ids then. In a loop without a guard, ``append`` takes the gradient
    as it arrives at the feature party.

    Args:
        path: the tape's folder; it must not hold a tape yet.
        append: go on with the tape that is there, e.g. when the same run goes on after a restart.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with TapeWriter(folder.name + "/run.tape") as tape:
    ...     tape.append(torch.tensor([7, 8]), torch.ones(2, 3))
    ...     tape.append(torch.tensor([8, 7]), torch.ones(2, 3))
    >>> [(view.step, view.epoch) for view in RecordedTape(folder.name + "/run.tape")]
    [(0, 0), (1, 1)]
    >>> from tacit import Guard
    >>> tape = TapeWriter(folder.name + "/guarded.tape")
    >>> guard, z = Guard("gaussian(sigma=1)", watch=tape), torch.ones(2, 3, requires_grad=True)
    >>> guard(z, torch.tensor([0, 1]), ids=torch.tensor([7, 8])).sum().backward()
    >>> [bool((view.grads == z.grad).all()) for view in RecordedTape(tape.path)]
    [True]
    >>> tape.close()
    >>> folder.cleanup()
    """

    def __init__(self, path: Path | str, *, append: bool = False) -> None:
        self.path = Path(path)
        if is_tape(self.path) and not append:
            raise UsageError(
                f"{path}: holds a tape already, and an audit would take both runs for one: choose "
                "another name, or pass append=True where the same run goes on"
            )
        if self.path.is_dir() and not is_tape(self.path) and any(self.path.iterdir()):
            raise UsageError(f"{path}: the folder holds something else: choose another name")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path}: cannot be made: {error.strerror}") from None
        self._sink: pa.OSFile | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._schema: pa.Schema | None = None
        self._counter = _StepCounter()
        if is_tape(self.path):
            tape = RecordedTape(self.path)
            self._schema = tape.schema
            for view in tape:
                assert view.ids is not None  # noqa: S101 - the reader sets them
                self._counter.next(view.ids.tolist(), view.step, view.epoch)
            if tape.names is not None:
                self._counter.use_names(list(tape.names))

    def __call__(self, cut: Cut, release: Release) -> None:
        """Record what a guard has released, with the embedding that it belongs to."""
        if cut.ids is None:
            raise InputError(
                "a tape knows examples by their id, and an audit adds up over the epochs by it: "
                "pass ids= with every batch"
            )
        self.append(cut.ids.cpu(), release.grads, embeddings=cut.embeddings, step=release.step)

    def append(
        self,
        ids: Ids,
        grads: Tensor | npt.NDArray[Any],
        *,
        embeddings: Tensor | npt.NDArray[Any] | None = None,
        step: int | None = None,
        epoch: int | None = None,
        layers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write one step.

        ``grads`` is what the feature party is sent: in a loop of one process, the gradient at the
        output of the bottom model itself, before any protection takes it. What a guard returned has
        the clean gradient, and is refused where it is given as ``embeddings`` too.

        Without ``step`` it is the next one; without ``epoch`` a new one begins when an id comes
        again. All steps of a tape have the same columns.
        """
        _refuse_clean(grads, embeddings)
        names = id_array(ids)
        columns = {"grad": grads, "embedding": embeddings}
        columns |= {f"layer:{name}": values for name, values in (layers or {}).items()}
        rows = {n: list_array(v, n, len(names)) for n, v in columns.items() if v is not None}
        if "grad" not in rows:
            raise InputError("grads must be a tensor [B, ...], got None: call retain_grad() on it")
        # Last, because a step that is refused must not be counted.
        step, epoch = self._counter.next(names.tolist(), step, epoch)
        arrays = {
            "id": pa.array(names),
            "step": pa.array(np.full(len(names), step, dtype=np.int64)),
            "epoch": pa.array(np.full(len(names), epoch, dtype=np.int32)),
            **rows,
        }
        self._write(pa.RecordBatch.from_pydict(arrays, metadata={"tacit_tape": str(VERSION)}))

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._schema is not None and batch.schema != self._schema:
            raise InputError(
                f"{self.path}: a tape has {describe(self._schema)} in every step, "
                f"got {describe(batch.schema)}: start another tape"
            )
        self._schema = batch.schema
        if self._sink is not None and self._sink.tell() > _PART_BYTES:
            self.close()
        if self._writer is None:
            parts = sorted(self.path.glob("part-*.arrows"))
            number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
            self._sink = pa.OSFile(str(self.path / f"part-{number:05d}.arrows"), "wb")
            self._writer = pa.ipc.new_stream(self._sink, batch.schema)
        self._writer.write_batch(batch, custom_metadata={"sum64": str(checksum(batch))})

    def close(self) -> None:
        """End the file that is being written; appending again starts the next one."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._sink.close()
        self._writer = self._sink = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@final
class _StepCounter:
    """Numbers steps and epochs; a new epoch begins when an id is repeated."""

    def __init__(self) -> None:
        self._step, self._epoch = -1, 0
        self._seen: set[object] = set()

    def next(self, ids: list[Any], step: int | None, epoch: int | None) -> tuple[int, int]:
        self._step = self._step + 1 if step is None else step
        if epoch is None:
            epoch = self._epoch + (not self._seen.isdisjoint(ids))
        if epoch != self._epoch:
            self._epoch = epoch
            self._seen.clear()
        self._seen.update(ids)
        return self._step, self._epoch

    def use_names(self, names: list[str]) -> None:
        """Replace the codes of the ids seen so far by their text."""
        self._seen = {names[code] for code in self._seen if isinstance(code, int)}


def _refuse_clean(grads: object, embeddings: object) -> None:
    """Refuse the gradient of what a guard returned: it is the one that the guard protects."""
    if not isinstance(embeddings, Tensor) or not embeddings.retains_grad:
        return
    from tacit.guard.guard import is_guarded  # noqa: PLC0415 - only a loop of one process gets here

    own = embeddings.grad
    same = own is not None and isinstance(grads, Tensor) and grads.data_ptr() == own.data_ptr()
    if same and is_guarded(embeddings):
        raise InputError(
            "grads is the gradient of what the guard returned, which is the clean one and not what "
            "is released: pass the writer to the guard, Guard(..., watch=TapeWriter(path)), or "
            "record the gradient of the bottom model's own output"
        )


def is_tape(path: Path) -> bool:
    """Whether a path is a folder in the format of a tape."""
    return path.is_dir() and any(path.glob("part-*.arrows"))
