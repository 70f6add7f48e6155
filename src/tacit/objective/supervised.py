"""Cross-entropy, for two classes and for many."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as nn

from tacit.errors import InputError
from tacit.objective.base import OBJECTIVES, Loss, Objective
from tacit.types import Flips

_FLOOR = -10.0
"""Log-probabilities count no further down where the target is negative."""


@final
@OBJECTIVES.register("bce")
@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of one logit per example.

    ``log(1 + exp(-l)) + (1 - y) l``, so the gradient at the logit is ``p - y``: linear in y, which
    may be any number, such as a debiased randomised label. Below 0 and above 1 it acts only until
    the probability of the class with the negative share is ``e^-10``: the loss has a lower bound.

    References:
        Li et al., ICLR 2022, section 3.1.

    >>> loss = BinaryCrossEntropy().loss(torch.zeros(2), torch.tensor([0, 1]))
    >>> round(float(loss), 4)
    0.6931
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy."""
        targets = labels.to(outputs.dtype)
        loss = nn.binary_cross_entropy_with_logits(outputs, targets)
        if not labels.is_floating_point():
            return loss
        both = torch.stack([1 - targets, targets], dim=1)
        return loss + _excess(self.log_probabilities(outputs), both)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the sigmoid of the logits."""
        return torch.sigmoid(outputs)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the log-sigmoid of the negated and of the plain logits."""
        return nn.logsigmoid(torch.stack([-outputs, outputs], dim=1))


@final
@OBJECTIVES.register("ce")
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy over any number of classes.

    ``-log softmax(l)[y]``, or ``-sum over k of t_k log softmax(l)[k]`` for soft targets ``[B, C]``;
    where these sum to one, the gradient at the logits is ``softmax(l) - t``. A negative ``t_k``
    acts only until the probability of its class is ``e^-10``: the loss has a lower bound.

    >>> loss = CrossEntropy().loss(torch.zeros(2, 4), torch.tensor([0, 3]))
    >>> round(float(loss), 4)
    1.3863
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        if labels.dim() == 1:
            return nn.cross_entropy(outputs, labels)
        if labels.shape != outputs.shape:
            raise InputError(
                f"soft targets must be {tuple(outputs.shape)} like the outputs, "
                f"got {tuple(labels.shape)}"
            )
        targets = labels.to(outputs.dtype)
        return nn.cross_entropy(outputs, targets) + _excess(
            self.log_probabilities(outputs), targets
        )

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        return torch.softmax(outputs, dim=-1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the log-softmax of the logits."""
        return torch.log_softmax(outputs, dim=-1)


def _excess(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return what negative targets take off the loss beyond the floor; zero where none does.

    A target below zero rewards an ever smaller probability without end: a model that memorises its
    example would grow its weights for ever. Added to the loss, this ends the reward at the floor.
    """
    beyond = (_FLOOR - log_probs).clamp(min=0)
    return (beyond * (-targets).clamp(min=0)).sum(dim=1).mean()


@final
@dataclass(frozen=True)
class Forward(Loss):
    """Cross-entropy between randomised classes and predictions randomised alike.

    ``-log(q + (p - q) P(y'))`` for a randomised class ``y'``, where P is the model's probability, p
    the probability that a label was kept and q that of each other class.

    Guarantee: the expected loss is least where P is the clean class distribution, and the loss is
    never above ``-log q``: the gradient of a flipped label is bounded too.
    Says nothing about privacy, which the flips alone decide.

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
    """Return the objective for randomised labels: as it is, unless it has to correct for the flips.

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
