"""Gradient matching: replay the training with a surrogate top model and surrogate labels.

:func:`replay` runs one replay by gradient descent.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.attack.learned._surrogate import (
    Rows,
    fully_connected,
    input_gradient,
    logits_and_masks,
    unit,
)

TIE_BREAK: Final = 1e-6  # a weight so small that it decides only between equal costs
_FLOOR: Final = 1e-9  # a class's share in a batch counts as at least this
_GAIN: Final = 0.01  # a replay goes on while its loss falls by this share of itself ...
_PATIENCE: Final = 20  # ... in so many epochs, and at least so many steps
_STEPS: Final = 2500

Match = Literal["direction", "distance", "square"]


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The hyperparameters of one replay.

    Attributes:
        lambda_ce: weight of the cross-entropy over the prior's entropy, 0 for none.
        lambda_p: weight of the divergence of the labels' shares from the prior, 0 for none.
        rate_net: learning rate of the surrogate's weights.
        rate_labels: learning rate of the surrogate labels' logits.
        batch: rows per step.
        epochs: passes over the rows, at most.
        match: the loss of the gradients: ``direction`` is ``||u(g') - u(g)||`` with ``u`` a vector
            at length one, ``distance`` is ``||g' - g||`` (Eq. 6), ``square`` is the mean of
            ``(g' - g)^2`` over rows and columns.
        momentum: Adam over the labels of all rows in every step, so that a label goes on moving
            between its batches. Otherwise only the labels of the batch move.
        converge: end when the loss has fallen by less than a hundredth in 20 epochs of 2,500 steps
            or more altogether.
        spread: standard deviation of the labels' logits at the start.
        lift: added to the hidden biases at the start. It switches the hidden units on, so that the
            surrogate starts out almost linear. Otherwise its sign may differ from region to region:
            with two classes, a surrogate and labels that are both reversed in one region explain
            the gradients there just as well.
    """

    lambda_ce: float = 3.0
    lambda_p: float = 10.0
    rate_net: float = 3e-4
    rate_labels: float = 0.3
    batch: int = 128
    epochs: int = 200
    match: Match = "direction"
    momentum: bool = False
    converge: bool = False
    spread: float = 0.1
    lift: float = 0.0


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayData:
    """The rows that a replay explains.

    Attributes:
        rows: embeddings and gradients in the surrogate's coordinates.
        group: ``[n]``, the same number for equal rows; they share one label.
        prior: ``[classes]``, how frequent each class is.
        start: ``[n, classes]`` logits that the labels start from besides a random draw, or None.
        hidden: widths of the surrogate's hidden layers.
    """

    rows: Rows
    group: Tensor
    prior: Tensor
    start: Tensor | None
    hidden: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """The outcome of one replay.

    Attributes:
        net: the surrogate.
        labels: ``[n, classes]``, the surrogate labels' logits.
        gradient_loss: the mean distance of the gradients over the last epoch.
        objective: Eq. 9 with both weights at 1, over all rows at the end.
        settings: its hyperparameters.
        prior: ``[classes]``, how frequent each class is.
        late: whether it ran out of time.
    """

    net: nn.Sequential
    labels: Tensor
    gradient_loss: float
    objective: float
    settings: Settings
    prior: Tensor
    late: bool

    def costs(self, rows: Rows, *, weight: float = TIE_BREAK) -> Tensor:
        """Return what each label would cost each row ``[n, classes]``: Eq. 9 at one-hot labels.

        ``||g'_c - g|| + weight * H(e_c, p') / H(P)``, both gradients at length one where directions
        were matched. The default weight decides only where a gradient is zero.
        """
        with torch.no_grad():
            far, chances = self.distances(rows)
            return far - weight * chances / _entropy(self.prior)

    def distances(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the distance of the gradients under each label, and the log-probabilities."""
        scaled = unit if self.settings.match == "direction" else _as_is
        with torch.no_grad():
            net, rows = copy.deepcopy(self.net).double(), rows.double()
            logits, masks = logits_and_masks(net, rows.embeddings)
            chances = functional.log_softmax(logits, dim=1)
            seen, found = scaled(rows.gradients), []
            for label in range(logits.shape[1]):
                residual = chances.exp()
                residual[:, label] = torch.expm1(chances[:, label])  # exact where p is nearly 1
                near = scaled(input_gradient(net, residual, masks))
                found.append(torch.linalg.vector_norm(near - seen, dim=1))
            return torch.stack(found, dim=1), chances


class _Labels(Protocol):
    """Logits of the surrogate labels, one row per group of equal rows."""

    logits: Tensor

    def step(self, positions: Tensor, grads: Tensor, passes: int) -> None:
        """Move labels by the gradients of those in a batch; equal rows are one label."""


@final
class _BatchLabels(_Labels):
    """Only the labels of a batch move, each with its own Adam.

    ``torch.optim.Adam`` goes on pushing all others by their momentum. ``torch.optim.SparseAdam``
    moves these rows alone too, but corrects its averages by the number of all steps, not by how
    often a row has moved.
    """

    def __init__(self, start: Tensor, rate: float, *, shared: bool) -> None:
        self.logits, self._rate, self._shared = start, rate, shared
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)

    def step(self, positions: Tensor, grads: Tensor, passes: int) -> None:
        """Move the labels of a batch; the gradients of equal rows add up."""
        if self._shared:
            positions, member = torch.unique(positions, return_inverse=True)
            grads = torch.zeros(len(positions), grads.shape[1]).index_add_(0, member, grads)
        mean = self._mean[positions].lerp_(grads, 0.1)
        square = self._square[positions].mul_(0.99).addcmul_(grads, grads, value=0.01)
        self._mean[positions], self._square[positions] = mean, square
        near, spread = mean / (1 - 0.9**passes), (square / (1 - 0.99**passes)).sqrt()
        self.logits[positions] -= self._rate * near / (spread + _FLOOR**2)


@final
class _AllLabels(_Labels):
    """One Adam over the labels of all rows, as a parameter of a network has it."""

    def __init__(self, start: Tensor, rate: float) -> None:
        self.logits = start
        self._optimiser = torch.optim.Adam([self.logits], lr=rate, fused=True)
        self.logits.grad = torch.zeros_like(start)

    def step(self, positions: Tensor, grads: Tensor, passes: int) -> None:  # noqa: ARG002
        """Take a step in which the labels outside of the batch have no gradient."""
        assert self.logits.grad is not None  # noqa: S101 - as made above
        self.logits.grad.zero_().index_add_(0, positions, grads)
        self._optimiser.step()


def replay(
    data: ReplayData, settings: Settings, *, rng: torch.Generator, until: float | None = None
) -> Replay:
    """Return the surrogate and the labels that explain the rows best, found by gradient descent."""
    classes, rows = len(data.prior), data.rows
    widths = [rows.embeddings.shape[1], *data.hidden, classes]
    net = fully_connected(widths, rng, lift=settings.lift)
    start = _start(data, settings, rng)
    labels: _Labels = (
        _AllLabels(start, settings.rate_labels)
        if settings.momentum
        else _BatchLabels(start, settings.rate_labels, shared=len(start) < len(rows))
    )
    # Fused takes 48 microseconds a step, the default 164: most of it is overhead of small tensors.
    optimiser = torch.optim.Adam(net.parameters(), lr=settings.rate_net, fused=True)
    found, late = _loss(data, settings), False
    matched, losses = 0.0, []
    for passes in range(1, settings.epochs + 1):
        total = torch.zeros(2).double()
        for batch in torch.split(torch.randperm(len(rows), generator=rng), settings.batch):
            positions = data.group[batch]
            with torch.enable_grad():
                logits = labels.logits[positions].requires_grad_()
                terms = found(net, rows[batch], logits)
            optimiser.zero_grad()
            torch.autograd.backward(terms[0])
            optimiser.step()
            assert logits.grad is not None  # noqa: S101 - every loss depends on the labels
            labels.step(positions, logits.grad, passes)
            total += torch.stack(terms).detach() * len(batch)
        loss, matched = (total / len(rows)).tolist()
        losses.append(loss)
        if settings.converge and _has_converged(losses, steps=-(-len(rows) // settings.batch)):
            break
        if until is not None and time.perf_counter() > until and passes < settings.epochs:
            late = True
            break
    return Replay(
        net=net,
        labels=labels.logits[data.group],
        gradient_loss=matched,
        objective=_objective(data, net, labels.logits[data.group], settings.match),
        settings=settings,
        prior=data.prior,
        late=late,
    )


def _start(data: ReplayData, settings: Settings, rng: torch.Generator) -> Tensor:
    groups = int(data.group.max()) + 1
    start = settings.spread * torch.randn(groups, len(data.prior), generator=rng)
    if data.start is not None:
        start[data.group] += data.start
    return start


def _loss(
    data: ReplayData, settings: Settings
) -> Callable[[nn.Sequential, Rows, Tensor], tuple[Tensor, Tensor]]:
    """Return Eq. 9 as a function of the surrogate, a batch and its labels' logits."""
    prior, entropy = data.prior, _entropy(data.prior)

    def found(net: nn.Sequential, rows: Rows, logits: Tensor) -> tuple[Tensor, Tensor]:
        guessed, masks = logits_and_masks(net, rows.embeddings)
        chances, labels = functional.log_softmax(guessed, dim=1), logits.softmax(dim=1)
        if settings.match == "direction":
            match = _turned(net, masks, rows, chances, labels)
        else:
            far = input_gradient(net, chances.exp() - labels, masks) - rows.gradients
            square = settings.match == "square"
            match = far.square().mean() if square else torch.linalg.vector_norm(far, dim=1).mean()
        loss = match
        if settings.lambda_ce:
            loss = loss - settings.lambda_ce * (labels * chances).sum(dim=1).mean() / entropy
        if settings.lambda_p:
            loss = loss + settings.lambda_p * _divergence(prior, labels.mean(dim=0))
        return loss, match

    return found


def _turned(
    net: nn.Sequential, masks: list[Tensor], rows: Rows, chances: Tensor, labels: Tensor
) -> Tensor:
    """Return the mean distance of the gradients at length one.

    With two classes ``p - y`` is ``(-a, a)``: at length one, a soft label can only reverse the
    gradient or leave it, so the distance has no derivative by the label. The distances under both
    hard labels, weighted by their probabilities, have one.
    """
    seen = unit(rows.gradients)
    if labels.shape[1] > 2:
        near = unit(input_gradient(net, chances.exp() - labels, masks))
        found: Tensor = torch.linalg.vector_norm(near - seen, dim=1).mean()
        return found
    turned = torch.tensor([-1.0, 1.0]).expand(len(seen), 2)
    near = unit(input_gradient(net, turned, masks))
    far = [torch.linalg.vector_norm(side - seen, dim=1) for side in (near, -near)]
    return (labels * torch.stack(far, dim=1)).sum(dim=1).mean()


def _has_converged(losses: list[float], *, steps: int) -> bool:
    """Return whether the loss has hardly fallen over the last epochs of so many steps each."""
    last = max(_PATIENCE, -(-_STEPS // steps))
    if len(losses) <= last:
        return False
    before, after = min(losses[:-last]), min(losses[-last:])
    return before - after < _GAIN * abs(before)


def _objective(data: ReplayData, net: nn.Sequential, logits: Tensor, match: Match) -> float:
    """Return Eq. 9 over all rows with both weights at 1."""
    with torch.no_grad():
        equal = _loss(data, Settings(lambda_ce=1.0, lambda_p=1.0, match=match))
        return float(equal(net, data.rows, logits)[0])


def _as_is(rows: Tensor) -> Tensor:
    return rows


def _entropy(prior: Tensor) -> float:
    return max(float(-torch.xlogy(prior, prior).sum()), _FLOOR)


def _divergence(prior: Tensor, shares: Tensor) -> Tensor:
    """Return ``KL(prior || shares)``."""
    return (torch.xlogy(prior, prior) - prior * shares.clamp_min(_FLOOR).log()).sum()
