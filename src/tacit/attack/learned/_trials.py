"""Several replays of the same rows with different settings, and the choice of one without labels.

:class:`Trials` searches settings and keeps the best replay. A :class:`TrialLog` lets a search that
was interrupted go on where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import torch

from tacit.attack.learned._gradient_replay import Replay, ReplayData, Settings, replay
from tacit.attack.learned._surrogate import Rows

Choose = Literal["margin", "gradient", "objective"]
Ranges = Literal["ours", "paper"]
_SEARCHED: Final = ("rate_net", "rate_labels", "lambda_ce", "lambda_p")
_OURS: Final = ((1e-4, 1e-3), (0.1, 1.0), (1.0, 5.0), (3.0, 20.0))
_PAPER: Final = ((1e-5, 1e-4), (1e-2, 1e-1), (0.1, 3.0), (0.1, 3.0))  # section 5.1
RANGES: Final[Mapping[Ranges, Mapping[str, tuple[float, float]]]] = {
    "ours": dict(zip(_SEARCHED, _OURS, strict=True)),
    "paper": dict(zip(_SEARCHED, _PAPER, strict=True)),
}


def held_out_margin(found: Replay, rows: Rows) -> float:
    """Return how clearly the surrogate tells which label made each gradient, on held-out rows.

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


class TrialLog(ABC):
    """What earlier trials of a search came to.

    A search is named by a digest of its rows and settings: the same name means the same trials.
    """

    @abstractmethod
    def losses(self, search: str) -> list[float]:
        """Return the losses of the search's trials so far, in their order."""

    @abstractmethod
    def add(self, search: str, loss: float) -> None:
        """Keep the loss of the search's next trial."""


@final
@dataclass(frozen=True)
class _Plan:
    """The settings of a trial and the seed of its start."""

    settings: Settings
    seed: int


