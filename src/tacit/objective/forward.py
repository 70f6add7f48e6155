"""A loss on randomised labels that pushes the predictions through the same flips."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.objective.base import Loss, Objective
from tacit.types import Flips

__all__ = ["Forward", "corrected"]


@final
@dataclass(frozen=True)
class Forward(Loss):
    """Cross-entropy between randomised classes and predictions randomised alike.

    ``-log(q + (p - q) P(y'))`` for a randomised class ``y'``, where P is the model's probability, p
    the probability that a label was kept and q that of each other class.

    Guarantee: the expected loss is least where P is the clean class distribution, and the loss is
    never above ``-log q``: a flipped label that the model does not believe pulls at it with bounded
    strength. Says nothing about privacy, which the flips alone decide.

    References:
        Patrini et al., "Making Deep Neural Networks Robust to Label Noise" (CVPR 2017), forward
        correction, Theorem 2.

    >>> from tacit.objective import get
    >>> objective = Forward(get("bce"), keep=0.64, other=0.36, classes=2)
    >>> round(float(objective.loss(torch.full((1,), 50.0), torch.tensor([0]))), 4)
    1.0217
    """

    spec_name: ClassVar[str] = "forward"
    of: Loss
    keep: float
    other: float
    classes: int

    def __post_init__(self) -> None:
        if not 0 < self.other < self.keep < 1:
            raise InputError(
                f"flips must keep a label more often than make it another, got {self.keep} and "
                f"{self.other}: raise epsilon"
            )

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch of randomised classes."""
        if labels.is_floating_point() or labels.dim() != 1:
            raise InputError(
                f"the forward correction takes classes, got {labels.dtype} {tuple(labels.shape)}: "
                "soft targets are corrected already, use them with the plain objective"
            )
        clean = self.of.log_probabilities(outputs)
        if clean.shape[1] != self.classes:
            raise InputError(
                f"the flips are for {self.classes} classes, the model has {clean.shape[1]}"
            )
        believed = clean.gather(1, labels.long().unsqueeze(1)).squeeze(1)
        floor = torch.full_like(believed, math.log(self.other))
        return -torch.logaddexp(floor, believed + math.log(self.keep - self.other)).mean()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the clean probabilities, not those of the randomised labels."""
        return self.of.probabilities(outputs)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of the clean probabilities."""
        return self.of.log_probabilities(outputs)


def corrected(objective: Objective, flips: Flips | None) -> Objective:
    """Return the objective for randomised labels: as it is, unless the flips are its business.

    >>> from tacit.objective import get
    >>> str(corrected(get("ce"), None))
    'ce'
    """
    if flips is None:
        return objective
    if not isinstance(objective, Loss):
        raise InputError(
            f"objective {objective} has no class probabilities to correct for flipped labels: use "
            "correction=debiased"
        )
    return Forward(objective, keep=flips.keep, other=flips.other, classes=flips.classes)
