"""What the feature parties' own output says about labels, whatever the gradients show."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import measure
from tacit.runtime.party import Shown

__all__ = ["Components", "Embedded", "signed"]

_DRAWN = 500
"""So many points make a picture; more only make it heavy."""


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

    What is recorded is the last part's: the picture of GAFM's figures 2, B.1 and B.2, and the total
    variation distance between the classes. It uses true labels, and is the judge's alone.
    """

    def __init__(self, truth: npt.NDArray[Any]) -> None:
        self._truth = truth
        self._shown: list[Shown] = []

    def begin(self) -> None:
        """Forget the part before."""
        self._shown = []

    def add(self, shown: Shown | None) -> None:
        """Take one step."""
        if shown is not None and shown.released.flatten(1).shape[1] == 1:
            self._shown.append(shown)

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
        }


def _drawn(values: Tensor) -> list[float]:
    """Return the first values, as exact as a picture is."""
    return [float(f"{value:.5g}") for value in values[:_DRAWN].tolist()]


def _distance(values: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float | None:
    ones, zeros = values[labels == 1], values[labels == 0]
    return measure.tvd(ones, zeros) if min(len(ones), len(zeros)) > 1 else None


def signed(test: dict[str, float], *, flipped: bool) -> dict[str, float]:
    """Add to a model's measures the AUC as the generator had it, and the one without a sign."""
    raw = 1 - test["auc"] if flipped else test["auc"]
    return {**test, "raw_auc": raw, "sign_free_auc": max(raw, 1 - raw)}
