"""What an objective is: how the label party makes cut gradients of embeddings and labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from torch import Tensor

from tacit.errors import InputError
from tacit.objective.learner import Learner, Setting, SupervisedLearner
from tacit.spec import Registry, Specified


class Objective(Specified, ABC):
    """How a label party learns from embeddings and labels.

    Subclasses are frozen dataclasses registered in ``OBJECTIVES``; their fields are parameters.
    What is trained, and the state of it, is in the :class:`Learner` that an objective makes.
    """

    @abstractmethod
    def learner(self, setting: Setting) -> Learner:
        """Return what trains a top model by this objective."""

    @abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return ``[B]`` probabilities of the positive class, or ``[B, classes]``."""

    def log_probabilities(self, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Return ``[B, classes]`` logarithms of the probabilities, also for two classes."""
        raise InputError(
            f"objective {self} has no class probabilities to correct for flipped labels: use "
            "correction=debiased"
        )


class Loss(Objective, ABC):
    """An objective that is one loss of the top model's outputs and the labels.

    Labels are classes ``[B]``, or soft targets as a label mechanism makes them: ``[B]`` for the
    positive class, ``[B, classes]`` for each. Soft targets may lie outside [0, 1].
    """

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    @final
    def learner(self, setting: Setting) -> Learner:
        """Return plain gradient descent on this loss."""
        return SupervisedLearner(self, setting)


OBJECTIVES: Registry[Objective] = Registry("objective", base=Objective)
