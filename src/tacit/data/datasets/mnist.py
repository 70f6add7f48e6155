"""Images in the idx format: MNIST and Fashion-MNIST.

A file begins with a magic number, 2051 for images and 2049 for labels, and its sizes, all as
big-endian 32-bit numbers; bytes follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tacit.data.draws import Array
from tacit.data.images import DecodedImages, cached_images, check_labels, read_bytes
from tacit.data.tables import Table
from tacit.errors import InputError

_IMAGES, _LABELS = 2051, 2049
_SIDE = 28
_ROWS = 10_000
_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")


def mnist(files: Sequence[Path]) -> Table:
    """Return MNIST: handwritten digits of 28 x 28 pixels, 10,000 of 70,000 for testing."""
    return _load("mnist", files)


def fashion_mnist(files: Sequence[Path]) -> Table:
    """Return Fashion-MNIST: articles of clothing in the form of MNIST."""
    return _load("fashion_mnist", files)


def _load(name: str, files: Sequence[Path]) -> Table:
    paths = _parts(name, files)

    def read() -> DecodedImages:
        pairs = [_pair(paths[at], paths[at + 1]) for at in (0, 2)]
        return DecodedImages(
            shape=(1, _SIDE, _SIDE),
            classes=10,
            labels=np.concatenate([labels for _, labels in pairs]),
            blocks=_blocks([images for images, _ in pairs]),
            test=np.repeat([False, True], [len(labels) for _, labels in pairs]),
        )

    return cached_images(name, paths, read)


def _parts(name: str, files: Sequence[Path]) -> list[Path]:
    """Return the four files in order; a plain one is preferred to a compressed one."""
    found = []
    for part in _PARTS:
        fitting = sorted(path for path in files if path.name.startswith(part))
        if not fitting:
            raise InputError(
                f"{name} has four files, {', '.join(_PARTS)}: there is no {part} in "
                f"{files[0].parent}: put it beside {files[0].name}"
            )
        found.append(fitting[0])
    return found


def _pair(images: Path, labels: Path) -> tuple[Array, Array]:
    pixels = _read(images, _IMAGES, "images", sizes=3)
    numbers = _read(labels, _LABELS, "labels", sizes=1)
    if pixels.shape[1:] != (_SIDE, _SIDE):
        height, width = pixels.shape[1:]
        raise InputError(f"{images}: images must be {_SIDE} x {_SIDE}, got {height} x {width}")
    if len(pixels) != len(numbers):
        raise InputError(
            f"{images} has {len(pixels)} images and {labels.name} {len(numbers)} labels: "
            f"they must be of one part of the data"
        )
    check_labels(numbers, path=labels, classes=10)
    return pixels, numbers


def _read(path: Path, magic: int, kind: str, *, sizes: int) -> Array:
    content = read_bytes(path)
    head = 4 * (1 + sizes)
    if len(content) < head:
        raise InputError(f"{path} has {len(content)} bytes, less than its header: get it again")
    found, *shape = struct.unpack(f">{1 + sizes}I", content[:head])
    if found != magic:
        raise InputError(
            f"{path}: a file of {kind} begins with the magic number {magic}, got {found}: "
            f"check that it is the right idx file"
        )
    wanted, got = int(np.prod(shape, dtype=object)), len(content) - head
    if got != wanted:
        raise InputError(
            f"{path}: {shape[0]} {kind} fill {wanted} bytes, got {got}: "
            f"the file is {'cut short' if got < wanted else 'too long'}, get it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def _blocks(parts: list[Array]) -> Iterator[Array]:
    for images in parts:
        for at in range(0, len(images), _ROWS):
            yield images[at : at + _ROWS, None]
