"""Two parties as two processes on this machine: what ``tacit demo`` shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any, final

from tacit.cli.init import BANK, PLATFORM, make_pair
from tacit.errors import TacitError

_LISTENING = re.compile(r"listening on (\S+)")


@final
class TwoParties:
    """A pair of companies in a folder, which can train together in several ways."""

    def __init__(self, folder: Path, *, rows: int) -> None:
        self._folder = folder
        make_pair(folder, address="127.0.0.1:0", rows=rows)

    def train(
        self, name: str, *, label: dict[str, Any], feature: dict[str, Any], both: dict[str, Any]
    ) -> dict[str, Any]:
        """Train once over mutual TLS, with state folders of that name; return the results."""
        bank = self._write(BANK, name, {"address": "127.0.0.1:0", **both, **label})
        with _process(bank) as (listening, complaints):
            address = _address(complaints)
            platform = self._write(PLATFORM, name, {"address": address, **both, **feature})
            with _process(platform) as (connecting, others):
                for process, errors in ((connecting, others), (listening, complaints)):
                    _finish(process, errors)
        results: dict[str, Any] = json.loads((bank.parent / name / "results.json").read_text())
        return results

    def _write(self, party: str, name: str, values: dict[str, Any]) -> Path:
        """Write a party's configuration of one run, with a state folder of its own."""
        folder = self._folder / party
        role, peer, table = {
            BANK: ("label", PLATFORM, "labels.csv"),
            PLATFORM: ("feature", BANK, "features.csv"),
        }[party]
        every = {
            "role": role,
            "name": party,
            "peer": peer,
            "keys": "keys",
            "data": table,
            "state": name,
            "wait": 60,
            "threads": 1,
            **values,
        }
        path = folder / f"{name}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in every.items()))
        return path


@contextmanager
def _process(config: Path) -> Iterator[tuple[subprocess.Popen[str], _Lines]]:
    """Run a party as a process of its own, which does not outlive the block."""
    command = [sys.executable, "-m", "tacit.cli", "party", str(config), "--json"]
    process = subprocess.Popen(  # noqa: S603 - this interpreter and our own file
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None  # noqa: S101 - a pipe was asked for
    lines = _Lines(process.stderr)
    try:
        yield process, lines
    finally:
        process.kill()
        process.wait()
        lines.close()


@final
class _Lines:
    """The standard error of a process, read as it comes so that its pipe never fills."""

    def __init__(self, stream: IO[str]) -> None:
        self.said: list[str] = []
        self._stream = stream
        self._came = Condition()
        self._over = False
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def first(self, pattern: re.Pattern[str]) -> str | None:
        """Wait for a line and return its text; None if the process ends without it."""
        with self._came:
            self._came.wait_for(lambda: self._over or self._found(pattern) is not None)
            return self._found(pattern)

    def _found(self, pattern: re.Pattern[str]) -> str | None:
        return next((found[1] for line in self.said if (found := pattern.search(line))), None)

    def close(self) -> None:
        """Wait until everything is read; the process has ended."""
        self._reader.join()

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._came:
                    self.said.append(line.strip())
                    self._came.notify()
        with self._came:
            self._over = True
            self._came.notify()


def _address(lines: _Lines) -> str:
    address = lines.first(_LISTENING)
    if address is None:
        raise TacitError(f"the label party did not start: {' '.join(lines.said[-1:])}")
    return address


def _finish(process: subprocess.Popen[str], lines: _Lines) -> None:
    if process.wait():
        raise TacitError(f"a party stopped: {' '.join(lines.said[-1:])}")
