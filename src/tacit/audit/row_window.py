"""The latest rows of a tape, for classifiers that need many rows at once, and the baseline."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from tacit.attack import Attack, LabelledAttack
from tacit.audit.truth import Truth
from tacit.errors import UsageError
from tacit.evaluate import cross_fit, cross_fit_probabilities, prediction_baseline
from tacit.measure import LeakMeter, auc
from tacit.tape.imports import load_array
from tacit.types import Known, View

Features = Path | str | npt.NDArray[Any] | Tensor

# Fits run on one thread: short parallel regions are slow where another process uses the cores.
_ROWS = 12_000
_FIRST_ROWS = 12_000
_FOLDS = 3


@final
class RowWindow:
    """The latest rows of a tape at a common scale, and the embeddings of its first epoch."""

    def __init__(self) -> None:
        self._latest: deque[tuple[View, Tensor]] = deque()
        self._size = 0
        self._first: list[tuple[Tensor, Tensor]] = []
        self._first_size = 0
        self._first_epoch: int | None = None

    def add(self, view: View, labels: Tensor) -> None:
        """Add one view; the oldest are dropped while enough rows remain."""
        length = torch.linalg.vector_norm(view.grads.flatten(1).double(), dim=1)
        scale = float(length.square().mean().sqrt())
        grads = view.grads.double() / scale if scale > 0 else view.grads.double()
        self._latest.append((replace(view, grads=grads.float()), labels))
        self._size += len(labels)
        while self._size - len(self._latest[0][1]) >= _ROWS:
            self._size -= len(self._latest.popleft()[1])
        if not self._first:
            self._first_epoch = view.epoch
        begun = view.epoch == self._first_epoch and self._first_size < _FIRST_ROWS
        if view.embeddings is not None and begun:
            self._first.append((view.embeddings.flatten(1), labels))
            self._first_size += len(labels)

    def latest(self) -> tuple[View, Tensor]:
        """Return the rows of the last epoch in the window as one view.

        An epoch with less than half as many rows as the largest has only begun, and the one before
        it is taken.
        """
        sizes: dict[int | None, int] = {}
        for view, labels in self._latest:
            sizes[view.epoch] = sizes.get(view.epoch, 0) + len(labels)
        last = [epoch for epoch, size in sizes.items() if 2 * size >= max(sizes.values())][-1]
        views = [(view, labels) for view, labels in self._latest if view.epoch == last]
        sent = [view.embeddings for view, _ in views if view.embeddings is not None]
        joined = View(
            grads=torch.cat([view.grads for view, _ in views]),
            embeddings=torch.cat(sent) if len(sent) == len(views) else None,
            ids=torch.cat([view.ids for view, _ in views if view.ids is not None]),
            epoch=last,
        )
        return joined, torch.cat([labels for _, labels in views])

    def first_embeddings(self) -> tuple[Tensor, Tensor] | None:
        """Return embeddings of the first epoch with their labels, if there are any."""
        if not self._first:
            return None
        return torch.cat([z for z, _ in self._first]), torch.cat([y for _, y in self._first])

    def supervised(
        self, attack: Attack, *, classes: int, seed: int, seconds: float = math.inf
    ) -> Tensor:
        """Return cross-fitted scores of the latest rows, from an attack that learns labels."""
        if isinstance(attack, LabelledAttack):
            attack = attack.within(seconds / _FOLDS)
        view, labels = self.latest()
        rng = torch.Generator().manual_seed(seed)
        view = replace(view, known=Known(classes=classes))
        fit = cross_fit_probabilities if classes > 2 else cross_fit
        with threadpool_limits(1):
            return fit(attack, view, labels, rng=rng, folds=_FOLDS)


def baseline_of(features: Tensor, labels: Tensor, *, origin: str, seed: int) -> dict[str, Any]:
    """Return how well labels follow from features alone, with an interval."""
    classes = int(labels.max()) + 1
    rng = torch.Generator().manual_seed(seed)
    with threadpool_limits(1):
        scores = prediction_baseline(features, labels, rng=rng)
    if classes > 2:
        found = [auc(scores[:, c], (labels == c).long()) for c in range(classes)]
        mean = float(np.mean(found))
        return {"auc": mean, "low": mean, "high": mean, "from": origin}
    meter = LeakMeter()
    meter.add(scores, labels)
    leak = meter.compute(rng=np.random.default_rng(seed))
    return {"auc": leak.leak_auc, "low": leak.low, "high": leak.high, "from": origin}


def read_features(given: Features, truth: Truth) -> tuple[Tensor, Tensor]:
    """Return the features of the tape's examples: row ``i`` of the file is example ``i``."""
    values = load_array(Path(given)) if isinstance(given, Path | str) else np.asarray(given)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise UsageError(f"features must be numbers [examples, columns], got {values.shape}")
    if int(truth.ids.min()) < 0 or int(truth.ids.max()) >= len(values):
        raise UsageError(
            f"features have {len(values)} rows, the tape's ids reach {int(truth.ids.max())}: "
            "give row i for example i"
        )
    rows = torch.from_numpy(np.asarray(values[truth.ids], dtype=np.float32))
    return rows, torch.from_numpy(truth.labels)
