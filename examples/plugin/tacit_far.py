"""An attack of one's own: ``tacit audit RUN --plugin FILE --attacks far``."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tacit.attack import ATTACKS, Attack, PreparedView


@final
@ATTACKS.register("far")
@dataclass(frozen=True)
class Far(Attack):
    """Score each gradient by its distance from the batch's median gradient.

    Where positives are rare, the median is a negative's gradient, and positives lie far from it.
    """

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:  # noqa: ARG002
        """Return the distances, comparable between batches of different scale."""
        centre = prepared.rows.median(dim=0).values
        return prepared.restore((prepared.rows - centre).norm(dim=1), degree=1)
