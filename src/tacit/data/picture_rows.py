"""The rows of a data set as pictures that people can look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from tacit.data.catalog import ENTRIES, describe, load, names
from tacit.data.draws import Array
from tacit.errors import InputError


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PictureRows:
    """Pictures as bytes [N, channels, height, width], row by row as a training numbers them."""

    name: str
    pixels: Array
    labels: Array
    ids: Array
    class_names: tuple[str, ...]


def has_pictures(name: str) -> bool:
    """Whether this is the name of a data set of images.

    >>> has_pictures("mnist"), has_pictures("digits"), has_pictures("credit"), has_pictures("x")
    (True, True, False, False)
    """
    return name in ENTRIES and ENTRIES[name].picture is not None


def load_pictures(
    name: str, *, data_dir: str | Path | None = None, rows: int | None = None, seed: int = 0
) -> PictureRows:
    """Return the pictures of a data set; ``rows`` and ``seed`` draw as :func:`load` does.

    >>> load_pictures("digits", rows=50).pixels.shape
    (50, 1, 8, 8)
    """
    shape = describe(name).picture
    if shape is None:
        some = ", ".join(filter(has_pictures, names()))
        raise InputError(f"{name} is no data set of images: take one of {some}")
    table = load(name, data_dir=data_dir, rows=rows, seed=seed)
    values = np.asarray(table.numeric)
    if table.image is not None:
        shape = table.image.shape
    else:  # numbers from 0 to 1 instead of bytes
        values = np.rint(255.0 * values).astype(np.uint8)
    return PictureRows(
        name=name,
        pixels=values.reshape(len(table), *shape),
        labels=np.asarray(table.labels),
        ids=np.asarray(table.ids),
        class_names=describe(name).class_names,
    )
