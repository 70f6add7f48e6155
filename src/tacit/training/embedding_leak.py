"""How much the embeddings themselves leak about labels, whatever the gradients leak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import measure
from tacit.training.party import Shown

_DRAWN = 500
"""The number of points in a plot; more only make the page larger."""
_NEAREST = 9
_KEPT = 50_000
"""The number of rows of a part that distributions are estimated from."""


@final
class Embedded:
    """Keeps the embeddings that were last predicted from, where they are one number wide.

    A trained scalar embedding ranks examples as the model does: its leak AUC on examples that were
    held out is what a feature party can say of any example by itself, without a gradient.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def __call__(self, joined: Tensor) -> None:
        """Take the combined cut of some examples."""
        if joined.flatten(1).shape[1] == 1:
            self._parts.append(joined.detach().flatten())

    def leak(self, truth: npt.NDArray[Any]) -> float | None:
        """Return the leak AUC of the last ones, one per label, and forget them all."""
        held = torch.cat(self._parts)[-len(truth) :] if self._parts else torch.zeros(0)
        self._parts = []
        both = len(held) == len(truth) and len(np.unique(truth)) == 2
        return measure.leak_auc(held.double().numpy(), truth) if both else None


@final
class Components:
    """Gathers predictions and scalar gradients of one part of a run, whole and by component.

    What is recorded is the last part's: the picture of GAFM's figures 2, B.1 and B.2, the total
    variation distance between the classes, and what a gradient tells beside the embedding that it
    belongs to. It uses true labels, and is the judge's alone.
    """

    def __init__(self, truth: npt.NDArray[Any]) -> None:
        self._truth = truth
        self._shown: list[Shown] = []
        self._rows = 0

    def begin(self) -> None:
        """Forget the part before."""
        self._shown, self._rows = [], 0

    def add(self, shown: Shown | None) -> None:
        """Take one step, if there is room for it."""
        if shown is None or shown.released.flatten(1).shape[1] != 1 or self._rows >= _KEPT:
            return
        self._shown.append(shown)
        self._rows += len(shown.rows)

    def record(self, *, flipped: bool) -> dict[str, Any] | None:
        """Return points to draw and the distance of the classes; None where nothing fits."""
        if not self._shown:
            return None
        rows = torch.cat([s.rows for s in self._shown]).numpy()
        labels = self._truth[rows]
        outputs = torch.cat([s.signal.outputs.flatten() for s in self._shown])
        columns = {"whole": [s.released for s in self._shown]}
        for name in self._shown[0].signal.parts:
            columns[name] = [s.signal.parts[name] for s in self._shown]
        found = {name: torch.cat(values).flatten().double() for name, values in columns.items()}
        return {
            "label": labels[:_DRAWN].tolist(),
            "prediction": _drawn(torch.sigmoid(-outputs if flipped else outputs)),
            "gradients": {name: _drawn(values) for name, values in found.items()},
            "tvd": {name: _distance(values.numpy(), labels) for name, values in found.items()},
            "joint_leak": _beside(self._shown, labels),
        }


def _drawn(values: Tensor) -> list[float]:
    """Return the first values, rounded as a plot needs them."""
    return [float(f"{value:.5g}") for value in values[:_DRAWN].tolist()]


def _distance(values: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float | None:
    ones, zeros = values[labels == 1], values[labels == 0]
    return measure.tvd(ones, zeros) if min(len(ones), len(zeros)) > 1 else None


def _beside(shown: Sequence[Shown], labels: npt.NDArray[Any]) -> float | None:
    """Return the leak AUC of a release that is read beside the embedding that it belongs to.

    Two halves of the examples judge each other by their nearest neighbours: what a feature party
    could tell that knows some of the labels. A gradient that says little alone may say all beside
    its embedding. Both are standardised within their step.
    """
    each = [
        np.stack([_standard(s.cut), _standard(s.released)], axis=1)
        for s in shown
        if s.cut.shape == s.released.shape
    ]
    points = np.concatenate(each)[: 2 * _DRAWN] if each else np.zeros((0, 2))
    labels = labels[: len(points)]
    if min(np.bincount(labels[::2], minlength=2)[:2]) < _NEAREST or len(points) < 4 * _NEAREST:
        return None
    scores = np.empty(len(points))
    even, odd = slice(0, None, 2), slice(1, None, 2)
    for known, judged in ((even, odd), (odd, even)):
        apart = ((points[judged, None] - points[None, known]) ** 2).sum(axis=2)
        nearest = np.argpartition(apart, _NEAREST, axis=1)[:, :_NEAREST]
        scores[judged] = labels[known][nearest].mean(axis=1)
    both = len(np.unique(labels)) == 2
    return measure.leak_auc(scores, labels) if both else None


def _standard(tensor: Tensor) -> npt.NDArray[Any]:
    values = tensor.flatten().double().numpy()
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def signed(test: dict[str, float], *, flipped: bool) -> dict[str, float]:
    """Add to a model's measures the AUC as the generator had it, and the one without a sign."""
    if "auc" not in test:
        return test
    raw = 1 - test["auc"] if flipped else test["auc"]
    return {**test, "raw_auc": raw, "sign_free_auc": max(raw, 1 - raw)}
