"""CIFAR-10 and CIFAR-100 in their binary version.

A record is one label byte (CIFAR-100: the coarse and the fine one), then 1,024 bytes each of red,
green and blue. The Python version is made of pickles, which can run code: it is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.data.draws import Array
from tacit.data.images import DecodedImages, cached_images, check_labels, read_bytes
from tacit.data.tables import Table
from tacit.errors import InputError

_SHAPE = (3, 32, 32)
_PIXELS = 3_072


def cifar10(files: Sequence[Path]) -> Table:
    """Return CIFAR-10: photographs of 32 x 32, from as many of the batches as are here."""
    return _load("cifar10", files, classes=10, place=0, head=1)


def cifar100(files: Sequence[Path], *, coarse: bool = False) -> Table:
    """Return CIFAR-100: 100 classes, or the 20 that they belong to with ``coarse=True``."""
    return _load("cifar100", files, classes=20 if coarse else 100, place=1 - int(coarse), head=2)


def _load(name: str, files: Sequence[Path], *, classes: int, place: int, head: int) -> Table:
    paths = _once(files)
    _check_parts(name, paths)

    def read() -> DecodedImages:
        parts = [_records(path, head) for path in paths]
        for path, records in zip(paths, parts, strict=True):
            check_labels(records[:, place], path=path, classes=classes)
        sizes = [len(records) for records in parts]
        return DecodedImages(
            shape=_SHAPE,
            classes=classes,
            labels=np.concatenate([records[:, place] for records in parts]),
            blocks=(records[:, head:].reshape(-1, *_SHAPE) for records in parts),
            test=np.repeat([_tests(path) for path in paths], sizes),
        )

    return cached_images(name, paths, read, options=classes)


def _once(files: Sequence[Path]) -> list[Path]:
    """Return each file once; a plain one takes the place of its compressed copy."""
    chosen: dict[str, Path] = {}
    for path in sorted(files, key=lambda path: path.suffix == ".gz"):
        chosen.setdefault(path.name.removesuffix(".gz"), path)
    return [chosen[name] for name in sorted(chosen)]


def _tests(path: Path) -> bool:
    return path.name.startswith("test")


def _check_parts(name: str, paths: Sequence[Path]) -> None:
    for part in (False, True):
        if not any(_tests(path) == part for path in paths):
            missing = "test" if part else "training"
            raise InputError(
                f"{name} needs files of both parts, there is no {missing} file in "
                f"{paths[0].parent}: put it beside {paths[0].name}"
            )


def _records(path: Path, head: int) -> Array:
    content, size = read_bytes(path), head + _PIXELS
    if not content or len(content) % size:
        raise InputError(
            f"{path}: records have {size} bytes, got {len(content)} bytes, {len(content) % size} "
            f"too many: the file is cut short or not of the binary version"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
