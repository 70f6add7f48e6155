"""Split learning replayed: a surrogate and labels that explain the gradients that were seen."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

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

HAIR: Final = 1e-6
_FLOOR: Final = 1e-9  # a class's share in a batch counts as at least this


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one replay is run with, all of it known beforehand.

    Attributes:
        lambda_ce: weight of the cross-entropy over the prior's entropy, 0 for none.
        lambda_p: weight of the divergence of the labels' shares from the prior, 0 for none.
        rate_net: of Adam on the surrogate's weights.
        rate_labels: of Adam on the surrogate labels' logits.
        batch: rows of one step.
        epochs: passes over the rows.
        raw: match gradients as they are by their mean squared error, not their directions.
        spread: of the labels' logits at the start.
        lift: of the hidden biases at the start. Lifted units are on, and a surrogate that starts
            out almost linear has one sign everywhere: turned round in a part of the space, model
            and labels of two classes would explain the gradients just as well.
    """

    lambda_ce: float = 3.0
    lambda_p: float = 10.0
    rate_net: float = 3e-4
    rate_labels: float = 0.3
    batch: int = 128
    epochs: int = 200
    raw: bool = False
    spread: float = 0.1
    lift: float = 0.0


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayBatch:
    """The rows to explain.

    Attributes:
        rows: as a surrogate sees them.
        group: ``[n]``, the same number for rows that are equal; they have one label.
        prior: ``[classes]``, how frequent each class is.
        start: ``[n, classes]`` logits to start from, or None for a draw.
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
    """What one replay came to.

    Attributes:
        net: the surrogate.
        labels: ``[n, classes]``, the surrogate labels' logits.
        gradient_loss: of the last epoch, the mean distance of the gradients.
        objective: Eq. 9 with both weights at 1, over all rows at the end.
        settings: what it was run with.
        late: whether it ran out of time.
    """

    net: nn.Sequential
    labels: Tensor
    gradient_loss: float
    objective: float
    settings: Settings
    prior: Tensor
    late: bool

    def costs(self, rows: Rows, *, weight: float = HAIR) -> Tensor:
        """Return what each label would cost each row ``[n, classes]``: Eq. 9 at one-hot labels.

        ``||g'_c - g|| + weight * H(e_c, p') / H(P)``, both gradients at length one. A hair's
        weight decides only where a gradient is zero.
        """
        with torch.no_grad():
            far, chances = self.distances(rows)
            return far - weight * chances / _entropy(self.prior)

    def distances(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return how far off the gradient is under each label, and the log-probabilities."""
        scaled = _as_is if self.settings.raw else unit
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


@final
class _Labels:
    """Logits of the surrogate labels, one row per group of equal rows, with Adam row by row.

    Only the rows of a batch move: ``torch.optim.Adam`` would go on pushing all others by their
    momentum. ``torch.optim.SparseAdam`` moves these rows alone too, but corrects its averages by
    the number of all steps, not by how often a row has moved.
    """

    def __init__(self, start: Tensor, rate: float, *, shared: bool) -> None:
        self.logits, self._rate, self._shared = start, rate, shared
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)

    def step(self, places: Tensor, grads: Tensor, passes: int) -> None:
        """Move the labels of a batch; equal rows are one label and their gradients add up."""
        if self._shared:
            places, member = torch.unique(places, return_inverse=True)
            grads = torch.zeros(len(places), grads.shape[1]).index_add_(0, member, grads)
        mean = self._mean[places].lerp_(grads, 0.1)
        square = self._square[places].mul_(0.99).addcmul_(grads, grads, value=0.01)
        self._mean[places], self._square[places] = mean, square
        near, spread = mean / (1 - 0.9**passes), (square / (1 - 0.99**passes)).sqrt()
        self.logits[places] -= self._rate * near / (spread + _FLOOR**2)


