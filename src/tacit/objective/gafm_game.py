"""The game of GAFM's label party: discriminator, generator, and the gradient that is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from tacit.errors import ReleaseError
from tacit.measure import auc
from tacit.objective.learner import Learner, Setting, Signal, Turn, clear_grads
from tacit.rng import Key, Stream


@final
class WeightSnapshot:
    """A copy of models and optimisers at one moment.

    >>> model = nn.Linear(1, 1)
    >>> kept = WeightSnapshot([model], [])
    >>> _ = model.weight.data.fill_(7.0)
    >>> kept.restore()
    >>> bool((model.weight == 7).any())
    False
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._values: list[tuple[Tensor, Tensor]] = [
            (value, value.detach().clone())
            for model in models
            for value in (*model.parameters(), *model.buffers())
        ]
        self._optimizers = optimizers
        self._fresh = [not optimizer.state for optimizer in optimizers]
        self._values += [
            (value, value.clone())
            for optimizer in optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]

    def restore(self) -> None:
        """Restore the weights and the state of the optimisers."""
        with torch.no_grad():
            for value, before in self._values:
                value.copy_(before)
        for optimizer, fresh in zip(self._optimizers, self._fresh, strict=True):
            if fresh:
                optimizer.state.clear()


_EDGE = 1e-6
"""Embeddings count as no nearer to 0 and 1: the penalty's gradient has poles there."""
_MEMORY = 0.9
"""How much of the running orientation a step leaves: about the last ten steps decide."""


@final
@dataclass(frozen=True, kw_only=True)
class GafmParameters:
    """The parameters of ``gafm``, each with a value."""

    delta: float
    sigma: float
    gamma: float
    ablate: Literal["none", "gan", "penalty"]
    clip: float
    hidden: int
    orient: bool


