"""The folder where a party keeps its run: one process at a time, and nobody else may look."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, final

from tacit.errors import TacitError, UsageError

__all__ = ["StateFolder", "kept_secret", "write_whole"]

SECRET_BYTES = 32


@final
class StateFolder:
    """A folder that only its owner can enter, held by this process until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"state {path}: cannot be used: {error.strerror}") from None
        try:
            if path.stat().st_mode & 0o077:
                raise UsageError(f"state {path}: others can enter: chmod 700 it")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(f"state {path}: another process uses it: end that one first") from None
        except UsageError:
            self.close()
            raise

    def read(self, name: str) -> Any:  # noqa: ANN401 - whatever was written
        """Return what :meth:`write` has stored under a name, None where nothing was."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name}: cannot be read: {error}") from None

    def write(self, name: str, values: object) -> Path:
        """Store plain values as JSON, whole or not at all."""
        return write_whole(self.path / name, json.dumps(values, indent=2).encode() + b"\n")

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kept_secret(path: Path) -> bytes:
    """Return the 32 bytes in a file that only its owner can read; make them if there are none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _made(path)
    except OSError as error:
        raise UsageError(f"{path}: a secret cannot be read: {error.strerror}") from None
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
    write_whole(path, secret, place=os.link)  # never over one that is there
    return secret


def write_whole(
    path: Path, content: bytes, *, place: Callable[[Path, Path], None] = os.replace
) -> Path:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        place(draft, path)
    except OSError as error:
        raise TacitError(f"{path}: could not be written ({error.strerror}): see to the disk, "
                         "nothing was changed") from None  # fmt: skip
    finally:
        draft.unlink(missing_ok=True)
    return path
