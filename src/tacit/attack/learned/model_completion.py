"""Model completion: a top model of the attacker's own, from a few labels and all embeddings."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.attack._classifiers import Ints
from tacit.attack.base import (
    ATTACKS,
    AuditForm,
    LabelledAttack,
    PreparedView,
    classes_of,
    shift,
)
from tacit.attack.learned._surrogate import (
    Rows,
    RowTransform,
    content_order,
    fully_connected,
    hidden_widths,
)
from tacit.attack.supervised import labelled_rows
from tacit.errors import InputError, KnowledgeError
from tacit.rows import as_rows, exponent
from tacit.spec import require
from tacit.types import View

_FLAT: Final = 1e-12  # embeddings that differ by less are equal
_BATCH: Final = 128
_RATE: Final = 2e-3
_KEEP: Final = 0.99  # share of the averaged weights that a step keeps


@final
@dataclass(frozen=True, kw_only=True)
class MixMatch:
    """The settings of MixMatch, by default those of the published attack.

    Attributes:
        temperature: guessed labels are sharpened to the power of its inverse.
        weight: of the loss on rows without a label, reached at the end of training.
        alpha: mixing shares are drawn from ``Beta(alpha, alpha)``.
        epochs: passes over the rows without a label.
    """

    temperature: float = 0.8
    weight: float = 50.0
    alpha: float = 0.5
    epochs: int = 100


def mix_match(
    net: nn.Sequential,
    labelled: tuple[Tensor, Tensor],
    rows: Tensor,
    *,
    settings: MixMatch,
    rng: torch.Generator,
    until: float | None,
) -> bool:
    """Train the network in place and leave it with averaged weights; return whether time ran out.

    Labels of other rows are guessed and sharpened, all rows are mixed with others, and the loss is
    cross-entropy on the labelled ones plus the squared error on the rest.
    """
    optimiser = torch.optim.Adam(net.parameters(), lr=_RATE, fused=True)
    kept = [value.detach().clone() for value in net.parameters()]
    late, done = False, 0
    total = settings.epochs * -(-len(rows) // _BATCH)
    for epoch in range(settings.epochs):
        for batch in torch.split(torch.randperm(len(rows), generator=rng), _BATCH):
            known = torch.randint(len(labelled[0]), (len(batch),), generator=rng)
            pair = labelled[0][known], labelled[1][known]
            with torch.enable_grad():
                ramp = settings.weight * done / total
                loss = _loss(net, pair, rows[batch], settings=settings, weight=ramp, rng=rng)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            done += 1
            keep = min(_KEEP, done / (done + 9))
            for old, value in zip(kept, net.parameters(), strict=True):
                old.lerp_(value.detach(), 1 - keep)
        if until is not None and time.perf_counter() > until and epoch + 1 < settings.epochs:
            late = True
            break
    for old, value in zip(kept, net.parameters(), strict=True):
        value.detach().copy_(old)
    return late


def _loss(
    net: nn.Sequential,
    labelled: tuple[Tensor, Tensor],
    rows: Tensor,
    *,
    settings: MixMatch,
    weight: float,
    rng: torch.Generator,
) -> Tensor:
    with torch.no_grad():
        guess = net(rows).div(settings.temperature).softmax(dim=1)
    inputs, targets = torch.cat([labelled[0], rows]), torch.cat([labelled[1], guess])
    other = torch.randperm(len(inputs), generator=rng)
    share = _beta(len(inputs), settings.alpha, rng)
    inputs = share * inputs + (1 - share) * inputs[other]
    targets = share * targets + (1 - share) * targets[other]
    chances = functional.log_softmax(net(inputs), dim=1)
    count = len(labelled[0])
    fit = -(targets[:count] * chances[:count]).sum(dim=1).mean()
    return fit + weight * functional.mse_loss(chances[count:].exp(), targets[count:])


def _beta(count: int, alpha: float, rng: torch.Generator) -> Tensor:
    """Return draws ``[count, 1]`` of ``max(b, 1 - b)`` with ``b`` from ``Beta(alpha, alpha)``.

    By Johnk's method: of two powers of uniforms whose sum is below one, the first one's share.
    """
    drawn = torch.rand(16, 2, count, generator=rng).pow(1 / alpha)
    fits = drawn.sum(dim=1) <= 1
    fits[-1] = True  # all 16 draws are rejected in one of a million rows: take the last one
    first = fits.int().argmax(dim=0)
    pair = drawn[first, :, torch.arange(count)]
    share = pair[:, 0] / pair.sum(dim=1).clamp_min(1e-30)
    return torch.maximum(share, 1 - share).unsqueeze(1)


@final
@ATTACKS.register("completion")
@dataclass(frozen=True)
class Completion(LabelledAttack):
    """Train a top model of the attacker's own from ``labelled`` examples of each class.

    ``r(z) = log p(1 | z) - log p(0 | z)`` of a network on the embeddings, with hidden layers of 128
    and 64 units (32 and 32 for two classes). It is trained by MixMatch: guessed labels of the other
    rows are sharpened (T = 0.8), all rows are mixed (alpha = 0.5), and the squared error on rows
    without a label weighs up to 50, over 100 epochs. It does not look at gradients: no protection
    of them hides what embeddings show.

    Needs: embeddings, and the labels of at least ``labelled`` rows of each class; more are not
    used. The published attack has 4 for images and 50 for conversions.

    References:
        Fu et al., "Label Inference Attacks Against Vertical Federated Learning", as Kariyappa and
        Qureshi run it: "ExPLOit", section 2.3 and appendix D.

    Departures: an embedding cannot be augmented like an image, so each row is guessed once. Rows
    whose label is known are scored by a network that was trained on the other half of them.
    Embeddings wider than 96 are written in their principal directions.

    >>> from tacit.types import Known, View
    >>> rng = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(40) % 2
    >>> z = 6.0 * labels.unsqueeze(1) + torch.randn(40, 3, generator=rng)
    >>> known = Known(labelled=(torch.arange(8), labels[:8]))
    >>> view = View(grads=torch.ones(40, 3), embeddings=z, known=known)
    >>> bool(((Completion()(view, rng) > 0) == labels).all())
    True
    """

    labelled: int = 4
    epochs: int = 100
    seconds: float | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"embeddings", "labelled"})
    reads: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = ()  # minutes of training

    def __post_init__(self) -> None:
        for name in ("labelled", "epochs"):
            value = getattr(self, name)
            require(value >= 1, f"completion: {name} must be 1 or more", value)
        spent = self.seconds is None or self.seconds > 0
        require(spent, "completion: seconds must be more than 0", self.seconds)

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return the log-odds of class 1 against class 0."""
        return self._log_odds(prepared, rng, honest=True)

    def _log_odds(self, prepared: PreparedView, rng: torch.Generator, *, honest: bool) -> Tensor:
        chances = self._chances(prepared, rng, honest=honest)
        if chances.shape[1] > 2:
            raise KnowledgeError(
                f"{self} scores class 1 against class 0, got known.labelled with class "
                f"{chances.shape[1] - 1}: call its `probabilities`, or pass (classes == c).long()"
            )
        return chances[:, 1] - chances[:, 0]

    def log_odds(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the scores ``[B]`` of a call; ``honest`` is as for ``probabilities``."""
        with torch.no_grad():
            return self._log_odds(self.prepare(view), rng, honest=honest)

    def within(self, seconds: float) -> Completion:
        """Return the same attack with at most so many seconds for each network."""
        least = seconds if self.seconds is None else min(self.seconds, seconds)
        return replace(self, seconds=least if least < math.inf else None)

    def probabilities(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the probability of each class ``[B, classes]``.

        Without ``honest``, labelled rows are scored by a network that was trained on them.
        """
        with torch.no_grad():
            return self._chances(self.prepare(view), rng, honest=honest).exp()

    def _chances(self, prepared: PreparedView, rng: torch.Generator, *, honest: bool) -> Tensor:
        """Return log-probabilities ``[B, classes]`` in ``float64``."""
        given = prepared.view.embeddings
        assert given is not None  # noqa: S101 - checked, as `needs` says
        sent = as_rows(given.detach(), name="embeddings").double().cpu()
        sent = shift(sent, -(exponent(sent, name="embeddings") or 0))
        order, _ = content_order(Rows(sent, prepared.rows.cpu()))
        positions, classes = self._labelled(prepared, order.argsort().numpy())
        count = max(classes_of(prepared.view.known), int(classes.max()) + 1)
        centred = sent[order] - sent[order].mean(dim=0)
        if float(centred.abs().max()) <= _FLAT:
            # Equal embeddings tell nothing.
            return torch.zeros(len(sent), count).double().to(prepared.rows.device)
        transform = RowTransform.fit(Rows(sent[order].float(), centred.float()))
        rows = transform(Rows(sent[order], sent[order])).embeddings
        drawn = self._drawn(classes, count, rng)
        fit = _Fit(self, rows, positions, classes, count, rng)
        found = fit(drawn)
        if honest:
            half = torch.arange(len(drawn)) % 2 == 0  # drawn class by class
            for mine, others in ((drawn[half], drawn[~half]), (drawn[~half], drawn[half])):
                if len(others) and len(mine):
                    found[positions[mine]] = fit(others)[positions[mine]]
        return found[order.argsort()].to(prepared.rows.device)

    def _labelled(self, prepared: PreparedView, position: Ints) -> tuple[Tensor, Tensor]:
        """Return the positions of the labelled rows in the content order, and their classes."""
        rows, classes = labelled_rows(prepared.view, len(prepared.rows))
        positions = position[rows]
        order = np.argsort(positions)
        return torch.from_numpy(positions[order]), torch.from_numpy(classes[order])

    def _drawn(self, classes: Tensor, count: int, rng: torch.Generator) -> Tensor:
        """Draw the labelled rows to learn from, the same number of each class."""
        sizes = torch.bincount(classes, minlength=count)
        if len(sizes) > count:
            raise InputError(
                f"known.labelled holds class {len(sizes) - 1}, known.classes says {count}: "
                "one of the two is wrong"
            )
        if int(sizes.min()) < self.labelled:
            few = int(sizes.argmin())
            raise KnowledgeError(
                f"{self} needs known.labelled with {self.labelled} rows of each class, got "
                f"{int(sizes[few])} of class {few}: label more, or take a smaller `labelled`"
            )
        order = torch.randperm(len(classes), generator=rng)
        found = [order[classes[order] == c][: self.labelled] for c in range(count)]
        return torch.cat(found)


@final
@dataclass(frozen=True, eq=False)
class _Fit:
    """Trains a network on some of the labelled rows and all others without their labels."""

    attack: Completion
    rows: Tensor
    positions: Tensor
    classes: Tensor
    count: int
    rng: torch.Generator

    def __call__(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of every row."""
        net = fully_connected(
            [self.rows.shape[1], *hidden_widths(self.count), self.count], self.rng
        )
        limit = self.attack.seconds
        until = None if limit is None else time.perf_counter() + limit
        rows = self.rows.float()
        known = functional.one_hot(self.classes[chosen], self.count).float()
        mix_match(
            net,
            (rows[self.positions[chosen]], known),
            rows,
            settings=MixMatch(epochs=self.attack.epochs),
            rng=self.rng,
            until=until,
        )
        with torch.no_grad():
            return functional.log_softmax(net.double()(self.rows), dim=1)
