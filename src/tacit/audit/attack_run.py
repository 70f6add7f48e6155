"""One attack over a whole tape: what it finds in each batch, by each epoch and altogether.

Attacks are judged fairly: side information never comes from the rows that are scored, because
class centres of the same rows would find "labels" in pure noise. So half of the batch informs the
attack on the other half, and rows that were given as hints are not counted.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.attack import Attack, Scored, StreamingAttack
from tacit.audit.truth import Truth
from tacit.errors import KnowledgeError
from tacit.evaluate import reveal
from tacit.measure import (
    LeakMeter,
    OneVsRest,
    PooledLeak,
    clustering_accuracy,
    clustering_confusion,
    meter_for,
)
from tacit.types import Known, View

Values = npt.NDArray[np.float64]

NULL_LEVEL = 0.999  # many attacks are run on one tape: one false alarm in 1,000, not in 20
_SAMPLE = 100_000
_FROM_OTHERS = {"positive", "centres"}  # side information that comes from the other half
_SHOWN = 20  # classes at most in a table of confusions
_LEARNING = 0.9  # share of the time that fits may take; the rest is for reading and scoring
_LEAST_SECONDS = 1e-3  # of one fit


@final
@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """The leakage over all of a tape, with its interval and the upper end of the null band."""

    leak: PooledLeak
    null_high: float

    @classmethod
    def of(cls, meter: LeakMeter | OneVsRest, seed: int) -> PooledResult:
        """Return the result of a meter, with a null band at ``NULL_LEVEL``."""
        leak = meter.compute(rng=np.random.default_rng(seed), resamples=200)
        band = meter.compute(rng=np.random.default_rng(seed), resamples=2, level=NULL_LEVEL)
        return cls(leak=leak, null_high=band.null_high)


@final
@dataclass(frozen=True, kw_only=True)
class EpochLeak:
    """What an attack found by the end of an epoch; no leak AUC with many classes."""

    epoch: int
    leak_auc: float | None = None
    low: float | None = None
    high: float | None = None
    clustering_accuracy: float | None = None


@final
@dataclass(frozen=True, eq=False)
class Clustering:
    """The class of each example, and the group that an attack has put it in."""

    ids: Tensor
    labels: Tensor
    groups: Tensor


class AttackRun(ABC):
    """One attack on one tape. It takes the views in order, and is told when an epoch has ended."""

    def __init__(self, attack: Attack, *, budget: float, seed: int, classes: int) -> None:
        self.attack = attack
        self.classes = classes
        self.accumulated = attack.adds_up
        self.epochs: list[EpochLeak] = []
        self.spent = 0.0
        self.stopped = False
        self._budget = budget
        self._seed = seed
        self._rng = torch.Generator().manual_seed(seed)

    @final
    def add(self, view: View, labels: Tensor) -> None:
        """Attack one view, unless the time for this attack is used up."""
        if self.spent > self._budget:
            self.stopped = True
            return
        start = time.perf_counter()
        self._add(view, labels)
        self.spent += time.perf_counter() - start

    @abstractmethod
    def _add(self, view: View, labels: Tensor) -> None: ...

    @abstractmethod
    def end_epoch(self, epoch: int, truth: Truth) -> None:
        """Record the leakage by the end of an epoch."""

    @abstractmethod
    def pooled(self) -> PooledResult | None:
        """Return the leakage over the tape, or None if no batch could be judged."""

    @abstractmethod
    def sample(self) -> tuple[Values, Values]:
        """Return scores on a common scale with their labels, for curves and histograms."""

    def accuracy(self) -> float | None:
        """Return the clustering accuracy, for attacks that find groups."""
        return None

    def clustering(self) -> Clustering | None:
        """Return every example's class and group, for attacks that find groups."""
        return None

    def _record(
        self, epoch: int, meter: LeakMeter | OneVsRest | None, *, accuracy: float | None = None
    ) -> None:
        if meter is not None and meter.batches:
            leak = meter.compute(rng=np.random.default_rng(self._seed), resamples=100)
            self.epochs.append(
                EpochLeak(
                    epoch=epoch,
                    leak_auc=leak.leak_auc,
                    low=leak.low,
                    high=leak.high,
                    clustering_accuracy=accuracy,
                )
            )
        elif accuracy is not None:
            self.epochs.append(EpochLeak(epoch=epoch, clustering_accuracy=accuracy))


@final
class ViewRun(AttackRun):
    """A run of an attack that scores each view by itself; only scores of one view compare."""

    def __init__(self, attack: Attack, *, budget: float, seed: int, classes: int) -> None:
        super().__init__(attack, budget=budget, seed=seed, classes=classes)
        self._all, self._epoch = meter_for(classes), meter_for(classes)
        self._kept: deque[tuple[Values, Values]] = deque()
        self._size = 0

    def _add(self, view: View, labels: Tensor) -> None:
        for scores, classes in fair_scores(self.attack, view, labels, self._rng):
            self._all.add(scores, classes)
            self._epoch.add(scores, classes)
            self._keep(scores.numpy(), classes.numpy().astype(np.float64))

    def _keep(self, scores: Values, labels: Values) -> None:
        spread = float(scores.std())
        self._kept.append(((scores - scores.mean()) / spread if spread > 0 else scores * 0, labels))
        self._size += len(scores)
        while self._size > _SAMPLE and len(self._kept) > 1:
            self._size -= len(self._kept.popleft()[0])

    def end_epoch(self, epoch: int, truth: Truth) -> None:  # noqa: ARG002 - views had their labels
        """Record this epoch's leakage alone."""
        self._record(epoch, self._epoch)
        self._epoch = meter_for(self.classes)

    def pooled(self) -> PooledResult | None:
        """Return the leakage of all views together."""
        return PooledResult.of(self._all, self._seed) if self._all.batches else None

    def sample(self) -> tuple[Values, Values]:
        """Return the latest scores, each batch at mean 0 and spread 1."""
        scores, labels = zip(*self._kept, strict=True)
        return np.concatenate(scores), np.concatenate(labels)


