"""A folder for a socket that only this user can reach, and what killed processes left of theirs."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["SOCKET", "socket_folder"]

SOCKET = "grpc"
_BEFORE = "tacit-socket-"


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a socket; it goes with the process, or with the next one's start."""
    for left in Path(tempfile.gettempdir()).glob(f"{_BEFORE}*"):
        with suppress(OSError):
            if _left_behind(left):
                shutil.rmtree(left)
    return tempfile.TemporaryDirectory(prefix=f"{_BEFORE}{os.getpid()}-")


def _left_behind(folder: Path) -> bool:
    """Whether a folder is this user's, its process is gone and nobody listens in it."""
    number = folder.name.removeprefix(_BEFORE).partition("-")[0]
    if folder.lstat().st_uid != os.getuid() or not number.isdigit() or _alive(int(number)):
        return False
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(folder / SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
    return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
