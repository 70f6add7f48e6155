"""The two kinds of party, and what the training loop may ask of each.

The loop in ``session`` talks to :class:`FeatureEnd` and :class:`LabelEnd`. Here they are the
parties themselves; at the far end of a network the same interfaces stand for a connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol, final

import torch
from torch import Tensor, nn

from tacit.errors import InputError, ReleaseError
from tacit.guard import Guard
from tacit.nets import Combine, combine
from tacit.objective import Objective
from tacit.runtime._frozen import frozen
from tacit.runtime.messages import Embedding, Gradient
from tacit.types import Cut

__all__ = ["FeatureEnd", "FeatureParty", "LabelEnd", "LabelParty", "Released", "Rows", "adam"]

Rows = Tensor
"""Positions of a batch's examples in the order that both sides share, int64."""
Source = Callable[[Rows], tuple[Tensor, Tensor]]
"""A party's own columns of some rows: numbers and category codes."""


class Released(Protocol):
    """What a label party hands out of a release."""

    @property
    def grads(self) -> Tensor:
        """The protected gradients."""

    @property
    def step(self) -> int:
        """The step that they are of."""


class FeatureEnd(ABC):
    """A feature party as the training loop sees it."""

    @abstractmethod
    def forward(self, step: int, rows: Rows) -> Embedding:
        """Return the embeddings of a batch, to be trained on."""

    @abstractmethod
    def backward(self, gradient: Gradient) -> None:
        """Take the released gradient of the oldest forward and update the bottom model."""

    @abstractmethod
    def embed(self, rows: Rows) -> Tensor:
        """Return the embeddings of some examples, for prediction only."""


class LabelEnd(ABC):
    """The label party as the training loop sees it."""

    def offer(self, embeddings: Sequence[Embedding]) -> None:  # noqa: B027 - most need nothing
        """Take notice of embeddings as soon as they exist; their step may come later."""

    @abstractmethod
    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:
        """Return one released gradient per feature party."""

    @abstractmethod
    def update(self) -> float:
        """Finish the step that was begun: update the top model, return the training loss."""

    @abstractmethod
    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Return predicted probabilities."""


def adam(model: nn.Module, lr: float, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Return Adam in its fused form: one pass over the weights instead of many small ones.

    ``weight_decay`` is an L2 penalty on all weights.
    """
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)


@final
class FeatureParty(FeatureEnd):
    """Owns features and the bottom model.

    With ``depth`` up to that many steps are under way. Each is carried back through the weights
    that it went forward with, and the current ones are updated.
    """

    def __init__(
        self,
        bottom: nn.Module,
        source: Source,
        *,
        optimizer: torch.optim.Optimizer,
        depth: int = 1,
    ) -> None:
        self.bottom = bottom
        self._source = source
        self._optimizer = optimizer
        self._depth = depth
        self._pending: deque[tuple[int, Tensor]] = deque()

    def forward(self, step: int, rows: Rows) -> Embedding:
        """Run the bottom model and keep its graph for :meth:`backward`.

        A step that is begun again takes the place of the one before, and of all after it.
        """
        while self._pending and self._pending[-1][0] >= step:
            self._pending.pop()
        if len(self._pending) == self._depth:
            raise ReleaseError(
                f"{self._depth} steps may be under way at once and step {step} is one more: step "
                f"{self._pending[0][0]} must have its gradient first"
            )
        with frozen(self.bottom) if self._depth > 1 else nullcontext():
            z = self.bottom(*self._source(rows))
        self._pending.append((step, z))
        return Embedding(step=step, values=z.detach())

    def backward(self, gradient: Gradient) -> None:
        """Propagate the release through the bottom model and take an optimiser step."""
        if not self._pending or self._pending[0][0] != gradient.step:
            raise ReleaseError(f"a gradient for step {gradient.step} came without its embedding")
        _, z = self._pending[0]
        if gradient.values.shape != z.shape or gradient.values.dtype != z.dtype:
            raise InputError(
                f"a gradient must be {z.dtype} {tuple(z.shape)} like its embedding, "
                f"got {gradient.values.dtype} {tuple(gradient.values.shape)}"
            )
        self._pending.popleft()
        self._optimizer.zero_grad(set_to_none=True)
        z.backward(gradient.values)  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def embed(self, rows: Rows) -> Tensor:
        """Return the bottom model's output without a graph."""
        with torch.no_grad():
            embedded: Tensor = self.bottom(*self._source(rows))
        return embedded


