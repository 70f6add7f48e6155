"""One trial of a sweep where it runs: a worker process here, or a task on some node of Ray.

``python -m tacit.experiment.sweep_worker`` is the worker: jobs come in as lines of JSON, answers
go out so. Its driver holds the other end of its standard input: whichever way the driver ends,
the worker does.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from tacit._version import __version__
from tacit.errors import TacitError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.plugins import load_installed, load_source

TRAIN = "tacit.experiment.sweep_worker:train"
"""The task that a sweep runs where none is named."""
TIMING = ("seconds", "steps_per_second")
"""What differs between two equal runs; kept apart from the results."""

Task = Callable[..., dict[str, Any]]
"""Takes a configuration; one with a parameter `folder` may keep there what it has done so far."""


def train(config: TrainConfig) -> dict[str, Any]:
    """Train, attack and measure, as ``tacit train`` does."""
    from tacit.experiment.run import run  # noqa: PLC0415 - torch loads only when it is used

    return run(config)[1]


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Return how a job ended: its state, results without timing, error, and facts of the run."""
    import torch  # noqa: PLC0415 - torch loads only when it is used

    torch.set_num_threads(1)
    start = time.perf_counter()
    results, error = None, None
    try:
        load_installed()
        for plugin in job.get("plugins", ()):
            load_source(plugin["path"], plugin["source"])
        task, folder = _task(job["task"]), job.get("folder")
        more = {}
        if folder and "folder" in inspect.signature(task).parameters:
            more["folder"] = Path(folder)
        results = task(TrainConfig.of(job["config"], source="the trial"), **more)
    except TacitError as found:
        error = str(found)
    except Exception as found:  # whatever a configuration does, the others go on
        error = f"{type(found).__name__}: {found}"
    seconds = time.perf_counter() - start
    run = {name: results.pop(name) for name in TIMING if results is not None and name in results}
    return {
        "state": "done" if error is None else "failed",
        "results": results,
        "error": None if error is None else " ".join(error.split()),
        "run": {"seconds": seconds, **run, **_facts(torch.__version__)},
    }


def _facts(torch_version: str) -> dict[str, Any]:
    return {
        "node": platform.node(),
        "pid": os.getpid(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "tacit": __version__,
        "torch": torch_version,
    }


def _task(address: str) -> Task:
    module, _, name = address.partition(":")
    try:
        found: Task = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"task {address}: cannot be found here: {error}") from None
    return found


def _jobs(lines: IO[str], jobs: SimpleQueue[dict[str, Any]]) -> None:
    for line in lines:
        jobs.put(json.loads(line))
    os._exit(0)  # the driver is gone, or has no more work: also in the middle of a trial


def main() -> None:
    """Do one job after the other until the driver closes standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the driver's to handle
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not print between the answers
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_jobs, args=(sys.stdin, jobs), daemon=True).start()
    while True:
        answers.write(json.dumps(perform(jobs.get())) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