@final
class _Best:
    """The trial with the least loss so far; its replay, unless that was run in another call."""

    def __init__(self) -> None:
        self.loss = float("inf")
        self.plan: _Plan | None = None
        self.replay: Replay | None = None

    def offer(self, loss: float, plan: _Plan, found: Replay | None) -> None:
        """Take a trial if it is better; of equal ones the first stays."""
        if self.plan is None or loss < self.loss:
            self.loss, self.plan, self.replay = loss, plan, found


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Several replays of the same rows, and the rule by which one is chosen.

    Attributes:
        data: the rows to explain.
        held: rows that no replay learns from.
        settings: of the first trial; a weight of 0 stays 0 in all.
        count: how many trials at most.
        ranges: the search space of the other trials' settings.
        choose: the rule.
        workers: how many processes to run trials in; 1 for the calling process.
        log: trials that were run before, and where new ones are kept.
    """

    data: ReplayData
    held: Rows
    settings: Settings
    count: int
    ranges: Ranges
    choose: Choose
    workers: int = 1
    log: TrialLog | None = None

    def best(self, rng: torch.Generator, *, until: float | None) -> Replay:
        """Return the best replay by the rule; late if time did not suffice for all of them."""
        search, best, late, done = _Search(self, rng), _Best(), False, 0
        name = "" if self.log is None else self._name(search.seed)
        kept = [] if self.log is None else self.log.losses(name)[: self.count]
        began, ran = time.perf_counter(), 0
        with _pool(self.workers) as pool:
            while done < self.count:
                spent = (time.perf_counter() - began) / max(1, ran)
                if ran and until is not None and time.perf_counter() + 0.7 * spent > until:
                    break
                plans = search.ask(min(self.workers, self.count - done))
                losses = kept[done : done + len(plans)]
                missing = _run_plans(pool, self.data, plans[len(losses) :], until)
                replays = [*[None] * len(losses), *missing]
                late = late or any(one.late for one in missing)
                for one in missing:
                    losses.append(self._loss(one))
                    if self.log is not None and not late:
                        self.log.add(name, losses[-1])
                for trial in zip(losses, plans, replays, strict=True):
                    best.offer(*trial)
                ran += bool(missing)
                search.tell(losses)
                done += len(plans)
            assert best.plan is not None  # noqa: S101 - the first trials are always run
            chosen = best.replay or _run_plans(None, self.data, [best.plan], until)[0]
        return dataclasses.replace(chosen, late=chosen.late or done < self.count)

    def _loss(self, found: Replay) -> float:
        if self.choose == "gradient":
            return found.gradient_loss
        return found.objective if self.choose == "objective" else -held_out_margin(found, self.held)

    def _name(self, seed: int) -> str:
        """Return a digest of all that decides what trials come to, except how many there are.

        A single one has another seed than the first of several.
        """
        data, asked = self.data, (self.settings, self.ranges, self.choose, self.workers, seed)
        found = hashlib.sha256(repr((asked, data.hidden, self.count == 1)).encode())
        tensors = (data.rows.embeddings, data.rows.gradients, data.group, data.prior, data.start)
        for tensor in (*tensors, self.held.embeddings, self.held.gradients):
            found.update(b"-" if tensor is None else tensor.contiguous().numpy().tobytes())
        return found.hexdigest()[:32]


@final
class _Search:
    """Where to look next: a tree-structured Parzen estimator that knows all earlier losses."""

    def __init__(self, trials: Trials, rng: torch.Generator) -> None:
        self._trials, self._rng = trials, rng
        self.seed = _draw_seed(rng)
        self._study: Any = None
        self._asked: list[Any] = []

    def ask(self, count: int) -> list[_Plan]:
        """Return the next plans; the first has the settings that the search starts from."""
        if self._trials.count == 1:
            return [_Plan(started_in(self._trials.settings, self._trials.ranges), self.seed)]
        if self._study is None:
            self._study = _study(self.seed)
            self._study.enqueue_trial(self._first(), skip_if_exists=False)
        self._asked = [self._study.ask() for _ in range(count)]
        return [_Plan(self._settings(trial), _draw_seed(self._rng)) for trial in self._asked]

    def tell(self, losses: list[float]) -> None:
        """Take the losses of the plans that were asked for last."""
        for trial, loss in zip(self._asked, losses, strict=False):
            self._study.tell(trial, loss)

    def _first(self) -> dict[str, float]:
        """Return the values that the search starts from, of all that is searched."""
        start = started_in(self._trials.settings, self._trials.ranges)
        return {name: value for name in _SEARCHED if (value := getattr(start, name)) > 0}

    def _settings(self, trial: Any) -> Settings:  # noqa: ANN401 - optuna has no types
        wanted = {
            name: trial.suggest_float(name, *span_of(self._trials.ranges, name, start), log=True)
            for name, start in self._first().items()
        }
        return dataclasses.replace(self._trials.settings, **wanted)


def span_of(ranges: Ranges, name: str, start: float) -> tuple[float, float]:
    """Return the range of a setting; ours is widened to hold the value that a search starts from.

    >>> span_of("ours", "lambda_ce", 0.1), span_of("paper", "lambda_p", 10.0)
    ((0.1, 5.0), (0.1, 3.0))
    """
    low, high = RANGES[ranges][name]
    return (low, high) if ranges == "paper" else (min(low, start), max(high, start))


def started_in(settings: Settings, ranges: Ranges) -> Settings:
    """Return settings with each searched value moved to the nearest one of its range.

    A weight of 0 leaves a regulariser out and stays.

    >>> found = started_in(Settings(lambda_p=10.0, lambda_ce=0.0), "paper")
    >>> found.lambda_p, found.lambda_ce, found.rate_net, found.rate_labels
    (3.0, 0.0, 0.0001, 0.1)
    """
    wanted: dict[str, Any] = {}
    for name in _SEARCHED:
        value: float = getattr(settings, name)
        low, high = span_of(ranges, name, value)
        wanted[name] = min(max(value, low), high) if value else value
    return dataclasses.replace(settings, **wanted)


def _run(data: ReplayData, plan: _Plan, seconds: float | None) -> Replay:
    until = None if seconds is None else time.perf_counter() + seconds
    return replay(data, plan.settings, rng=torch.Generator().manual_seed(plan.seed), until=until)


def _run_plans(
    pool: ProcessPoolExecutor | None, data: ReplayData, plans: list[_Plan], until: float | None
) -> list[Replay]:
    seconds = None if until is None else max(0.0, until - time.perf_counter())
    if pool is None:
        return [_run(data, plan, seconds) for plan in plans]
    jobs = [pool.submit(_run, data, plan, seconds) for plan in plans]
    return [job.result() for job in jobs]


def _draw_seed(rng: torch.Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))


def _study(seed: int) -> Any:  # noqa: ANN401 - optuna has no types
    """Return a search, made without a word: optuna reports each new one."""
    import optuna  # noqa: PLC0415 - a second to load

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yield processes with one thread each, or None for a single worker."""
    if workers == 1:
        yield None
        return
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield pool
