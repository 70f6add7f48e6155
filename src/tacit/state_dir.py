"""The folder where a party keeps its run: one process at a time, and nobody else may look.

No symbolic link is followed in it, and what belongs to another user is not used: a link would have
this process read, or write over, files that are not the run's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any, Self, final

from tacit.atomic import place_file, write_whole
from tacit.errors import TacitError, UsageError

SECRET_BYTES = 32


@final
class StateFolder:
    """A folder that only its owner can enter, held by this process until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        made_own(path, name="state")
        self._lock = open_own(path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(f"state {path}: another process uses it: end that one first") from None

    def read(self, name: str) -> Any:  # noqa: ANN401 - whatever was written
        """Return what :meth:`write` has stored under a name, None where nothing was."""
        content = self.read_bytes(name)
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path / name}: cannot be read: {error}") from None

    def read_bytes(self, name: str) -> bytes | None:
        """Return the content of a file of this folder, None where there is none."""
        try:
            file = open_own(self.path / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(file, "rb") as opened:
            return opened.read()

    def write(self, name: str, values: object) -> Path:
        """Store plain values as JSON, whole or not at all."""
        return write_whole(self.path / name, json.dumps(values, indent=2).encode() + b"\n")

    def folder(self, name: str) -> Path:
        """Return a folder within this one, for the owner alone; it is made if there is none."""
        path = self.path / name
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            pass  # what it is instead of a folder is said below
        except OSError as error:
            raise UsageError(f"{path}: cannot be made: {error.strerror}") from None
        return own_folder(path)

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def made_own(path: Path, *, name: str = "") -> Path:
    """Return a folder's path as ``own_folder`` does; the folder is made if there is none."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        pass  # what it is instead of a folder is said below
    except OSError as error:
        raise UsageError(f"{name} {path}: cannot be used: {error.strerror}") from None
    return own_folder(path, name=name)


def own_folder(path: Path, *, name: str = "") -> Path:
    """Return a folder's path if it is one, no link to one, this user's, and closed to others."""
    found, what = os.lstat(path), f"{name} {path}".strip()
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{what}: is a symbolic link: name the folder itself")
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{what}: cannot be used: Not a directory")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{what}: {_others(found)}")
    if found.st_mode & 0o077:
        raise UsageError(f"{what}: others can enter: chmod 700 it")
    return path


def open_own(path: Path, flags: int) -> int:
    """Open a file for its owner alone: no symbolic link, and only a plain file of this user.

    Raises FileNotFoundError where there is none and none is made, else UsageError.
    """
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UsageError(f"{path}: is a symbolic link: put the file itself there") from None
        raise UsageError(f"{path}: cannot be opened: {error.strerror}") from None
    found = os.fstat(file)
    plain = stat.S_ISREG(found.st_mode)
    if plain and found.st_uid == os.geteuid():
        return file
    os.close(file)
    if not plain:
        raise UsageError(f"{path}: is not a plain file: put the file itself there")
    raise UsageError(f"{path}: {_others(found)}")


def _others(found: os.stat_result) -> str:
    own = os.geteuid()
    return f"belongs to user {found.st_uid}, this process runs as {own}: chown it, or run as owner"


def remove_own(path: Path) -> bool:
    """Remove a file, a folder with all that is in it, or a link; return whether it was there."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be removed: {error.strerror}") from None
    return True


def kept_secret(path: Path) -> bytes:
    """Return the 32 bytes in a file that only its owner can read; make them if there are none."""
    try:
        file = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        return _made(path)
    try:
        held, mode = os.read(file, SECRET_BYTES + 1), os.fstat(file).st_mode & 0o777
    finally:
        os.close(file)
    if mode & 0o077:
        raise UsageError(f"{path}: a secret that others can read (mode {mode:04o}): chmod 600 it")
    if len(held) != SECRET_BYTES:
        raise UsageError(f"{path}: a secret has {SECRET_BYTES} bytes, got {len(held)}: restore it")
    return held


def _made(path: Path) -> bytes:
    secret = secrets.token_bytes(SECRET_BYTES)
    try:
        place_file(path, secret, replace=False)
    except OSError as error:
        raise TacitError(f"{path}: could not be written ({error.strerror}): start again") from None
    return secret
