"""What an objective is: the label party's way from outputs and labels to a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from tacit.errors import InputError
from tacit.spec import Registry, Specified

__all__ = ["OBJECTIVES", "Objective"]


class Objective(Specified, ABC):
    """Turns the top model's outputs and the labels into a loss, averaged over the batch.

    Subclasses are frozen dataclasses registered in ``OBJECTIVES``; their fields are parameters.
    Labels are classes ``[B]``, or soft targets as a label mechanism makes them: ``[B]`` for the
    positive class, ``[B, classes]`` for each. Soft targets may lie outside [0, 1].
    """

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return ``[B]`` probabilities of the positive class, or ``[B, classes]``."""

    def log_probabilities(self, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Return ``[B, classes]`` logarithms of the probabilities, also for two classes."""
        raise InputError(
            f"objective {self} has no class probabilities to correct for flipped labels: use "
            "correction=debiased"
        )


OBJECTIVES: Registry[Objective] = Registry("objective")
