"""The losses of an attack's trials on disk, so that a search of days survives an interruption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from tacit.attack.learned import TrialLog


@final
class TrialFile(TrialLog):
    """A file with one line per trial: the search, the number of the trial and its loss, exactly.

    ::

        6f1d... 0 0x1.0a3d70a3d70a4p-5 .

    The point ends a line: one that a killed process has left unfinished does not count. Of a
    search, the lines numbered from 0 on without a gap do.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, list[float]] = {}
        if path.is_file():
            for text in path.read_bytes().split(b"\n"):
                self._read(text.decode(errors="replace"))

    def _read(self, text: str) -> None:
        try:
            search, number, loss, end = text.split(" ")
            losses = self._found.setdefault(search, [])
            if int(number) == len(losses) and end == ".":
                losses.append(float.fromhex(loss))
        except ValueError:
            return  # unfinished, or empty

    def losses(self, search: str) -> list[float]:
        """Return the losses of the search's trials so far, in their order."""
        return list(self._found.get(search, ()))

    def add(self, search: str, loss: float) -> None:
        """Append a line and bring it to disk."""
        losses = self._found.setdefault(search, [])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # The first line break ends what a killed process may have left unfinished.
            file.write(f"\n{search} {len(losses)} {loss.hex()} .".encode())
            file.flush()
            os.fsync(file.fileno())
        losses.append(loss)
