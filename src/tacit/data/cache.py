"""A cache of tables: each file is read once and kept as memory-mapped arrays.

An entry is a folder of ``.npy`` files and a ``table.json``. Its name holds a digest of the source
paths, the options and the format version, and a digest of the sources' sizes and times of change.
It is written under another name and renamed when it is complete, so a reader sees a complete entry
or none; nothing is ever unpickled, and no symbolic link is followed in it. Only its owner can read
it. A party's own table is not kept in the user's cache but in a folder of the party's, which holds
that one entry alone.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tacit.data.build import Chunk, Layout, build
from tacit.data.directories import cache_directory
from tacit.data.draws import Array
from tacit.data.tables import Columns, Image, Table
from tacit.errors import InputError

FORMAT = 1
_ABANDONED = 86_400.0
_Opened = TypeVar("_Opened")


def cached(
    layout: Layout,
    sources: Sequence[Path],
    chunks: Callable[[], Iterable[Chunk]],
    *,
    options: object = None,
) -> Table:
    """Return the table of some source files, from the cache if they are still the same.

    ``chunks`` reads the sources; it is called only when no entry fits. ``options`` is whatever
    else decides about the content, as plain data.
    """

    def fill(folder: Path) -> None:
        build(chunks(), layout, folder)

    return load_or_build(entry_folder(layout, sources, options), fill, open_table)


def load_or_build(
    folder: Path,
    fill: Callable[[Path], None],
    open_entry: Callable[[Path], _Opened | None],
    *,
    exclusive: bool = False,
) -> _Opened:
    """Return what ``open_entry`` makes of an entry; one that is incomplete is built first.

    With ``exclusive`` everything else in the folder of the entry is removed.
    """
    opened = open_entry(folder)
    if opened is None:
        _store(folder, fill, open_entry)
        opened = open_entry(folder)
    if exclusive:
        for other in folder.parent.iterdir():
            if other != folder:
                _remove(other)
    if opened is None:
        raise InputError(f"{folder} cannot be read back: remove it and load again")
    return opened


def entry_folder(
    layout: Layout, sources: Sequence[Path], options: object, *, within: Path | None = None
) -> Path:
    """Return the folder of an entry: a digest of its sources and options, one of their state.

    It is in the user's cache, or ``within`` another folder.
    """
    paths = [path.resolve() for path in sources]
    what = _digest([FORMAT, [str(path) for path in paths], asdict(layout), options])
    state = _digest([[path.stat().st_size, path.stat().st_mtime_ns] for path in paths])
    return (within or cache_directory()) / f"{Path(layout.name).stem}-{what}-{state}"


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _store(
    folder: Path, fill: Callable[[Path], None], open_entry: Callable[[Path], _Opened | None]
) -> None:
    """Build an entry under another name, then rename it; drop it if anything fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise InputError(
            f"the cache {folder.parent} cannot be written ({error.strerror}): "
            f"set TACIT_CACHE to a directory that can"
        ) from error
    try:
        fill(building)  # nobody else can enter it
        for file in building.iterdir():
            file.chmod(0o600)
        if open_entry(folder) is None:
            _remove(folder)
            building.rename(folder)
    except OSError:
        # Another process may have stored the same entry in the meantime: that one serves.
        if open_entry(folder) is None:
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _drop_older(folder)


def _drop_older(folder: Path) -> None:
    """Remove entries of the same source in an earlier state."""
    for other in _states(folder):
        if other != folder:
            _remove(other)


def remove_entry(folder: Path) -> bool:
    """Remove the entries of a source in all its states; return whether there were any."""
    found = _states(folder)
    for path in found:
        _remove(path)
    return bool(found)


def _states(folder: Path) -> list[Path]:
    what = folder.name.rpartition("-")[0]
    return list(folder.parent.glob(f"{glob.escape(what)}-*"))


def _remove(path: Path) -> None:
    """Remove an entry with all that is in it; of a link, only the link."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove what processes that were killed left behind a day ago or earlier."""
    for building in parent.glob(".building-*"):
        with suppress(FileNotFoundError):  # its process has renamed it meanwhile
            if time.time() - building.stat().st_mtime > _ABANDONED:
                shutil.rmtree(building, ignore_errors=True)


def open_table(folder: Path) -> Table | None:
    """Return the table of an entry without reading its arrays, or None if it is incomplete."""
    try:
        facts = read_facts(folder, "table.json")
        rows = facts["rows"]
        parties = tuple(
            Columns(tuple(p["numeric"]), tuple(p["categorical"]), p["party"])
            for p in facts["parties"]
        )
        return Table(
            name=facts["name"],
            numeric=mapped(folder, "numeric", rows, len(facts["numeric"])),
            categorical=mapped(folder, "categorical", rows, len(facts["categorical"])),
            cardinalities=tuple(facts["cardinalities"]),
            labels=mapped(folder, "labels", rows),
            ids=mapped(folder, "ids", rows),
            day=_optional(folder, "day", rows),
            numeric_names=tuple(facts["numeric"]),
            categorical_names=tuple(facts["categorical"]),
            test_fraction=facts["test_fraction"],
            fixed_test=_optional(folder, "test", rows),
            classes=facts["classes"],
            parties=parties,
            image=_image(facts.get("image")),
            groups=_optional(folder, "groups", rows),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_facts(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of an entry; a symbolic link is refused."""
    found: dict[str, Any] = json.loads(_unlinked(folder / name).read_text(encoding="utf-8"))
    return found


def _unlinked(path: Path) -> Path:
    """Return the path of a file of an entry; refuse a symbolic link."""
    if path.is_symlink() or path.parent.is_symlink():
        raise ValueError(f"{path} is a symbolic link")
    return path


def _image(facts: dict[str, Any] | None) -> Image | None:
    if facts is None:
        return None
    channels, height, width = facts["shape"]
    return Image((channels, height, width), tuple(facts["mean"]), tuple(facts["spread"]))


def _optional(folder: Path, part: str, rows: int) -> Array | None:
    return mapped(folder, part, rows) if (folder / f"{part}.npy").exists() else None


def mapped(folder: Path, part: str, rows: int, *width: int) -> Array:
    """Return an array of an entry as a memory-mapped file; one of another shape is refused."""
    if width == (0,):
        kind = np.float32 if part == "numeric" else np.int32
        return np.zeros((rows, 0), dtype=kind)
    array: Array = np.load(_unlinked(folder / f"{part}.npy"), mmap_mode="r", allow_pickle=False)
    if array.shape != (rows, *width):
        raise ValueError(part)
    return array
