"""Cross-entropy, for two classes and for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as nn

from tacit.errors import InputError
from tacit.objective.base import OBJECTIVES, Objective

__all__ = ["BinaryCrossEntropy", "CrossEntropy"]


@final
@OBJECTIVES.register("bce")
@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """Binary cross-entropy of one logit per example.

    ``log(1 + exp(-l)) + (1 - y) l``, so the gradient at the logit is ``p - y``: linear in y, which
    may be any number, such as a debiased randomised label.

    References:
        Li et al., ICLR 2022, section 3.1.

    >>> loss = BinaryCrossEntropy().loss(torch.zeros(2), torch.tensor([0, 1]))
    >>> round(float(loss), 4)
    0.6931
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy."""
        return nn.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype))

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the sigmoid of the logits."""
        return torch.sigmoid(outputs)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the log-sigmoid of the negated and of the plain logits."""
        return nn.logsigmoid(torch.stack([-outputs, outputs], dim=1))


@final
@OBJECTIVES.register("ce")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Cross-entropy over any number of classes.

    ``-log softmax(l)[y]``, or ``-sum over k of t_k log softmax(l)[k]`` for soft targets ``[B, C]``;
    where these sum to one, the gradient at the logits is ``softmax(l) - t``.

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
        return nn.cross_entropy(outputs, labels.to(outputs.dtype))

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        return torch.softmax(outputs, dim=-1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Return the log-softmax of the logits."""
        return torch.log_softmax(outputs, dim=-1)