def replay(
    lesson: ReplayBatch, settings: Settings, *, rng: torch.Generator, until: float | None = None
) -> Replay:
    """Return the surrogate and the labels that explain the rows best, found by gradient descent."""
    classes, rows = len(lesson.prior), lesson.rows
    widths = [rows.embeddings.shape[1], *lesson.hidden, classes]
    net = fully_connected(widths, rng, lift=settings.lift)
    start = _start(lesson, settings, rng)
    labels = _Labels(start, settings.rate_labels, shared=len(start) < len(rows))
    # Fused takes 48 microseconds a step, the default 164: most of it is overhead of small tensors.
    optimiser = torch.optim.Adam(net.parameters(), lr=settings.rate_net, fused=True)
    loss, found, late = 0.0, _loss(lesson, settings), False
    for passes in range(1, settings.epochs + 1):
        total = 0.0
        for batch in torch.split(torch.randperm(len(rows), generator=rng), settings.batch):
            places = lesson.group[batch]
            with torch.enable_grad():
                logits = labels.logits[places].requires_grad_()
                terms = found(net, rows[batch], logits)
            optimiser.zero_grad()
            torch.autograd.backward(terms[0])
            optimiser.step()
            assert logits.grad is not None  # noqa: S101 - every loss depends on the labels
            labels.step(places, logits.grad, passes)
            total += float(terms[1].detach()) * len(batch)
        loss = total / len(rows)
        if until is not None and time.perf_counter() > until and passes < settings.epochs:
            late = True
            break
    return Replay(
        net=net,
        labels=labels.logits[lesson.group],
        gradient_loss=loss,
        objective=_objective(lesson, net, labels.logits[lesson.group]),
        settings=settings,
        prior=lesson.prior,
        late=late,
    )


def _start(lesson: ReplayBatch, settings: Settings, rng: torch.Generator) -> Tensor:
    groups = int(lesson.group.max()) + 1
    start = settings.spread * torch.randn(groups, len(lesson.prior), generator=rng)
    if lesson.start is not None:
        start[lesson.group] += lesson.start
    return start


def _loss(
    lesson: ReplayBatch, settings: Settings
) -> Callable[[nn.Sequential, Rows, Tensor], tuple[Tensor, Tensor]]:
    """Return Eq. 9 as a function of the surrogate, a batch and its labels' logits."""
    prior, entropy = lesson.prior, _entropy(lesson.prior)

    def found(net: nn.Sequential, rows: Rows, logits: Tensor) -> tuple[Tensor, Tensor]:
        guessed, masks = logits_and_masks(net, rows.embeddings)
        chances, labels = functional.log_softmax(guessed, dim=1), logits.softmax(dim=1)
        if settings.raw:
            near = input_gradient(net, chances.exp() - labels, masks)
            match = functional.mse_loss(near, rows.gradients)
        elif len(prior) == 2:
            match = _two_sided(net, masks, unit(rows.gradients), labels)
        else:
            near = unit(input_gradient(net, chances.exp() - labels, masks))
            match = torch.linalg.vector_norm(near - unit(rows.gradients), dim=1).mean()
        loss = match
        if settings.lambda_ce:
            loss = loss - settings.lambda_ce * (labels * chances).sum(dim=1).mean() / entropy
        if settings.lambda_p:
            loss = loss + settings.lambda_p * _divergence(prior, labels.mean(dim=0))
        return loss, match

    return found


def _two_sided(net: nn.Sequential, masks: list[Tensor], seen: Tensor, labels: Tensor) -> Tensor:
    """Return the distance that is expected under labels of two classes.

    There ``p - y`` is ``(-a, a)``: at length one, a soft label turns the gradient round or leaves
    it, and nothing pulls at the label. So both sides count, by how likely the label is.
    """
    turned = torch.tensor([-1.0, 1.0]).expand(len(seen), 2)
    near = unit(input_gradient(net, turned, masks))
    far = [torch.linalg.vector_norm(side - seen, dim=1) for side in (near, -near)]
    return (labels * torch.stack(far, dim=1)).sum(dim=1).mean()


def _objective(lesson: ReplayBatch, net: nn.Sequential, logits: Tensor) -> float:
    """Return Eq. 9 over all rows with both weights at 1."""
    with torch.no_grad():
        equal = _loss(lesson, Settings(lambda_ce=1.0, lambda_p=1.0))
        return float(equal(net, lesson.rows, logits)[0])


def _as_is(rows: Tensor) -> Tensor:
    return rows


def _entropy(prior: Tensor) -> float:
    return max(float(-torch.xlogy(prior, prior).sum()), _FLOOR)


def _divergence(prior: Tensor, shares: Tensor) -> Tensor:
    """Return ``KL(prior || shares)``."""
    return (torch.xlogy(prior, prior) - prior * shares.clamp_min(_FLOOR).log()).sum()
