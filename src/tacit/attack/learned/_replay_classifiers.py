"""How rows are classified after a replay: by what each label costs, or by the surrogate labels."""

from __future__ import annotations

import hashlib
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from tacit.attack.learned._gradient_replay import TIE_BREAK, Replay
from tacit.attack.learned._per_epoch import RowClassifier
from tacit.attack.learned._surrogate import Rows, RowTransform


@final
class ByLeastCost(RowClassifier):
    """Classifies any row by what each one-hot label costs under a replay."""

    def __init__(
        self, found: Replay, transform: RowTransform, rows: Rows, *, weight: float = 0.0
    ) -> None:
        self._found, self._transform, self._weight = found, transform, weight or TIE_BREAK
        self.named, self.late = False, found.late
        self.positive = _rarest(self.costs(rows))

    def costs(self, rows: Rows) -> Tensor:
        """Return the loss of each row at each label."""
        return self._found.costs(self._transform(rows.double()), weight=self._weight)


@final
class ByLabels(RowClassifier):
    """Classifies the rows of a replay by the surrogate labels that it found for them."""

    def __init__(self, found: Replay, rows: Rows) -> None:
        self.named, self.late = False, found.late
        self._costs = -functional.log_softmax(found.labels.double(), dim=1)
        self._positions = {name: at for at, name in enumerate(_digests(rows))}
        self.positive = _rarest(self._costs)

    def costs(self, rows: Rows) -> Tensor:
        """Return minus the log-probability of each label; the rows must be those of the replay."""
        return self._costs[[self._positions[name] for name in _digests(rows)]]


def _digests(rows: Rows) -> list[bytes]:
    """Return a digest of each row's content; equal rows have one label."""
    pairs = zip(rows.embeddings.numpy(), rows.gradients.numpy(), strict=True)
    return [hashlib.sha256(z.tobytes() + g.tobytes()).digest() for z, g in pairs]


def _rarest(costs: Tensor) -> int:
    """Return the class of the fewest rows: it is taken for the positive one."""
    return int(torch.bincount(costs.argmin(dim=1), minlength=costs.shape[1]).argmin())
