"""The two kinds of party, and their interfaces for the training loop.

The loop in ``training/loop.py`` calls :class:`FeatureEnd` and :class:`LabelEnd`. Here they are the
parties themselves; over a network, proxies with the same interfaces stand in for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tacit.errors import InputError, ReleaseError
from tacit.guard import Guard
from tacit.nets import Combine, combine
from tacit.nets.embedding import StackedEmbedding
from tacit.objective import Learner, Objective, Setting, Signal, Turn
from tacit.objective.learner import clear_grads
from tacit.rng import Key
from tacit.training.cut import Embedding, Gradient
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.types import Cut


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let what is computed here be differentiated after the model's weights have changed in place.

    A weight that the backward pass will need is copied when the graph keeps it; all else is kept as
    it is. An embedding table is not needed, only the rows that were looked up, so that large ones
    are never copied. The numbers are the same bit for bit.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> before = [p.detach().clone() for p in model.parameters()]
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> with frozen(model):
    ...     y = model(x)
    >>> _ = [p.data.zero_() for p in model.parameters()]
    >>> y.backward()
    >>> torch.equal(x.grad, before[2] @ before[0])
    True
    """
    own = {_place(tensor) for tensor in chain(model.parameters(), model.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if _place(tensor) in own else tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


Rows = Tensor
"""Positions of a batch's examples in the order that both sides share, int64."""
Source = Callable[[Rows], tuple[Tensor, Tensor]]
"""A party's own columns of some rows: numbers and category codes."""


class Released(Protocol):
    """The part of a release that a label party sends."""

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
        """Take the embeddings of a batch as soon as they exist; their step may come later."""

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

    ``weight_decay`` is an L2 penalty on all weights; embeddings may have one of their own.
    """
    penalised = {
        weight: weight_decay + 2 * part.l2
        for part in model.modules()
        if isinstance(part, StackedEmbedding) and part.l2
        for weight in part.parameters()
    }
    others = [weight for weight in model.parameters() if weight not in penalised]
    groups: list[dict[str, Any]] = [{"params": others}]
    groups += [{"params": [weight], "weight_decay": decay} for weight, decay in penalised.items()]
    return torch.optim.Adam(groups, lr=lr, weight_decay=weight_decay, fused=True)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """A batch at the label party: the combined cut, its clean gradient, the release."""

    rows: Rows
    cut: Tensor
    signal: Signal
    released: Tensor


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
        clear_grads(self._optimizer)
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
    ``width`` (of the combined cut), ``key`` and ``first_steps`` are for objectives that ask for
    them, and ``learner`` is an objective at work that was made before. ``embedded`` is shown the
    combined cut of everything that is predicted; ``last`` is the last batch as this party saw it.
    ``release`` stands in for the guard's where one guard protects what several workers compute.
    ``watch`` checks every batch of embeddings before it is used.
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
        width: int | None = None,
        key: Key | None = None,
        first_steps: int = 0,
        learner: Learner | None = None,
        embedded: Callable[[Tensor], None] | None = None,
        release: Callable[[Cut], Released] | None = None,
        watch: EmbeddingWatch | None = None,
    ) -> None:
        self.top = top
        self.guard = guard
        self.objective = objective
        self.learner = learner or objective.learner(
            Setting(
                top=top,
                optimizer=optimizer,
                labels=labels,
                width=width,
                key=key,
                first_steps=first_steps,
                early=early,
            )
        )
        self.last: Shown | None = None
        self.watch = watch or EmbeddingWatch()
        self._labels = labels
        self._source = source
        self._combined_by = combined_by
        self._embedded = embedded
        self._protect = release

    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:
        """Return one release per feature party.

        The combined cut is protected once, whatever the number of feature parties; what each of
        them gets is computed from that one release.
        """
        self.learner.undo()
        _check_embeddings(rows, embeddings)
        self.watch(embeddings)
        several = len(embeddings) > 1
        parts = [e.values.detach().requires_grad_(several) for e in embeddings]
        joined = combine(parts, self._combined_by)
        turn = Turn(
            cut=joined.detach().requires_grad_(),
            labels=self._labels[rows],
            step=embeddings[0].step,
            outputs=partial(self._outputs, rows),
        )
        try:
            release = self._release(rows, turn, self.learner.begin(turn))
        except BaseException:
            self.learner.undo()  # a step that was refused must not train the top model
            raise
        if not several:
            return [Gradient(step=release.step, values=release.grads)]
        shares = torch.autograd.grad(joined, parts, grad_outputs=release.grads)
        return [Gradient(step=release.step, values=share) for share in shares]

    def _release(self, rows: Rows, turn: Turn, signal: Signal) -> Released:
        """Return the protected gradient at the combined cut."""
        wanted, cut = "probs" in self.guard.protection.needs, turn.cut.detach()
        release = (self._protect or self.guard.release)(
            Cut(
                grads=signal.grads,
                labels=turn.labels,
                probs=self.learner.probabilities(signal.outputs) if wanted else None,
                ids=rows,
                embeddings=cut,
                step=turn.step,
                weight=1 / len(rows),
            )
        )
        self.last = Shown(rows=rows, cut=cut, signal=signal, released=release.grads)
        return release

    def update(self) -> float:
        """Take an optimiser step on the top model."""
        return self.learner.update()

    def counted(self, rows: Rows) -> Tensor:
        """Return the ids that a ledger counts rows by; randomised labels have their own."""
        numbers = getattr(self._labels[rows], "numbers", None)
        return rows if numbers is None else torch.from_numpy(numbers)

    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Return predicted probabilities without a graph."""
        with torch.no_grad():
            joined = combine(list(embeddings), self._combined_by)
            if self._embedded is not None:
                self._embedded(joined)
            return self.learner.probabilities(self._outputs(rows, joined))

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
