"""Skin lesions, melanoma or not: the ISIC 2020 challenge and HAM10000, as images of 84 x 84.

References: Marvell (ICLR 2022), A.6.1: all positive images of ISIC and nine times as many negative
ones, resized to 84 x 84, 80% to train and 20% to test.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.draws import Array, permutation
from tacit.data.formats import why_unreadable
from tacit.data.images import DecodedImages, cached_images
from tacit.data.tables import Table
from tacit.errors import InputError

_SIDE = 84
_SHAPE = (3, _SIDE, _SIDE)
_ROWS = 256
_NEGATIVES = 9
_FOLDERS = ("jpeg/train", "train", "jpeg", "images", ".")


def isic(files: Sequence[Path]) -> Table:
    """Return ISIC 2020: all melanomas, nine times as many other lesions, drawn once and for all.

    The file is the challenge's ``train.csv``; the JPEG files are beside it in ``jpeg/train``.
    """
    (path,) = files
    folder = _folder(path)
    return cached_images("isic", [path, folder], lambda: _isic(path, folder))


def ham10000(files: Sequence[Path]) -> Table:
    """Return HAM10000, melanoma = 1, enlarged to 84 x 84.

    Several images can show one lesion: a split keeps them on one side.
    """
    (path,) = files
    return cached_images("ham10000", files, lambda: _ham10000(path))


def _folder(path: Path) -> Path:
    for folder in _FOLDERS:
        if next((path.parent / folder).glob("*.jpg"), None) is not None:
            return path.parent / folder
    raise InputError(
        f"there are no .jpg images beside {path}: put them in {path.parent / _FOLDERS[0]}"
    )


def _isic(path: Path, folder: Path) -> DecodedImages:
    names, labels = _targets(path)
    chosen = np.concatenate(
        [np.flatnonzero(labels == 1), _negatives(labels, _NEGATIVES * int(labels.sum()))]
    )
    chosen.sort()
    names = names[chosen]
    return DecodedImages(
        shape=_SHAPE,
        classes=2,
        labels=labels[chosen],
        blocks=_decoded([folder / f"{name}.jpg" for name in names]),
        ids=names,
    )


def _negatives(labels: Array, count: int) -> Array:
    rows = np.flatnonzero(labels == 0)
    return rows[permutation(len(rows), "isic", 0)[:count]]


def _targets(path: Path) -> tuple[Array, Array]:
    """Return the names of the images and whether they show a melanoma."""
    names, labels = [], []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not {"image_name", "target"} <= set(reader.fieldnames or ()):
                raise InputError(f"{path}, line 1: columns image_name and target are needed")
            for row in reader:
                if row["target"] not in ("0", "1") or Path(row["image_name"]).name in ("", ".."):
                    raise InputError(
                        f"{path}, line {reader.line_num}: image_name must be a name and target "
                        f"0 or 1, got {row['image_name']!r} and {row['target']!r}"
                    )
                names.append(Path(row["image_name"]).name)
                labels.append(int(row["target"]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(set(labels)) < 2:
        raise InputError(f"{path}: target must have both classes, got {sorted(set(labels))}")
    return np.array(names), np.array(labels, dtype=np.int64)


def _decoded(paths: Sequence[Path]) -> Iterator[Array]:
    """Yield decoded images in blocks; several threads decode, without holding each other up."""
    try:
        from PIL import Image, features  # noqa: PLC0415 - an extra, needed for JPEG files only
    except ImportError:
        raise InputError(_NO_JPEG) from None
    if not features.check("jpg"):
        raise InputError(_NO_JPEG)
    with ThreadPoolExecutor() as pool:
        for at in range(0, len(paths), _ROWS):
            images = pool.map(partial(_decode, Image.open), paths[at : at + _ROWS])
            yield np.stack(list(images))


_NO_JPEG = (
    "no JPEG support is installed, which the images of isic need: "
    "install pillow with pip install 'tacit[images]'"
)


def _decode(opened: Callable[..., Any], path: Path) -> Array:
    """Return one image as [3, 84, 84] bytes; whole multiples are shrunk while decoding."""
    try:
        with opened(path) as image:
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            small = image.convert("RGB").resize((_SIDE, _SIDE), 2)  # bilinear
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: get the image that the table names") from None
    except Exception as error:
        raise InputError(f"{path} cannot be decoded ({error}): get it again") from error
    return np.asarray(small, dtype=np.uint8).transpose(2, 0, 1)


def _ham10000(path: Path) -> DecodedImages:
    """Read an ``.npz`` whose ``image`` is [N, height, width, 3] bytes."""
    names = ("image", "melanoma", "image_id", "lesion_id")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            images, labels, ids, lesions = (file[name] for name in names)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} needs arrays {', '.join(names)} without objects: {why_unreadable(error)}"
        ) from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InputError(
            f"{path}: image must be bytes [rows, height, width, 3], got {images.dtype} "
            f"{images.shape}"
        )
    sizes = {len(labels), len(ids), len(lesions), len(images)}
    if len(sizes) != 1 or not np.isin(labels, (0, 1)).all():
        raise InputError(
            f"{path}: melanoma must be 0 or 1, and all arrays of one length, got {len(images)} "
            f"images, {len(labels)} labels, {len(ids)} image ids and {len(lesions)} lesion ids"
        )
    return DecodedImages(
        shape=_SHAPE,
        classes=2,
        labels=labels.astype(np.int64),
        blocks=_enlarged(images),
        ids=ids,
        groups=np.unique(lesions, return_inverse=True)[1].astype(np.int64),
    )


def _enlarged(images: Array) -> Iterator[Array]:
    import torch  # noqa: PLC0415 - loads slowly, and only a first read needs it
    from torch.nn.functional import interpolate  # noqa: PLC0415 - as above

    for at in range(0, len(images), _ROWS):
        block = torch.from_numpy(images[at : at + _ROWS].transpose(0, 3, 1, 2).copy()).float()
        larger = interpolate(block, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        yield larger.round().to(torch.uint8).numpy()
