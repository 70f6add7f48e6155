"""Embeddings that feature parties uploaded, in the label party's state folder.

Of each feature party there is ``PEER.f32``, the rows in their common order as ``float32``, and
``PEER.json``, what they are: of which bottom and which common rows, and on which grid they were
sent. A part is on disk before it is acknowledged, and the file grows by whole parts, so its length
says how many there are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.atomic import sync_folder
from tacit.errors import InputError, PeerError, UsageError
from tacit.party.proxies import LARGEST
from tacit.pretrain import Grid, unpacked
from tacit.state_dir import StateFolder, open_own, remove_own
from tacit.wire.protocol.messages import Upload
from tacit.wire.protocol.plan import TrainingPlan

EMBEDDINGS = "embeddings"
UPLOADED = "upload.json"
"""What a feature party notes in its state folder when the label party has everything."""
_VALUES = 1 << 20  # in one part: 4 MB
_FORMAT = 1


def rows_per_part(width: int) -> int:
    """Return how many rows go into one part of an upload.

    >>> rows_per_part(32)
    32768
    """
    return max(1, _VALUES // width)


@final
@dataclass(frozen=True, kw_only=True)
class UploadForm:
    """What an upload consists of, as far as both sides know it before it begins.

    On a grid, the first part is the grid itself: the lowest value and the step of each number.
    """

    rows: int
    width: int
    bits: Literal[32, 8, 4] = 32

    @classmethod
    def of(cls, plan: TrainingPlan, rows: int) -> UploadForm:
        """Return the form of an upload by a plan."""
        return cls(rows=rows, width=prod(plan.cut), bits=plan.embed_bits)

    @property
    def before(self) -> int:
        """How many parts come before the rows."""
        return 0 if self.bits == 32 else 1

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return self.before - (-self.rows // rows_per_part(self.width))

    def span(self, part: int) -> tuple[int, int]:
        """Return the first row of a part and the row after its last one."""
        size, number = rows_per_part(self.width), part - self.before
        return size * number, min(self.rows, size * (number + 1))


@final
class StoredEmbeddings:
    """What one feature party has uploaded so far.

    Args:
        folder: the label party's state folder.
        peer: who uploads.
        common: the digest of the common rows.
        form: what the upload consists of.
    """

    def __init__(self, folder: StateFolder, peer: str, *, common: str, form: UploadForm) -> None:
        self.peer, self.form, self._common = peer, form, common
        self._path = folder.folder(EMBEDDINGS) / f"{peer}.f32"
        self._folder, self._facts_name = folder, f"{EMBEDDINGS}/{peer}.json"
        self._facts: dict[str, Any] | None = folder.read(self._facts_name)
        if self._facts is not None and self._facts["format"] != _FORMAT:
            raise UsageError(
                f"{self._path}: embeddings of format {self._facts['format']}, this is format "
                f"{_FORMAT}: use the version that wrote them"
            )

    @property
    def due(self) -> int:
        """The part that comes next."""
        if self._facts is None:
            return 0
        if self.form.before and self._facts["grid"] is None:
            return 0
        size = rows_per_part(self.form.width) * self._row_bytes
        held = self._held_bytes()
        return self.form.before + (
            -(-held // size) if held == self.form.rows * self._row_bytes else held // size
        )

    @property
    def complete(self) -> bool:
        """Whether all of these rows are here."""
        facts = self._facts
        same = facts is not None and all(facts[n] == v for n, v in self._asked.items())
        return same and self.due == self.form.parts

    @property
    def dismissed(self) -> bool:
        """Whether the feature party knows that all rows are here."""
        return self._facts is not None and self._facts["dismissed"]

    @property
    def bottom(self) -> str | None:
        """The digest of the bottom that these rows are embedded by; None before the first word."""
        return None if self._facts is None else str(self._facts["bottom"])

    def check_form(self) -> None:
        """Refuse stored rows of another form: their bytes would be read as other numbers."""
        for name, value in self._asked.items():
            if self._facts is not None and self._facts[name] != value:
                shown = {"common": "the common rows", "bits": "embed_bits"}.get(name, name)
                raise UsageError(
                    f"{self._path}: was uploaded with other {shown} ({self._facts[name]}) than "
                    f"today's ({value}): set back what was changed, or raise version on both sides"
                )

    def begin(self, bottom: str, *, anew: bool) -> int:
        """Take the name of the bottom; return the part that comes next.

        Raises ``PeerError`` if rows of another bottom are here, unless they may come ``anew``.
        """
        facts = self._facts
        asked = {"bottom": bottom, **self._asked}
        if facts is not None and any(facts[name] != value for name, value in asked.items()):
            if not anew:
                raise PeerError(
                    f"{self.peer} has another bottom than the one that its first embeddings of "
                    "this version came from: bring that state folder back, or raise version on "
                    "both sides"
                )
            facts = None
        if facts is None:
            remove_own(self._path)
            self._keep({"format": _FORMAT, **asked, "grid": None, "dismissed": False})
        self._cut_off_half_a_part()
        return self.due

    def take(self, upload: Upload) -> int:
        """Store a part on disk; return the part that comes next. ``PeerError`` if it is wrong."""
        part, due = upload.part, self.due
        if part == due - 1:
            self._check_same(upload)
            return due
        if part != due:
            raise PeerError(f"part {due} of the embeddings was due, {self.peer} sent {part}")
        if part >= self.form.parts:
            raise PeerError(f"the embeddings have {self.form.parts} parts, {self.peer} sent more")
        if part < self.form.before:
            self._take_grid(upload)
        else:
            self._append(self._values(upload).numpy().tobytes())
        return part + 1

    def dismiss(self) -> None:
        """Note that the feature party knows that it has nothing left to do."""
        assert self._facts is not None  # noqa: S101 - it has uploaded
        self._keep({**self._facts, "dismissed": True})

    def rows(self) -> npt.NDArray[np.float32]:
        """Return ``[rows, width]``, mapped into memory; complete only."""
        shape = (self.form.rows, self.form.width)
        os.close(open_own(self._path, os.O_RDONLY))  # a plain file of this user
        return np.memmap(self._path, dtype="<f4", mode="r", shape=shape)

    @property
    def _asked(self) -> dict[str, Any]:
        return {"common": self._common, **vars(self.form)}

    @property
    def _row_bytes(self) -> int:
        return 4 * self.form.width

    def _held_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _keep(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        self._folder.write(self._facts_name, facts)
        sync_folder(self._path.parent)

    def _cut_off_half_a_part(self) -> None:
        """Remove what was written of a part that was never acknowledged."""
        _, whole = self.form.span(self.due - 1) if self.due > self.form.before else (0, 0)
        if self._held_bytes() > whole * self._row_bytes:
            os.truncate(self._path, whole * self._row_bytes)

    def _append(self, content: bytes) -> None:
        new = not self._path.exists()
        file = open_own(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError as error:
            raise UsageError(
                f"{self._path}: embeddings cannot be stored: {error.strerror}; make room and start "
                "again, nothing is lost"
            ) from None
        finally:
            os.close(file)
        if new:
            sync_folder(self._path.parent)

    def _check_same(self, upload: Upload) -> None:
        """Refuse a part that was acknowledged before and now has other bytes."""
        first, stop = self.form.span(upload.part)
        if upload.part < self.form.before:
            same = _as_lists(self._grid_of(upload)) == self._grid()
        else:
            with open(open_own(self._path, os.O_RDONLY), "rb") as file:
                file.seek(first * self._row_bytes)
                held = file.read((stop - first) * self._row_bytes)
            same = held == self._values(upload).numpy().tobytes()
        if not same:
            raise PeerError(f"part {upload.part} came again from {self.peer} with other embeddings")

    def _values(self, upload: Upload) -> Tensor:
        """Return the rows of a part as ``float32``, checked."""
        first, stop = self.form.span(upload.part)
        wanted = (stop - first, self.form.width)
        if self.form.bits == 32:
            values = upload.values
            if values is None or values.dtype != torch.float32 or tuple(values.shape) != wanted:
                got = "none" if values is None else f"{values.dtype} {tuple(values.shape)}"
                raise PeerError(f"embeddings must be torch.float32 {wanted} by the plan, got {got}")
        else:
            codes = upload.codes
            if codes is None or len(codes) != wanted[0]:
                raise PeerError(f"codes of {wanted[0]} rows were due, {self.peer} sent others")
            try:
                values = self._own_grid().values(unpacked(codes, self.form.bits, wanted[1]))
            except InputError as error:
                raise PeerError(str(error)) from error
        low, high = torch.aminmax(values)
        if max(-float(low), float(high)) > LARGEST:
            raise PeerError(
                f"embeddings must be at most {LARGEST:g} in size, got {low:g} to {high:g}: scale "
                "the features"
            )
        return values.contiguous()

    def _take_grid(self, upload: Upload) -> None:
        assert self._facts is not None  # noqa: S101 - the name of the bottom came first
        self._keep({**self._facts, "grid": _as_lists(self._grid_of(upload))})

    def _grid_of(self, upload: Upload) -> Grid:
        values, wanted = upload.values, (2, self.form.width)
        if values is None or values.dtype != torch.float32 or tuple(values.shape) != wanted:
            raise PeerError(f"the first part must be a grid {wanted}, {self.peer} sent another")
        try:
            return Grid(values[0], values[1], self.form.bits)  # type: ignore[arg-type]
        except InputError as error:
            raise PeerError(str(error)) from error

    def _grid(self) -> list[list[float]]:
        assert self._facts is not None  # noqa: S101 - the grid was taken
        found: list[list[float]] = self._facts["grid"]
        return found

    def _own_grid(self) -> Grid:
        low, step = torch.tensor(self._grid(), dtype=torch.float32)
        return Grid(low, step, self.form.bits)  # type: ignore[arg-type]


def _as_lists(grid: Grid) -> list[list[float]]:
    """Return a grid as plain numbers, which hold ``float32`` exactly."""
    return [grid.low.tolist(), grid.step.tolist()]


def has_uploads(state: Path) -> bool:
    """Whether an upload has begun, as far as a party of either role has noted in its folder."""
    return (state / UPLOADED).exists() or any((state / EMBEDDINGS).glob("*.json"))
