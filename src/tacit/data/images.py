"""Image files decoded once into memory-mapped bytes, and rows of them as pictures for people."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import final

import numpy as np

from tacit.data.build import Layout, npy_file
from tacit.data.cache import entry_folder, load_or_build, open_table
from tacit.data.catalog import ENTRIES, describe, load, names
from tacit.data.draws import Array
from tacit.data.tables import Table
from tacit.errors import InputError


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class DecodedImages:
    """Images as read: ``blocks`` of bytes [b, channels, height, width], and all that is small.

    ``test`` marks a test part that comes with the data; rows of one of the ``groups`` stay on one
    side of a split.
    """

    shape: tuple[int, int, int]
    classes: int
    labels: Array
    blocks: Iterable[Array]
    ids: Array | None = None
    test: Array | None = None
    groups: Array | None = None


def cached_images(
    name: str,
    sources: Sequence[Path],
    read: Callable[[], DecodedImages],
    *,
    test_fraction: float = 0.2,
    options: object = None,
) -> Table:
    """Return the table of some image files, from the cache if they are still the same.

    ``read`` opens the sources; it is called only when no entry fits.
    """
    layout = Layout(name, (), (), "none", test_fraction)

    def fill(folder: Path) -> None:
        _write(read(), name, test_fraction, folder)

    return load_or_build(entry_folder(layout, sources, ["images", options]), fill, open_table)


def _write(found: DecodedImages, name: str, test_fraction: float, folder: Path) -> None:
    rows, pixels = len(found.labels), prod(found.shape)
    if not rows:
        raise InputError(f"{name} has no images: check that the files are complete")
    mean, spread = _write_pixels(found, folder / "numeric.npy")
    small = {
        "labels": found.labels.astype(np.int64),
        "ids": np.arange(rows, dtype=np.int64) if found.ids is None else found.ids,
        "test": found.test,
        "groups": found.groups,
    }
    for part, array in small.items():
        if array is not None:
            np.save(folder / f"{part}.npy", array, allow_pickle=False)
    facts = {
        "name": name,
        "rows": rows,
        "numeric": [f"pixel_{k}" for k in range(pixels)],
        "categorical": [],
        "cardinalities": [],
        "parties": [],
        "test_fraction": test_fraction,
        "classes": found.classes,
        "image": {"shape": found.shape, "mean": mean, "spread": spread},
    }
    (folder / "table.json").write_text(json.dumps(facts), encoding="utf-8")


def _write_pixels(found: DecodedImages, path: Path) -> tuple[list[float], list[float]]:
    """Write the bytes block by block; return mean and spread of each channel, from 0 to 1."""
    rows, pixels = len(found.labels), prod(found.shape)
    levels = np.zeros((found.shape[0], 256))
    with npy_file(path, np.dtype(np.uint8), (rows, pixels)) as file:
        for block in found.blocks:
            np.ascontiguousarray(block, dtype=np.uint8).tofile(file)
            for channel in range(len(levels)):
                levels[channel] += np.bincount(block[:, channel].ravel(), minlength=256)
    shares = levels / levels.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255.0
    mean = shares @ values
    spread = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0.0))
    return mean.tolist(), spread.tolist()


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in ``.gz``."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                return file.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}): get it again") from error


def check_labels(labels: Array, *, path: Path, classes: int) -> None:
    """Refuse labels outside 0 to ``classes - 1``, with the first image that has one."""
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(outside):
        at = int(outside[0])
        raise InputError(
            f"{path}: labels must be 0 to {classes - 1} for {classes} classes, image {at} has "
            f"{int(labels[at])}: check that it is the file of this data set"
        )


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