@final
class StreamingRun(AttackRun):
    """A run of an attack over many views, judged by its last score of each example."""

    def __init__(
        self,
        attack: Attack,
        stream: StreamingAttack,
        *,
        budget: float,
        seed: int,
        classes: int,
        epochs: int,
    ) -> None:
        super().__init__(attack, budget=budget, seed=seed, classes=classes)
        self._stream = stream
        self._left = epochs
        self._judged: tuple[Scored, Tensor] | None = None
        self._limit_time()

    def _add(self, view: View, labels: Tensor) -> None:  # noqa: ARG002 - it is judged at the end
        self._stream.add(view)

    def end_epoch(self, epoch: int, truth: Truth) -> None:
        """Judge the scores of every example so far."""
        start = time.perf_counter()
        found = self._stream.result()
        self._judged = (found, truth.of(found.ids))
        meter = self._meter() if truth.classes == 2 or found.clusters is None else None
        self._record(epoch, meter, accuracy=self.accuracy())
        self.spent += time.perf_counter() - start
        self.stopped = self.stopped or self._stream.late
        self._left = max(1, self._left - 1)
        self._limit_time()

    def _limit_time(self) -> None:
        """Divide the remaining time equally among the remaining epochs."""
        left = max(0.0, _LEARNING * self._budget - self.spent)
        self._stream.limit(max(left / self._left, _LEAST_SECONDS))

    def pooled(self) -> PooledResult | None:
        """Return the leakage after the last epoch."""
        if self._judged is None:
            return None
        meter = self._meter()
        return PooledResult.of(meter, self._seed) if meter.batches else None

    def sample(self) -> tuple[Values, Values]:
        """Return the final scores, evenly thinned where there are very many."""
        found, labels = self._known()
        step = max(1, len(labels) // _SAMPLE)
        scores = found.scores.numpy()[::step]
        spread = float(scores.std())
        scaled = (scores - scores.mean()) / (spread if spread > 0 else 1.0)
        return scaled, labels.numpy()[::step].astype(np.float64)

    def accuracy(self) -> float | None:
        """Return the share of examples that the best naming of the groups gets right."""
        found, labels = self._known()
        if found.clusters is None:
            return None
        return clustering_accuracy(found.clusters, labels)

    def clustering(self) -> Clustering | None:
        """Return the classes and the groups after the last epoch."""
        found, labels = self._known()
        return None if found.clusters is None else Clustering(found.ids, labels, found.clusters)

    def _known(self) -> tuple[Scored, Tensor]:
        assert self._judged is not None  # noqa: S101 - asked for after the last epoch only
        return self._judged

    def _meter(self) -> LeakMeter | OneVsRest:
        found, labels = self._known()
        meter = meter_for(self.classes)
        meter.add(found.scores, labels)
        return meter


def confusions(runs: Sequence[AttackRun]) -> dict[str, list[list[int]]]:
    """Return the confusion matrix of each attack that finds groups."""
    found = {str(t.attack): s for t in runs if t.epochs and (s := t.clustering()) is not None}
    return {
        name: clustering_confusion(s.groups, s.labels).tolist()
        for name, s in found.items()
        if int(s.labels.max()) < _SHOWN
    }


def start_run(
    attack: Attack, *, budget: float, seed: int, classes: int, epochs: int = 1
) -> AttackRun:
    """Return a new run of an attack; with many classes, each is judged against the rest."""
    stream = attack.streaming(torch.Generator().manual_seed(seed))
    if stream is None:
        return ViewRun(attack, budget=budget, seed=seed, classes=classes)
    return StreamingRun(attack, stream, budget=budget, seed=seed, classes=classes, epochs=epochs)


def fair_scores(
    attack: Attack, view: View, labels: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores with their labels; none if the batch lacks what the attack must know."""
    wanted = attack.needs - {"embeddings"}
    if wanted & _FROM_OTHERS:
        yield from _halves(attack, view, labels, rng)
        return
    try:
        known = _side_information(attack, view, labels, rng) if wanted else Known()
    except KnowledgeError:
        return
    scores = attack(replace(view, known=known), rng)
    if known.hints is None:
        yield scores, labels
        return
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[known.hints] = False
    if bool(kept.any()):
        yield scores[kept], labels[kept]


def part_of(view: View, rows: Tensor) -> View:
    """Return some rows of a view."""
    sent, ids = view.embeddings, view.ids
    return replace(
        view,
        grads=view.grads[rows],
        embeddings=None if sent is None else sent[rows],
        ids=None if ids is None else ids[rows],
    )


def _halves(
    attack: Attack, view: View, labels: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(labels), generator=rng)
    one, two = order[: len(order) // 2], order[len(order) // 2 :]
    for seen, rows in ((one, two), (two, one)):
        if len(seen) == 0 or len(rows) == 0:
            continue
        try:
            known = _side_information(attack, part_of(view, seen), labels[seen], rng)
        except KnowledgeError:
            continue
        yield attack(replace(part_of(view, rows), known=known), rng), labels[rows]


def _side_information(attack: Attack, view: View, labels: Tensor, rng: torch.Generator) -> Known:
    """Return what the attack must know; a tape has no clean gradients, so released ones serve."""
    return reveal(attack, clean=view.grads, released=view.grads, labels=labels, rng=rng)
