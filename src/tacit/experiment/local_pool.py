"""Worker processes on this machine, one torch thread each."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol, final

from tacit.plugins import Plugin

_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """One trial to run: the key of its results, the task and the configuration's values.

    ``plugins`` are run before it, from the text that the driver read: a file that changes
    meanwhile, or is not on a worker's machine, makes no difference. ``folder`` is where a long task
    may keep what it has done so far; it need not exist.
    """

    key: str
    task: str
    config: Mapping[str, Any]
    plugins: tuple[Plugin, ...] = ()
    attempt: int = 1
    folder: str | None = None

    def message(self) -> dict[str, Any]:
        """Return the message to a worker that starts the job."""
        plugins = [{"path": plugin.path, "source": plugin.source} for plugin in self.plugins]
        return {
            "task": self.task,
            "config": dict(self.config),
            "plugins": plugins,
            "folder": self.folder,
        }


@final
@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job with its answer, or with the reason why there is none."""

    job: Job
    answer: Mapping[str, Any] | None = None
    lost: str = ""


class Runner(Protocol):
    """Something that runs jobs, so many at a time."""

    @property
    def slots(self) -> int:
        """How many jobs may be under way."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job; there are never more than ``slots`` at a time."""
        ...

    def wait(self) -> list[Ended]:
        """Return the jobs that have ended, as soon as there is one."""
        ...

    def close(self) -> None:
        """End whatever still runs."""
        ...


@final
class _Worker:
    """One worker process. Its standard input is ours alone: it ends when we do."""

    def __init__(self) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tacit.experiment.sweep_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **_ONE_THREAD, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdin is not None  # noqa: S101 - as asked for above
        assert self._process.stdout is not None  # noqa: S101
        self._jobs, self.answers = self._process.stdin, self._process.stdout
        self.job: Job | None = None

    def start(self, job: Job) -> None:
        self.job = job
        self._said.seek(0)  # what it said of earlier jobs is over; both ends share the place
        self._said.truncate()
        with suppress(BrokenPipeError):  # it has died: its end is read from its answers
            self._jobs.write(json.dumps(job.message()).encode() + b"\n")
            self._jobs.flush()

    def end(self) -> Ended:
        """Return the answer to the job, or how the worker died."""
        assert self.job is not None  # noqa: S101 - only those with a job are waited for
        line = self.answers.readline()
        job, self.job = self.job, None
        if line.endswith(b"\n"):
            return Ended(job=job, answer=json.loads(line))
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        return Ended(job=job, lost=f"its worker ended by {how}{f': {last}' if last else ''}")

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._jobs.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.answers.close()
        self._said.close()


@final
class LocalPool:
    """Up to ``slots`` workers; one that dies is replaced when there is work for it."""

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._idle: list[_Worker] = []
        self._busy = selectors.DefaultSelector()

    def submit(self, job: Job) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker()
        worker.start(job)
        self._busy.register(worker.answers, selectors.EVENT_READ, worker)

    def wait(self) -> list[Ended]:
        """Return the jobs that have ended, as soon as there is one."""
        found = []
        for ready, _ in self._busy.select():
            worker: _Worker = ready.data
            self._busy.unregister(worker.answers)
            ended = worker.end()
            found.append(ended)
            if ended.lost:
                worker.close()
            else:
                self._idle.append(worker)
        return found

    def close(self) -> None:
        """End all workers, also those in the middle of a trial."""
        running: list[_Worker] = [entry.data for entry in self._busy.get_map().values()]
        self._busy.close()
        for worker in (*self._idle, *running):
            worker.close()