@final
class LabelParty(LabelEnd):
    """Owns labels, the top model, the guard and maybe features of its own.

    With ``early`` the release is returned before the top model's weight gradients are computed, so
    that both sides can work at once; in one process, where they cannot, that only costs time.
    ``release`` stands in for the guard's where one guard protects what several workers compute.
    """

    def __init__(
        self,
        top: nn.Module,
        labels: Tensor,
        *,
        guard: Guard,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        combined_by: Combine = "sum",
        source: Source | None = None,
        early: bool = True,
        release: Callable[[Cut], Released] | None = None,
    ) -> None:
        self.top = top
        self._early = early
        self.guard = guard
        self.objective = objective
        self._labels = labels
        self._source = source
        self._optimizer = optimizer
        self._combined_by = combined_by
        self._release = release
        self._loss: Tensor | None = None

    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:
        """Return one release per feature party.

        The combined cut is protected once, whatever the number of feature parties; what each of
        them gets is computed from that one release.
        """
        self._loss = None
        _check_embeddings(rows, embeddings)
        parts = [e.values.detach().requires_grad_() for e in embeddings]
        joined = combine(parts, self._combined_by)
        cut = joined.detach().requires_grad_()
        labels = self._labels[rows]
        outputs = self._outputs(rows, cut)
        # Labels that were randomised bring their own targets; the loss sees nothing else of them.
        loss = self.objective.loss(outputs, getattr(labels, "targets", labels))
        grads = self._differentiate(loss, cut)
        wanted = "probs" in self.guard.protection.needs
        probs = self.objective.probabilities(outputs.detach()) if wanted else None
        release = (self._release or self.guard.release)(
            Cut(
                grads=grads,
                labels=labels,
                probs=probs,
                ids=rows,
                embeddings=joined.detach(),
                step=embeddings[0].step,
                weight=1 / len(rows),
            )
        )
        self._loss = loss  # only now: a step that was refused must not train the top model
        if len(parts) == 1:
            return [Gradient(step=release.step, values=release.grads)]
        shares = torch.autograd.grad(joined, parts, grad_outputs=release.grads)
        return [Gradient(step=release.step, values=share) for share in shares]

    def _differentiate(self, loss: Tensor, cut: Tensor) -> Tensor:
        """Return the gradient at the cut; the weights' gradients come first or later.

        Early releases cost a second pass through the top model's activations, which pays where the
        feature party works at the same time. The numbers are the same bit for bit.
        """
        if self._early:
            (grads,) = torch.autograd.grad(loss, cut, retain_graph=True)
            return grads
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        assert cut.grad is not None  # noqa: S101 - it is a leaf of the graph that was just run
        return cut.grad

    def update(self) -> float:
        """Take an optimiser step on the top model."""
        if self._loss is None:
            raise ReleaseError("update was called before a step was begun")
        loss, self._loss = self._loss, None
        if self._early:
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward(inputs=list(self.top.parameters()))  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())

    def counted(self, rows: Rows) -> Tensor:
        """Return the ids that a ledger counts rows by; randomised labels have their own."""
        numbers = getattr(self._labels[rows], "numbers", None)
        return rows if numbers is None else torch.from_numpy(numbers)

    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Return predicted probabilities without a graph."""
        with torch.no_grad():
            joined = combine(list(embeddings), self._combined_by)
            return self.objective.probabilities(self._outputs(rows, joined))

    def _outputs(self, rows: Rows, cut: Tensor) -> Tensor:
        own = () if self._source is None else self._source(rows)
        outputs: Tensor = self.top(cut, *own)
        return outputs


def _check_embeddings(rows: Rows, embeddings: Sequence[Embedding]) -> None:
    """Refuse embeddings of different steps, of the wrong length or of the wrong type."""
    if len({e.step for e in embeddings}) != 1:
        raise InputError(f"embeddings must be of one step, got {[e.step for e in embeddings]}")
    for e in embeddings:
        if not e.values.is_floating_point() or e.values.shape[:1] != rows.shape:
            raise InputError(
                f"an embedding must be floating point with {len(rows)} rows, "
                f"got {e.values.dtype} {tuple(e.values.shape)}"
            )
