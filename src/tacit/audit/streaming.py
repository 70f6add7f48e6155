"""What is kept of an attack while a tape runs past it: per batch, per epoch and altogether."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.attack import Attack, Scored, StreamingAttack
from tacit.audit.evaluate_view import exposed
from tacit.audit.truth import Truth
from tacit.measure import (
    LeakMeter,
    OneVsRest,
    PooledLeak,
    clustering_accuracy,
    clustering_confusion,
    meter_for,
)
from tacit.types import View

Values = npt.NDArray[np.float64]

NULL_LEVEL = 0.999  # many attacks look at one tape: one in a thousand may cry wolf, not one in 20
_SAMPLE = 100_000
_SHOWN = 20  # classes at most in a table of confusions
_LEARNING, _MOMENT = 0.9, 1e-3  # share of the time to learn in; the rest is for reading and sorting


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """Everything an attack found, with its interval and the band of pure noise."""

    leak: PooledLeak
    null_high: float

    @classmethod
    def of(cls, meter: LeakMeter | OneVsRest, seed: int) -> Pool:
        """Return the record of a meter."""
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
class Sorting:
    """Examples with their classes, and the groups that an attack has put them in."""

    ids: Tensor
    labels: Tensor
    groups: Tensor


class Trace(ABC):
    """An attack under way: takes views in order, and is told when an epoch has ended."""

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
        """Note what is known by the end of an epoch."""

    @abstractmethod
    def pool(self) -> Pool | None:
        """Return what was found, or None if no batch could be judged."""

    @abstractmethod
    def sample(self) -> tuple[Values, Values]:
        """Return scores on a common scale with their labels, for curves and histograms."""

    def accuracy(self) -> float | None:
        """Return the clustering accuracy, for attacks that sort examples into groups."""
        return None

    def sorting(self) -> Sorting | None:
        """Return every example's class and group, for attacks that sort examples into groups."""
        return None

    def _note(
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
class ViewTrace(Trace):
    """An attack that judges each view by itself; scores are compared within a view only."""

    def __init__(self, attack: Attack, *, budget: float, seed: int, classes: int) -> None:
        super().__init__(attack, budget=budget, seed=seed, classes=classes)
        self._all, self._epoch = meter_for(classes), meter_for(classes)
        self._kept: deque[tuple[Values, Values]] = deque()
        self._size = 0

    def _add(self, view: View, labels: Tensor) -> None:
        for scores, classes in exposed(self.attack, view, labels, self._rng):
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
        """Note this epoch's leakage alone."""
        self._note(epoch, self._epoch)
        self._epoch = meter_for(self.classes)

    def pool(self) -> Pool | None:
        """Return the leakage of all views together."""
        return Pool.of(self._all, self._seed) if self._all.batches else None

    def sample(self) -> tuple[Values, Values]:
        """Return the latest scores, each batch at mean 0 and spread 1."""
        scores, labels = zip(*self._kept, strict=True)
        return np.concatenate(scores), np.concatenate(labels)


@final
class StreamingTrace(Trace):
    """An attack over many views: what counts is what it knows of each example in the end."""

    def __init__(
        self,
        attack: Attack,
        pursuit: StreamingAttack,
        *,
        budget: float,
        seed: int,
        classes: int,
        epochs: int,
    ) -> None:
        super().__init__(attack, budget=budget, seed=seed, classes=classes)
        self._pursuit = pursuit
        self._left = epochs
        self._judged: tuple[Scored, Tensor] | None = None
        self._share()

    def _add(self, view: View, labels: Tensor) -> None:  # noqa: ARG002 - it is judged at the end
        self._pursuit.add(view)

    def end_epoch(self, epoch: int, truth: Truth) -> None:
        """Judge what is known of every example so far."""
        start = time.perf_counter()
        found = self._pursuit.result()
        self._judged = (found, truth.of(found.ids))
        meter = self._meter() if truth.classes == 2 or found.clusters is None else None
        self._note(epoch, meter, accuracy=self.accuracy())
        self.spent += time.perf_counter() - start
        self.stopped = self.stopped or self._pursuit.late
        self._left = max(1, self._left - 1)
        self._share()

    def _share(self) -> None:
        """Give each epoch that is left the same share of the time that is left."""
        left = max(0.0, _LEARNING * self._budget - self.spent)
        self._pursuit.limit(max(left / self._left, _MOMENT))

    def pool(self) -> Pool | None:
        """Return the leakage after the last epoch."""
        if self._judged is None:
            return None
        meter = self._meter()
        return Pool.of(meter, self._seed) if meter.batches else None

    def sample(self) -> tuple[Values, Values]:
        """Return the final scores, evenly thinned where there are very many."""
        found, labels = self._known()
        step = max(1, len(labels) // _SAMPLE)
        scores = found.scores.numpy()[::step]
        spread = float(scores.std())
        scaled = (scores - scores.mean()) / (spread if spread > 0 else 1.0)
        return scaled, labels.numpy()[::step].astype(np.float64)

    def accuracy(self) -> float | None:
        """Return how many examples the best naming of the groups gets right."""
        found, labels = self._known()
        if found.clusters is None:
            return None
        return clustering_accuracy(found.clusters, labels)

    def sorting(self) -> Sorting | None:
        """Return the classes and the groups after the last epoch."""
        found, labels = self._known()
        return None if found.clusters is None else Sorting(found.ids, labels, found.clusters)

    def _known(self) -> tuple[Scored, Tensor]:
        assert self._judged is not None  # noqa: S101 - asked for after the last epoch only
        return self._judged

    def _meter(self) -> LeakMeter | OneVsRest:
        found, labels = self._known()
        meter = meter_for(self.classes)
        meter.add(found.scores, labels)
        return meter


def confusions(traces: Sequence[Trace]) -> dict[str, list[list[int]]]:
    """Return, for each attack that sorts, how many examples of a class were taken for each."""
    found = {str(t.attack): s for t in traces if t.epochs and (s := t.sorting()) is not None}
    return {
        name: clustering_confusion(s.groups, s.labels).tolist()
        for name, s in found.items()
        if int(s.labels.max()) < _SHOWN
    }


def trace_of(attack: Attack, *, budget: float, seed: int, classes: int, epochs: int = 1) -> Trace:
    """Return the trace that fits an attack; many classes are judged one against the rest."""
    pursuit = attack.pursue(torch.Generator().manual_seed(seed))
    if pursuit is None:
        return ViewTrace(attack, budget=budget, seed=seed, classes=classes)
    return StreamingTrace(attack, pursuit, budget=budget, seed=seed, classes=classes, epochs=epochs)
