"""The size of a tape, and the labels of its examples."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import UsageError
from tacit.tape.imports import load_array
from tacit.tape.tape import Recording
from tacit.types import View

_LARGEST = 2**63 - 1

Labels = Path | str | Mapping[Any, int] | Tensor | npt.NDArray[Any]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TapeSummary:
    """What one pass over a tape shows: its size, and the id of every row."""

    rows: npt.NDArray[np.int64]
    examples: int
    steps: int
    epochs: int
    numbers: tuple[int, ...]
    width: int
    embeddings: bool
    zeros: int

    @property
    def per_example(self) -> float:
        """How often an example was released, on average."""
        return len(self.rows) / self.examples


def summarise(tape: Recording) -> TapeSummary:
    """Read a tape once to count its rows, and refuse values that no attack can work on."""
    ids: list[Tensor] = []
    epochs: dict[int, None] = {}  # in the order in which they come
    width, sent, count, zeros = None, True, 0, 0
    for view in tape:
        _check_view(view, tape.source, count, width)
        assert view.ids is not None  # noqa: S101 - recordings have them
        ids.append(view.ids)
        epochs[view.epoch or 0] = None
        count += len(view.ids)
        width = view.grads[0].numel()
        sent = sent and view.embeddings is not None
        zeros += not bool(view.grads.any())
    rows = torch.cat(ids).numpy()
    return TapeSummary(
        rows=rows,
        examples=len(np.unique(rows)),
        steps=len(ids),
        epochs=len(epochs),
        numbers=tuple(epochs),
        width=width or 0,
        embeddings=sent,
        zeros=zeros,
    )


def _check_view(view: View, source: str, first: int, width: int | None) -> None:
    if width is not None and view.grads[0].numel() != width:
        raise UsageError(
            f"{source}: step {view.step} has gradients {view.grads[0].numel()} wide, earlier ones "
            f"{width}: a tape is of one cut"
        )
    for name, rows in (("grads", view.grads), ("embeddings", view.embeddings)):
        if rows is None or bool(rows.isfinite().all()):
            continue
        row = int((~rows.flatten(1).isfinite().all(dim=1)).nonzero()[0])
        raise UsageError(
            f"{source}: {name} of row {first + row} (step {view.step}, epoch {view.epoch}) is not "
            "finite: leave that step out"
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The class of every example of a tape. Attacks never see it, only their evaluation does."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    source: str

    @property
    def classes(self) -> int:
        """How many classes there are, two at least."""
        return max(2, int(self.labels.max()) + 1)

    @property
    def positives(self) -> float:
        """The share of class 1."""
        return float((self.labels == 1).mean())

    def of(self, ids: Tensor) -> Tensor:
        """Return the classes of some examples."""
        return torch.from_numpy(self.labels[np.searchsorted(self.ids, ids.numpy())])

    def prior(self) -> Tensor:
        """Return how frequent each class is, which attacks assume to be public."""
        counts = np.bincount(self.labels, minlength=self.classes)
        return torch.from_numpy(counts / counts.sum())

    @classmethod
    def read(cls, given: Labels, tape: Recording, found: TapeSummary) -> Truth:
        """Match labels to the tape's examples, by id or by row.

        A CSV file has the header ``id,label``. An array, or an ``.npy`` file, has one label per
        row of the tape; or, if it has another length, the label of example ``i`` at index ``i``.
        """
        source = str(given) if isinstance(given, Path | str) else "the labels given"
        if isinstance(given, Mapping):
            numbers = _numbers(np.array(list(given.values())), source)
            pairs: dict[Any, float] = dict(zip(given, numbers.tolist(), strict=True))
        elif isinstance(given, Path | str) and Path(given).suffix.lower() == ".csv":
            pairs = _read_csv(Path(given), text=tape.names is not None)
        else:
            values = load_array(Path(given)) if isinstance(given, Path | str) else given
            return cls._aligned(np.asarray(values), tape, found, source)
        names = tape.names or {}
        by_id = {names.get(str(k), -1) if names else _whole(k, source): v for k, v in pairs.items()}
        ids = np.array(sorted(by_id), dtype=np.int64)
        labels = np.array([by_id[i] for i in ids.tolist()])
        return cls._checked(ids, labels, tape, found, source)

    @classmethod
    def _aligned(
        cls, values: npt.NDArray[Any], tape: Recording, found: TapeSummary, source: str
    ) -> Truth:
        if values.ndim != 1:
            raise UsageError(f"{source}: labels must be [N], got shape {values.shape}")
        values = _numbers(values, source)
        if len(values) != len(found.rows):
            if int(found.rows.min()) < 0 or int(found.rows.max()) >= len(values) or tape.names:
                raise UsageError(
                    f"{source}: has {len(values)} labels for {len(found.rows)} rows of "
                    f"{tape.source}: give one per row, or a CSV file with the header id,label"
                )
            return cls._checked(np.arange(len(values)), values, tape, found, source)
        order = np.argsort(found.rows, kind="stable")
        ids, first = np.unique(found.rows[order], return_index=True)
        labels = values[order[first]]
        wrong = values != labels[np.searchsorted(ids, found.rows)]
        if wrong.any():
            row = int(wrong.argmax())
            raise UsageError(
                f"{source}: id {found.rows[row]} has label {values[row]} in row {row} and another "
                "one before: an example has one label"
            )
        return cls._checked(ids, labels, tape, found, source)

    @classmethod
    def _checked(
        cls,
        ids: npt.NDArray[np.int64],
        labels: npt.NDArray[Any],
        tape: Recording,
        found: TapeSummary,
        source: str,
    ) -> Truth:
        """Keep the examples of the tape; refuse missing or invalid labels and a single class."""
        wanted = np.unique(found.rows)
        index = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        missing = wanted[ids[index] != wanted] if len(ids) else wanted
        if len(missing):
            texts = {code: name for name, code in (tape.names or {}).items()}
            example = texts.get(int(missing[0]), str(missing[0]))
            raise UsageError(
                f"{source}: {len(missing)} of {len(wanted)} ids of {tape.source} have no label "
                f"here, the first is {example!r}: give the labels of the same ids"
            )
        kept = _classes(_numbers(labels[index], source), source)
        if kept.min() == kept.max():
            raise UsageError(
                f"{source}: all examples of {tape.source} have label {kept[0]}: "
                "there is nothing to tell apart"
            )
        return cls(ids=wanted, labels=kept, source=source)


def _whole(name: object, source: str) -> int:
    """Return the id of a label as an integer; one too large for int64 matches no example."""
    try:
        found = int(str(name))
    except ValueError:
        raise UsageError(f"{source}: id {name!r}: the tape's ids are integers") from None
    return found if abs(found) < _LARGEST else _LARGEST


def _numbers(labels: npt.NDArray[Any], source: str) -> npt.NDArray[np.float64]:
    """Return labels as numbers, all of them finite."""
    try:
        found = labels.astype(np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{source}: labels must be 0, 1, ..., got {labels.dtype}: map them first"
        ) from None
    odd = ~np.isfinite(found)
    if odd.any():
        row = int(odd.argmax())
        raise UsageError(f"{source}: label {found[row]:g} in row {row}: labels are 0, 1, ...")
    return found


def _classes(labels: npt.NDArray[np.float64], source: str) -> npt.NDArray[np.int64]:
    """Return labels as classes 0, 1, ... without gaps."""
    odd = (labels != np.floor(labels)) | (labels < 0)
    if odd.any():
        raise UsageError(
            f"{source}: labels must be 0, 1, ..., got {labels[odd][0]:g}: map them first"
        )
    found = np.unique(labels)
    if len(found) > 1 and not np.array_equal(found, np.arange(len(found))):
        gap = int(np.argmax(found != np.arange(len(found))))
        raise UsageError(
            f"{source}: {len(found)} classes must be 0 to {len(found) - 1}, got {found[gap]:g} but "
            f"no {gap}: map them first"
        )
    return labels.astype(np.int64)


def _read_csv(path: Path, *, text: bool) -> dict[Any, float]:
    """Return the labels of a file with the header ``id,label``."""
    pairs: dict[Any, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
            if not {"id", "label"} <= set(reader.fieldnames or ()):
                raise UsageError(
                    f"{path}: the header must be id,label, got {','.join(reader.fieldnames or ())}"
                )
            for line in reader:
                name, label = _pair(line, path, reader.line_num, text=text)
                if pairs.setdefault(name, label) != label:
                    raise UsageError(
                        f"{path}: line {reader.line_num}: id {name} has two labels: give one"
                    )
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file of labels") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable CSV file: {error}") from None
    return pairs


def _pair(line: dict[str, Any], path: Path, number: int, *, text: bool) -> tuple[Any, float]:
    try:
        name, label = line["id"] if text else int(line["id"]), float(line["label"])
        if name is None or not math.isfinite(label):
            raise ValueError
        return name, label
    except (TypeError, ValueError):
        raise UsageError(
            f"{path}: line {number}: id {line['id']!r} with label {line['label']!r}: "
            f"the tape's ids are {'text' if text else 'integers'}, labels are 0, 1, ..."
        ) from None
