"""Sweeps: many trials, on this machine or on a Ray cluster, into a store that keeps them.

>>> from tacit.experiment.config import TrainConfig
>>> trials = [TrainConfig(seed=seed) for seed in range(20)]
>>> records = run_sweep(trials, store=Path("out"), workers=2)  # doctest: +SKIP
>>> [record.results["test"]["auc"] for record in records if record.done]  # doctest: +SKIP
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.local_pool import Ended, Job, LocalPool, Runner
from tacit.experiment.sweep_store import SweepStore, TrialRecord, key_of, settings_of
from tacit.experiment.sweep_worker import TRAIN
from tacit.party.cpu import cores
from tacit.plugins import loaded_files

ATTEMPTS = 3
"""How often a trial is started whose workers die before it counts as failed."""


@final
@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """What an observer is told: at the start, and whenever a trial has ended.

    ``kept`` trials were in the store before; ``left`` are the seconds to go, by the pace so far.
    """

    trials: int
    kept: int
    done: int
    failed: int
    left: float | None = None
    last: TrialRecord | None = None
    note: str | None = None


SweepObserver = Callable[[SweepProgress], None]


def run_sweep(
    trials: Iterable[TrainConfig],
    *,
    store: Path,
    on: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    task: str = TRAIN,
    retry_failed: bool = False,
    observer: SweepObserver | None = None,
) -> list[TrialRecord]:
    """Run the trials that the store does not hold yet; return the records of all, in their order.

    A task is ``module:function`` and takes a configuration to a record of plain values; every
    worker must be able to import it. One that has a parameter ``folder`` may keep there what it has
    done so far, and finds it again when its trial was interrupted; on a cluster, if the store is on
    a file system that all nodes share. Equal trials are one. A trial that raises is recorded with
    its error; one whose worker dies is started again, ``ATTEMPTS`` times in all. Workers run the
    plug-ins that this process has loaded from files.

    Guarantee: ``results`` do not depend on the number of workers, on their order or on
    interruptions, bit for bit, on machines of one kind with one version of torch.
    """
    plugins = loaded_files()
    every = {key_of(config, task, plugins=plugins): config for config in trials}
    kept = SweepStore(store)
    jobs = [
        Job(
            key=key,
            task=task,
            config=_values(config, kept=settings_of(config), on=on),
            plugins=plugins,
            folder=str(kept.partial(key)),
        )
        for key, config in every.items()
    ]
    with closing(kept):
        sweep = _Sweep(kept, jobs, observer or (lambda _: None), again=retry_failed)
        if sweep.pending:
            with closing(_runner(on, workers=workers, address=address)) as runner:
                sweep.run(runner)
        else:
            sweep.report()
        kept.refresh()
        return [kept.records[key] for key in every]


def _values(config: TrainConfig, *, kept: dict[str, Any], on: str) -> dict[str, Any]:
    """Return what a worker is told; where data lie is its node's own matter on a cluster."""
    if on == "local" and config.data_dir is not None:
        return {**kept, "data_dir": str(config.data_dir)}
    return kept


def _runner(on: str, *, workers: int | None, address: str | None) -> Runner:
    if on == "local":
        if address is not None:
            raise UsageError(f"--address {address}: is for --on ray: add it, or leave this out")
        if workers is not None and workers < 1:
            raise UsageError(f"--workers {workers}: must be at least 1")
        return LocalPool(workers or cores())
    if on == "ray":
        from tacit.experiment.ray_pool import RayPool  # noqa: PLC0415 - an extra

        return RayPool(address, workers=workers)
    raise UsageError(f"--on {on}: must be local or ray")


@final
class _Sweep:
    """What is still to be done, and how far it is."""

    def __init__(
        self, store: SweepStore, jobs: Sequence[Job], tell: SweepObserver, *, again: bool
    ) -> None:
        self._store, self._tell = store, tell
        self._trials = len(jobs)
        ended = {job.key: store.records[job.key].done for job in jobs if job.key in store.records}
        self._ended = {key: done for key, done in ended.items() if done or not again}
        self._todo = {job.key for job in jobs} - self._ended.keys()
        pending = [job for job in jobs if job.key in self._todo]
        # Two drivers of one store start at different places and meet where the other has been.
        random.Random().shuffle(pending)  # noqa: S311 - the order decides nothing else
        self.pending = deque(pending)
        self._failed = len(self._ended) - sum(self._ended.values())
        self._kept, self._ran = len(self._ended), 0
        self._start = time.monotonic()

    def run(self, runner: Runner) -> None:
        """Keep the runner busy until nothing is left."""
        self.report()
        running = 0
        while self.pending or running:
            while running < runner.slots and (job := self._next()) is not None:
                runner.submit(job)
                running += 1
            if not running:
                break
            for ended in runner.wait():
                running -= 1
                self._take(ended)

    def _next(self) -> Job | None:
        """Return the next job that no other process has ended meanwhile."""
        self._look()
        while self.pending:
            job = self.pending.popleft()
            if job.key not in self._ended:
                return job
        return None

    def _look(self) -> None:
        """Count what has ended, here or in another process with the same store."""
        for record in self._store.refresh():
            if record.key in self._todo:
                before = self._ended.get(record.key, True)
                self._ended[record.key] = record.done
                self._failed += before - record.done

    def _take(self, ended: Ended) -> None:
        job = ended.job
        if ended.answer is None and job.attempt < ATTEMPTS:
            self.pending.append(replace(job, attempt=job.attempt + 1))
            self.report(note=f"{job.key}: {ended.lost}; it is started again")
            return
        answer = ended.answer or _lost(f"{ended.lost}, {ATTEMPTS} times")
        record = TrialRecord(
            key=job.key,
            task=job.task,
            config={name: value for name, value in job.config.items() if name != "data_dir"},
            state=answer["state"],
            results=answer["results"],
            error=answer["error"],
            run={**answer["run"], "attempts": job.attempt},
        )
        self._store.append(record)
        if record.done:
            self._store.remove_partial(job.key)
        self._ran += 1
        self.report(last=record)

    def report(self, *, last: TrialRecord | None = None, note: str | None = None) -> None:
        """Tell the observer how far it is."""
        self._look()
        pace = (time.monotonic() - self._start) / self._ran if self._ran else None
        ended = len(self._ended)
        self._tell(
            SweepProgress(
                trials=self._trials,
                kept=self._kept,
                done=ended - self._failed,
                failed=self._failed,
                left=None if pace is None else pace * (self._trials - ended),
                last=last,
                note=note,
            )
        )


def _lost(error: str) -> dict[str, Any]:
    return {"state": "failed", "results": None, "error": error, "run": {}}