@final
class Discriminator(nn.Module):
    """Scores numbers by how much they look like labels, and keeps what a restart must know.

    ``lean`` is the running AUC minus 0.5 of the generator against the labels in use, ``fallbacks``
    the number of batches without one of the classes.

    >>> Discriminator(4, Key.from_seed(0))(torch.zeros(3)).shape
    torch.Size([3])
    """

    lean: Tensor
    fallbacks: Tensor

    def __init__(self, hidden: int, key: Key) -> None:
        super().__init__()
        widths = ((1, hidden), (hidden, hidden), (hidden, hidden), (hidden, 1))
        dense = [
            _linear(inputs, outputs, key.stream("gafm discriminator", number))
            for number, (inputs, outputs) in enumerate(widths)
        ]
        bent = [part for layer in dense[:-1] for part in (layer, nn.LeakyReLU())]
        self.layers = nn.Sequential(*bent, dense[-1])
        self.register_buffer("lean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("fallbacks", torch.zeros((), dtype=torch.int64))

    def forward(self, values: Tensor) -> Tensor:
        """Return one score per number."""
        scores: Tensor = self.layers(values.unsqueeze(1))
        return scores.squeeze(1)


@final
class Adversarial(Learner):
    """Algorithm 1, step by step: discriminator, generator, gradient at the cut."""

    def __init__(
        self, parameters: GafmParameters, setting: Setting, *, key: Key, claim: str
    ) -> None:
        self._parameters, self._key, self._claim = parameters, key, claim
        self._first_steps = setting.first_steps
        self._top, self._top_optimizer = setting.top, setting.optimizer
        self.discriminator = Discriminator(parameters.hidden, key)
        group = setting.optimizer.param_groups[0]
        self._optimizer = torch.optim.Adam(
            self.discriminator.parameters(),
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            fused=True,
        )
        self.models = {"discriminator": self.discriminator}
        self.optimizers = {"discriminator": self._optimizer}
        self._before: WeightSnapshot | None = None
        self._loss = 0.0

    def begin(self, turn: Turn) -> Signal:
        """Train discriminator and generator on the batch, and return the mixed gradient.

        Everything is taken back where the step is not finished by :meth:`update`.
        """
        self.undo()
        models = [self.discriminator, self._top]
        self._before = WeightSnapshot(models, [self._optimizer, self._top_optimizer])
        first = turn.step < self._first_steps
        labels = getattr(turn.labels, "hard", turn.labels)
        both = bool((labels != labels[0]).any())
        tag = self._key.tag(turn.cut)
        stream = self._key.stream("gafm", turn.step, tag)
        cut = turn.cut.detach()
        if first:
            cut = stream.normal(*cut.shape).to(cut)
        outputs = turn.outputs(cut)
        predicted = torch.sigmoid(outputs)
        noise = self._parameters.sigma * stream.normal(len(labels)).to(cut)
        gan = self._discriminate(labels.to(cut.dtype) + noise, predicted, learn=both)
        self._generate(predicted)
        if not first and both:
            self._watch(predicted.detach(), labels)
        parts, penalty = self._parts(turn, cut, labels if both else None, stream)
        self.discriminator.fallbacks += not both
        self._loss = gan + self._parameters.gamma * penalty
        return Signal(grads=self._mixed(parts), outputs=outputs.detach(), parts=parts)

    def _discriminate(self, real: Tensor, predicted: Tensor, *, learn: bool) -> float:
        """Ascend the Wasserstein loss and clip; return what the loss was."""
        distance = self.discriminator(real).mean() - self.discriminator(predicted.detach()).mean()
        if learn:
            clear_grads(self._optimizer)
            (-distance).backward()
            self._optimizer.step()
            with torch.no_grad():
                for weight in self.discriminator.parameters():
                    weight.clamp_(-self._parameters.clip, self._parameters.clip)
        return float(distance.detach())

    def _generate(self, predicted: Tensor) -> None:
        """Descend the Wasserstein loss with the top model."""
        clear_grads(self._top_optimizer)
        loss = -self.discriminator(predicted).mean()
        loss.backward(inputs=list(self._top.parameters()))
        self._top_optimizer.step()

    def _watch(self, predicted: Tensor, labels: Tensor) -> None:
        found = auc(predicted.double().numpy(), labels.numpy()) - 0.5
        lean = self.discriminator.lean
        lean.mul_(_MEMORY).add_((1 - _MEMORY) * found)

    def _parts(
        self, turn: Turn, cut: Tensor, labels: Tensor | None, stream: Stream
    ) -> tuple[dict[str, Tensor], float]:
        """Return both gradients at the cut, each of norm one, and the penalty's value."""
        leaf = cut.clone().requires_grad_()
        loss = -self.discriminator(torch.sigmoid(turn.outputs(leaf))).mean()
        (gan,) = torch.autograd.grad(loss, leaf)
        draws = torch.special.ndtr(stream.normal(len(cut))).to(cut)
        sides = torch.zeros_like(draws) if labels is None else 2 * labels.to(cut.dtype) - 1
        target = (0.5 + self._parameters.delta * draws * sides).view_as(cut)
        inside = cut.clamp(_EDGE, 1 - _EDGE)
        penalty = (inside - target) / (inside * (1 - inside))
        value = nn.functional.binary_cross_entropy(inside, target)
        return {"gan": _normal(gan), "penalty": _normal(penalty)}, float(value)

    def _mixed(self, parts: dict[str, Tensor]) -> Tensor:
        left = {name: part for name, part in parts.items() if name != self._parameters.ablate}
        weights = {"gan": 1.0, "penalty": self._parameters.gamma}
        total = torch.zeros_like(parts["gan"])
        for name, part in left.items():
            total += weights[name] * part
        return total

    def undo(self) -> None:
        """Restore both models as they were before the step that was begun."""
        if self._before is not None:
            self._before.restore()
        self._before = None

    def update(self) -> float:
        """Keep what the step that was begun has trained."""
        if self._before is None:
            raise ReleaseError("update was called before a step was begun")
        self._before = None
        return self._loss

    @property
    def flipped(self) -> bool:
        """Whether predictions run against the labels in use, and are turned around."""
        return self._parameters.orient and float(self.discriminator.lean) < 0

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the generator's predictions, oriented by the labels in use."""
        return torch.sigmoid(-outputs if self.flipped else outputs)

    def record(self) -> dict[str, Any]:
        """Return the claim, the orientation and how many batches had one class only."""
        return {
            "claim": self._claim,
            "flipped": self.flipped,
            "fallback_batches": int(self.discriminator.fallbacks),
        }


def _normal(grads: Tensor) -> Tensor:
    """Return a batch's gradient at norm one; zero stays zero."""
    largest = grads.abs().max()
    if not bool(largest > 0):
        return torch.zeros_like(grads)
    scaled = grads / largest  # tiny gradients would vanish in their squares
    length: Tensor = torch.linalg.vector_norm(scaled)
    return scaled / length


def _linear(inputs: int, outputs: int, stream: Stream) -> nn.Linear:
    """Return a layer as torch starts it, uniform within ``1 / sqrt(inputs)``, out of a stream."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    with torch.no_grad():
        for weight in _weights(layer):
            flat = torch.special.ndtr(stream.normal(*weight.shape))
            weight.copy_((2 * flat - 1) * bound)
    return layer


def _weights(layer: nn.Linear) -> Iterator[Tensor]:
    yield layer.weight
    yield layer.bias
