"""Which epoch's weights are kept: judged on held-out rows, by nothing but the labels in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit import measure
from tacit.errors import UsageError
from tacit.protect import RandomizedLabels
from tacit.training import FeatureParty, LabelParty, predict

Indices = npt.NDArray[np.int64]
Weights = list[dict[str, Tensor]]


@final
@dataclass(frozen=True, kw_only=True)
class SelectedEpoch:
    """The epoch whose weights are kept, counted from 1, with what it was chosen by."""

    epoch: int
    step: int
    measure: str
    score: float
    rows: int
    judged_by: str


@final
class Selection:
    """Judges the model after every epoch and keeps the weights that do best on held-out rows.

    The measure is the AUC of two classes and the accuracy of many. ``labels`` are what the label
    party trains on: with a label mechanism the randomised ones, and the true ones of held-out rows
    are never here. Under randomised response both measures are increasing linear functions of the
    ones by true labels, ``0.5 + c (AUC - 0.5)`` and ``q + (p - q) accuracy``, so that the order of
    epochs is right on average; they only need more rows. Of equals the earliest is kept.

    Guarantee: with a label mechanism the choice is post-processing of randomised labels, and the
    mechanism's certificate covers it. Without one, the choice is a number up to the count of epochs
    that depends on true labels, which no certificate of gradients counts.
    """

    def __init__(
        self,
        rows: Indices,
        labels: Tensor,
        *,
        features: Sequence[FeatureParty],
        label: LabelParty,
    ) -> None:
        self._places = torch.from_numpy(rows)
        self._randomised = isinstance(labels, RandomizedLabels)
        taken = labels[self._places]
        self._labels = (taken.hard if isinstance(taken, RandomizedLabels) else taken).numpy()
        if len(np.unique(self._labels)) < 2:
            raise UsageError(
                f"--hold-out: the {len(rows)} held-out rows have labels of one class only: hold "
                "out more rows"
            )
        self._features, self._label = features, label
        self._models: list[nn.Module] = [*(party.bottom for party in features), label.top]
        self._kept: tuple[SelectedEpoch, Weights] | None = (
            None  # one thing: an interrupt parts it not
        )

    @property
    def choice(self) -> SelectedEpoch | None:
        """The epoch that is kept; None before the first was judged."""
        return None if self._kept is None else self._kept[0]

    def judge(self, epoch: int, step: int) -> None:
        """Judge the model as it is now, and keep its weights if it is the best so far."""
        probs = predict(self._places, features=self._features, label=self._label).numpy()
        name = "auc" if probs.ndim == 1 else "accuracy"
        score = float(getattr(measure, name)(probs, self._labels))
        if self.choice is not None and score <= self.choice.score:
            return
        choice = SelectedEpoch(
            epoch=epoch,
            step=step,
            measure=name,
            score=score,
            rows=len(self._labels),
            judged_by="randomised labels" if self._randomised else "true labels",
        )
        weights = [
            {name: value.clone() for name, value in model.state_dict().items()}
            for model in self._models
        ]
        self._kept = (choice, weights)

    def restore(self) -> None:
        """Put the kept weights back into the models, if an epoch was finished."""
        if self._kept is None:
            return
        for model, weights in zip(self._models, self._kept[1], strict=True):
            model.load_state_dict(weights)
