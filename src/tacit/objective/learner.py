"""How an objective trains: it gives the gradient at the cut, then updates the top model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from tacit.errors import ReleaseError
from tacit.rng import Key

if TYPE_CHECKING:
    from tacit.objective.base import Loss


def clear_grads(optimizer: torch.optim.Optimizer) -> None:
    """Drop all gradients, as ``zero_grad`` does, in a fifth of its time."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What an objective is given to train with.

    Attributes:
        top: the label party's model.
        optimizer: of the top model; an objective with a model of its own trains it by the same
            learning rate.
        labels: of all examples, true or randomised; nothing else is known about them here.
        width: of the combined cut; None where it is not known yet.
        key: what an objective draws from, if it draws at all.
        first_steps: how many steps the first pass over the examples has.
        early: whether the gradient at the cut is wanted before the weights' own.
    """

    top: nn.Module
    optimizer: torch.optim.Optimizer
    labels: Tensor
    width: int | None = None
    key: Key | None = None
    first_steps: int = 0
    early: bool = True


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """One batch as the label party has it: the cut, its labels and the way to the outputs."""

    cut: Tensor
    labels: Tensor
    step: int
    outputs: Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Signal:
    """What an objective makes of a batch.

    Attributes:
        grads: the gradient at the cut, before any protection.
        outputs: of the top model, without a graph.
        parts: what the gradient was put together from, by name; nothing where it is in one piece.
    """

    grads: Tensor
    outputs: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Learner(ABC):
    """The label party's side of training, one batch at a time.

    :meth:`begin` may change nothing that :meth:`undo` does not take back: a step whose release is
    refused must not train anything. ``models`` and ``optimizers`` are what a checkpoint must hold
    beside the top model and its optimiser.
    """

    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, torch.optim.Optimizer]

    @abstractmethod
    def begin(self, turn: Turn) -> Signal:
        """Return the gradient at the cut."""

    @abstractmethod
    def undo(self) -> None:
        """Take back what :meth:`begin` has changed."""

    @abstractmethod
    def update(self) -> float:
        """Finish the step that was begun: update the weights, return the loss."""

    @abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return ``[B]`` probabilities of the positive class, or ``[B, classes]``."""

    def record(self) -> dict[str, Any]:
        """Return what the results of a run should say about this objective, as plain values."""
        return {}


@final
class SupervisedLearner(Learner):
    """Plain gradients of one loss: the top model descends what the feature parties descend.

    Early gradients cost a second pass through the top model's activations, which pays where the
    feature party works at the same time. The numbers are the same bit for bit.
    """

    def __init__(self, objective: Loss, setting: Setting) -> None:
        self.models, self.optimizers = {}, {}
        self._objective = objective
        self._top, self._optimizer = setting.top, setting.optimizer
        self._early = setting.early
        self._loss: Tensor | None = None

    def begin(self, turn: Turn) -> Signal:
        """Return the gradient of the loss at the cut; the weights' gradients come first or later.

        Labels that were randomised bring their own targets; the loss sees nothing else of them.
        """
        self._loss = None
        outputs = turn.outputs(turn.cut)
        loss = self._objective.loss(outputs, getattr(turn.labels, "targets", turn.labels))
        grads = self._differentiate(loss, turn.cut)
        self._loss = loss
        return Signal(grads=grads, outputs=outputs.detach())

    def _differentiate(self, loss: Tensor, cut: Tensor) -> Tensor:
        if self._early:
            (grads,) = torch.autograd.grad(loss, cut, retain_graph=True)
            return grads
        clear_grads(self._optimizer)
        loss.backward()  # type: ignore[no-untyped-call]
        assert cut.grad is not None  # noqa: S101 - it is a leaf of the graph that was just run
        return cut.grad

    def undo(self) -> None:
        """Drop the loss: nothing was changed."""
        self._loss = None

    def update(self) -> float:
        """Take an optimiser step on the top model."""
        if self._loss is None:
            raise ReleaseError("update was called before a step was begun")
        loss, self._loss = self._loss, None
        if self._early:
            clear_grads(self._optimizer)
            loss.backward(inputs=list(self._top.parameters()))  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities by the objective."""
        return self._objective.probabilities(outputs)
