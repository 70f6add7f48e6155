"""Several replays with different settings, and which of them to believe without any label."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, final

import torch

from tacit.attack.learned._gradient_replay import Replay, ReplayBatch, Settings, replay
from tacit.attack.learned._surrogate import Rows

Choose = Literal["margin", "gradient", "objective"]
Ranges = Literal["ours", "paper"]
_RATES: Final = ("rate_net", "rate_labels", "lambda_ce", "lambda_p")
RANGES: Final[Mapping[Ranges, Mapping[str, tuple[float, float]]]] = {
    "ours": dict(zip(_RATES, ((1e-4, 1e-3), (0.1, 1.0), (1.0, 5.0), (3.0, 20.0)), strict=True)),
    "paper": dict(zip(_RATES, ((1e-5, 1e-4), (1e-2, 1e-1), (0.1, 3.0), (0.1, 3.0)), strict=True)),
}


def explained(found: Replay, rows: Rows) -> float:
    """Return how clearly the surrogate tells which label made each gradient, on rows it never saw.

    ``E[d_2 - d_1] - KL(P || P')`` with ``d_1 <= d_2`` the distances of a row's gradient, at length
    one, from those that its two best labels would have made, and ``P'`` the shares of the best
    labels. A surrogate that has only fitted free labels to gradients cannot tell them apart there.
    """
    far, _ = found.distances(rows)
    nearest = far.topk(2, dim=1, largest=False)
    margin = float((nearest.values[:, 1] - nearest.values[:, 0]).mean())
    shares = torch.bincount(nearest.indices[:, 0], minlength=far.shape[1]) / len(rows)
    # A class without any row counts as if it had half of one.
    ratio = found.prior / shares.clamp_min(0.5 / len(rows))
    return margin - float(torch.xlogy(found.prior, ratio).sum())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Replays of the same rows, and the rule to choose one by.

    Attributes:
        lesson: the rows to explain.
        held: rows that no replay learns from.
        settings: of the first trial; a weight of 0 stays 0 in all.
        count: how many trials at most.
        ranges: where the other trials' settings are looked for.
        choose: the rule.
        workers: processes to run them in, 1 for this one.
    """

    lesson: ReplayBatch
    held: Rows
    settings: Settings
    count: int
    ranges: Ranges
    choose: Choose
    workers: int = 1

    def best(self, rng: torch.Generator, *, until: float | None) -> Replay:
        """Return the best replay by the rule; late if time did not suffice for all of them."""
        found: list[tuple[float, Replay]] = []
        began = time.perf_counter()
        for number, batch in enumerate(self._batches(rng, found)):
            spent = (time.perf_counter() - began) / max(1, number)
            if number and until is not None and time.perf_counter() + 0.7 * spent > until:
                break
            found += [(self._loss(one), one) for one in batch(_left(until))]
        chosen = min(found, key=lambda one: one[0])[1]
        return dataclasses.replace(chosen, late=chosen.late or len(found) < self.count)

    def _loss(self, found: Replay) -> float:
        if self.choose == "gradient":
            return found.gradient_loss
        return found.objective if self.choose == "objective" else -explained(found, self.held)

    def _batches(
        self, rng: torch.Generator, found: list[tuple[float, Replay]]
    ) -> Iterator[Callable[[float | None], list[Replay]]]:
        """Yield trials, as many at a time as there are workers; the search sees all earlier."""
        if self.count == 1:
            seed = _drawn(rng)
            yield partial(_together, None, self.lesson, [(self.settings, seed)])
            return
        with _searched(_drawn(rng)) as study, _pool(self.workers) as pool:
            first = {n: getattr(self.settings, n) for n in _RATES if getattr(self.settings, n) > 0}
            study.enqueue_trial(first, skip_if_exists=False)
            for start in range(0, self.count, self.workers):
                asked = [study.ask() for _ in range(min(self.workers, self.count - start))]
                plans = [(self._settings(trial), _drawn(rng)) for trial in asked]
                yield partial(_together, pool, self.lesson, plans)
                for trial, (loss, _) in zip(asked, found[start:], strict=True):
                    study.tell(trial, loss)

    def _settings(self, trial: Any) -> Settings:  # noqa: ANN401 - optuna has no types
        ranges = RANGES[self.ranges]
        wanted = {
            name: trial.suggest_float(name, *_around(ranges[name], start), log=True)
            for name in _RATES
            if (start := getattr(self.settings, name)) > 0
        }
        return dataclasses.replace(self.settings, **wanted)


def _around(span: tuple[float, float], start: float) -> tuple[float, float]:
    """Return the range, wide enough for the settings that the search starts from."""
    return min(span[0], start), max(span[1], start)


def _run(lesson: ReplayBatch, settings: Settings, seed: int, seconds: float | None) -> Replay:
    until = None if seconds is None else time.perf_counter() + seconds
    return replay(lesson, settings, rng=torch.Generator().manual_seed(seed), until=until)


def _together(
    pool: ProcessPoolExecutor | None,
    lesson: ReplayBatch,
    plans: list[tuple[Settings, int]],
    seconds: float | None,
) -> list[Replay]:
    if pool is None:
        return [_run(lesson, *plan, seconds) for plan in plans]
    jobs = [pool.submit(_run, lesson, *plan, seconds) for plan in plans]
    return [job.result() for job in jobs]


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.perf_counter())


def _drawn(rng: torch.Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))


@contextmanager
def _searched(seed: int) -> Iterator[Any]:
    """Yield a search that says nothing on standard error, by a tree-structured Parzen estimator."""
    import optuna  # noqa: PLC0415 - a second to load

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes with one thread each, or None where this one will do."""
    if workers == 1:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield pool
