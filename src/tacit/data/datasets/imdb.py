"""Film reviews as 0/1 words: IMDB with the 500 most frequent words, half of the rows for testing.

A text becomes lower case, loses its ``<br />`` marks and is cut into runs of letters, digits and
apostrophes. The words are those most frequent in the training half; equals go by the alphabet.

``imdb`` has the published halves. GAFM (D.1) draws them at random in each repetition, which is
``imdb_random``, and deals the words to three parties as 200, 200 and 100 (appendix B.2), which is
``imdb_three``.

References: GAFM, D.1, which takes an integer-coded copy.
"""

from __future__ import annotations

import csv
import itertools
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tacit.data.build import Chunk, Layout
from tacit.data.cache import cached
from tacit.data.draws import Array
from tacit.data.formats import why_unreadable
from tacit.data.tables import Columns, Table
from tacit.errors import InputError

Review: TypeAlias = tuple[bool, int, list[str]]
"""In the training half, positive, and the words."""

_WORDS = 500
_ROWS = 5_000
_DEALT = (0, 200, 400, 500)
_TOKEN = re.compile(r"[a-z0-9']+")
_FIELDS = ("split", "label", "text")


def imdb(files: Sequence[Path]) -> Table:
    """Return the reviews from the ready matrix, the CSV file or the published folder."""
    (path,) = files
    names = tuple(f"word_{k}" for k in range(1, _WORDS + 1))
    layout = Layout("imdb", names, (), "none", 0.5)
    return cached(layout, files, lambda: _ready(path) if path.suffix == ".npz" else _counted(path))


def imdb_random(files: Sequence[Path]) -> Table:
    """Return the reviews without halves: half of the rows are drawn for testing, by the seed."""
    return replace(imdb(files), fixed_test=None)


def imdb_three(files: Sequence[Path]) -> Table:
    """Return the same with three feature parties, of 200, 200 and 100 words."""
    parties = tuple(
        Columns(numeric=tuple(range(first, stop)), categorical=())
        for first, stop in itertools.pairwise(_DEALT)
    )
    return replace(imdb_random(files), parties=parties)


def _ready(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of an ``.npz`` with ``X`` [N, 500], ``y`` and ``is_train``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            matrix, labels, training = file["X"], file["y"].astype(np.int64), file["is_train"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} needs arrays X, y and is_train without objects: {why_unreadable(error)}"
        ) from None
    if matrix.shape != (len(labels), _WORDS) or not np.isin(labels, (0, 1)).all():
        raise InputError(
            f"{path} needs X of [rows, {_WORDS}] and y of 0 and 1, got X of {matrix.shape}"
        )
    for at in range(0, len(labels), _ROWS):
        part = slice(at, at + _ROWS)
        yield Chunk(matrix[part].astype(np.float64), (), labels[part], test=~training[part])


def _counted(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of raw reviews: find the words, then mark them."""
    reviews = list(_from_folder(path) if path.is_dir() else _from_csv(path))
    counts = Counter(word for training, _, words in reviews if training for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:_WORDS]
    column_of = {word: at for at, word in enumerate(frequent)}
    for at in range(0, len(reviews), _ROWS):
        part = reviews[at : at + _ROWS]
        yield Chunk(
            numeric=_mark([words for _, _, words in part], column_of),
            categorical=(),
            labels=np.array([label for _, label, _ in part], dtype=np.int64),
            test=np.array([not training for training, _, _ in part]),
        )


def _mark(texts: list[list[str]], column_of: dict[str, int]) -> Array:
    marks = np.zeros((len(texts), _WORDS))
    for row, words in enumerate(texts):
        marks[row, [column_of[word] for word in set(words) if word in column_of]] = 1.0
    return marks


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.lower().replace("<br />", " "))


def _from_csv(path: Path) -> Iterator[Review]:
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            yield from _parse(path, file)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _parse(path: Path, file: Iterable[str]) -> Iterator[Review]:
    reader = csv.DictReader(file)
    if not set(_FIELDS) <= set(reader.fieldnames or ()):
        raise InputError(f"{path}, line 1: columns {', '.join(_FIELDS)} are needed")
    for row in reader:
        if row["split"] not in ("train", "test") or row["label"] not in ("0", "1"):
            raise InputError(
                f"{path}, line {reader.line_num}: split must be train or test and label 0 or 1, "
                f"got {row['split']!r} and {row['label']!r}"
            )
        yield row["split"] == "train", int(row["label"]), _tokens(row["text"] or "")


def _from_folder(path: Path) -> Iterator[Review]:
    """Yield the reviews of the published folder: ``{train,test}/{pos,neg}/*.txt``."""
    for half in ("train", "test"):
        for label, kind in ((1, "pos"), (0, "neg")):
            for file in sorted((path / half / kind).glob("*.txt")):
                yield half == "train", label, _tokens(file.read_text(encoding="utf-8"))
