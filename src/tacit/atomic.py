"""Files that are written whole or not at all, and last through a loss of power."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tacit.errors import TacitError


def write_new(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file that must not be there yet, and bring its content to disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def place_file(path: Path, content: bytes, *, mode: int = 0o600, replace: bool = True) -> Path:
    """Write a file under another name, then give it its own; a link there is replaced.

    Raises ``OSError`` where that fails, and nothing has changed then.

    Args:
        path: of the file.
        content: all of it.
        mode: who may read and write it, less what the umask takes away.
        replace: whether it may take the place of another; if not, that is ``FileExistsError``.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_new(draft, content, mode=mode)
        if replace:
            draft.replace(path)
        else:
            os.link(draft, path)  # a rename that refuses to replace what is there
    finally:
        draft.unlink(missing_ok=True)
    return path


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read, whole or not at all; a link is replaced."""
    try:
        return place_file(path, content)
    except OSError as error:
        raise TacitError(
            f"{path}: could not be written ({error.strerror}): see to the disk, nothing was changed"
        ) from None


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
