"""Label mechanisms: labels randomised once per example, before any loss sees them.

All that is computed from randomised labels is post-processing of them, so no number of epochs adds
to what they reveal: as long as the loss, class statistics, early stopping and model selection use
nothing but them. The randomness is a keyed function of the label secret, the example's id, the
mechanism and its privacy parameters, and is never redrawn: what is done with the answers afterwards
has no part in it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as nn

from tacit.errors import InputError
from tacit.protect.labels.keyed_draws import ExampleDraws
from tacit.spec import Registry, Specified, require
from tacit.types import Flips

Ints = npt.NDArray[np.int64]
Plan = tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True, kw_only=True)
class LabelClaim:
    """What a mechanism guarantees between any two labels: exactly one of epsilon and mu.

    ``channel`` is the number of classes of the randomised response that is as revealing.
    """

    epsilon: float | None = None
    mu: float | None = None
    channel: int = 2
    assumption: str = (
        "the label secret is secret; everything uses the randomised labels only; "
        "holds for chosen embeddings too"
    )


class LabelMechanism(Specified, ABC):
    """A random function of one label, drawn once per example.

    Subclasses are frozen dataclasses registered in ``LABELS``; their fields are parameters.
    """

    whole: ClassVar[bool] = False
    """Whether the mechanism must see the data set as a whole before it randomises a label."""

    post_processing: ClassVar[frozenset[str]] = frozenset()
    """The parameters that say what is done with the answers; no coin may depend on them."""

    @final
    @property
    def randomisation(self) -> str:
        """The spec without post-processing, every number in full: what the coins are keyed by.

        Two specs that share it share their answers, and one release; two that do not are drawn
        independently. One coin at two epsilons would give away every label they answer differently.

        >>> get_labels("rr(0.58, correction=forward)").randomisation
        'rr(epsilon=0.58)'
        """
        settled = {
            field.name: field.default
            if field.name in self.post_processing
            else _in_full(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        }
        return str(replace(self, **settled))  # type: ignore[type-var]

    def check_classes(self, classes: int) -> None:
        """Refuse a number of classes that the mechanism is not for."""
        if not 2 <= classes < 2**16:
            raise InputError(f"label mechanisms take 2 to 65535 classes, got {classes}")

    def prepare(self, labels: Ints, draws: ExampleDraws, *, classes: int) -> Plan:  # noqa: ARG002
        """Return what is fixed for the data set; computed from randomised labels only."""
        return ()

    @abstractmethod
    def randomize(self, labels: Ints, draws: ExampleDraws, *, classes: int, plan: Plan) -> Tensor:
        """Return the randomised labels: classes ``[n]``, or numbers ``[n]`` or ``[n, classes]``."""

    @abstractmethod
    def claim(self, classes: int) -> LabelClaim:
        """Return what is guaranteed between any two labels."""

    def hard(self, released: Tensor) -> Tensor:
        """Return one class per example, as class statistics take them."""
        return released.long()

    def targets(self, released: Tensor, *, classes: int) -> Tensor:  # noqa: ARG002
        """Return what the loss takes: classes, or soft targets of the positive class or of each."""
        return released

    def flips(self, classes: int) -> Flips | None:  # noqa: ARG002
        """Return the flips that the objective has to apply to its predictions, if any."""
        return None


LABELS: Registry[LabelMechanism] = Registry("label mechanism", base=LabelMechanism)


@final
@LABELS.register("rr")
@dataclass(frozen=True)
class RandomizedResponse(LabelMechanism):
    """Randomised response: keep the label or take any other class, by a biased coin.

    ``P(y) = e^epsilon / (e^epsilon + C - 1)``, every other class ``1 / (e^epsilon + C - 1)``.

    ``correction=debiased`` gives soft targets ``(onehot - q) / (p - q)`` for the loss, with p and q
    the two probabilities above: cross-entropy is linear in its targets, so its gradient is the
    clean one on average. The targets leave [0, 1]; their gradient ends where a
    probability is ``e^-10``. ``correction=forward`` keeps the classes and applies the same flips to
    the predictions (``tacit.objective.Forward``): bounded, and least at the clean class
    probabilities.

    Guarantee: epsilon label differential privacy of everything that is computed from the
    randomised labels, in any number of epochs. Flips are symmetric on purpose: flipping positives
    only would have far less variance at equal AUC, but whoever is seen as positive would be one
    with certainty, which no epsilon describes.

    References:
        Warner (1965); Ghazi et al., "Deep Learning with Label Differential Privacy" (NeurIPS
        2021); ExPLOit (Kariyappa and Qureshi), Eq. 11. Debiasing and forward correction: Natarajan
        et al. (NIPS 2013), Patrini et al. (CVPR 2017).

    Departures: the coin belongs to the example's id and is never tossed again; both corrections
    work on the same answers.

    >>> round(1 - keep_probability(0.575, 2), 2)
    0.36
    """

    post_processing: ClassVar[frozenset[str]] = frozenset({"correction"})
    epsilon: float
    correction: Literal["debiased", "forward"] = "debiased"

    def __post_init__(self) -> None:
        check_epsilon("rr", self.epsilon)

    def randomize(self, labels: Ints, draws: ExampleDraws, *, classes: int, plan: Plan) -> Tensor:  # noqa: ARG002
        """Keep or replace each label, by the example's own random numbers."""
        coin, which = draws.uniform("rr", 2).T
        other = (which * (classes - 1)).astype(np.int64)
        other += other >= labels
        keep = coin < keep_probability(self.epsilon, classes)
        return torch.from_numpy(np.where(keep, labels, other))

    def claim(self, classes: int) -> LabelClaim:
        """Return epsilon; the channel itself, so no other of this epsilon reveals less exactly."""
        return LabelClaim(epsilon=self.epsilon, channel=classes)

    def targets(self, released: Tensor, *, classes: int) -> Tensor:
        """Return debiased soft targets, or the classes for the forward correction."""
        if self.correction == "forward":
            return released
        flips = self._channel(classes)
        seen = released if classes == 2 else nn.one_hot(released, classes)
        return ((seen.double() - flips.other) / (flips.keep - flips.other)).float()

    def flips(self, classes: int) -> Flips | None:
        """Return the flips for the forward correction."""
        return self._channel(classes) if self.correction == "forward" else None

    def _channel(self, classes: int) -> Flips:
        keep = keep_probability(self.epsilon, classes)
        other = math.exp(-self.epsilon) * keep
        return Flips(keep=keep, other=other, classes=classes)


@final
@LABELS.register("gaussian_labels")
@dataclass(frozen=True)
class GaussianLabels(LabelMechanism):
    """Add Gaussian noise to 0-1 labels, or to one-hot labels of many classes.

    ``y' = y + N(0, sigma^2)``; the noisy labels are the targets of the loss, unbiased as they are.

    Guarantee: telling two labels apart is exactly as hard as telling N(0, 1) from N(mu, 1), with
    ``mu = 1 / sigma`` for two classes and ``sqrt(2) / sigma`` for many: the best AUC is
    ``Phi(mu / sqrt(2))``. There is no epsilon without a delta: at every epsilon the delta is
    ``tacit.measure.gaussian_delta(mu, epsilon)``. A few examples of large noise are as good as
    revealed, which randomised response rules out.

    References:
        Dong, Roth and Su, "Gaussian Differential Privacy" (2022); Balle and Wang (ICML 2018).

    Departures: the noise is rounded to a power of two that divides 1, below sigma / 65536. In
    floating point, y + noise would otherwise have other low bits for y = 1 than for y = 0; rounding
    is post-processing and costs nothing (Mironov, CCS 2012).

    >>> str(LABELS.get("gaussian_labels(2)"))
    'gaussian_labels(sigma=2)'
    """

    sigma: float

    def __post_init__(self) -> None:
        rule = "gaussian_labels: sigma must lie between 0.001 and 100000"
        require(1e-3 <= self.sigma <= 1e5, rule, self.sigma)

    def randomize(self, labels: Ints, draws: ExampleDraws, *, classes: int, plan: Plan) -> Tensor:  # noqa: ARG002
        """Add each example's own noise."""
        columns = 1 if classes == 2 else classes
        grid = 2.0 ** min(0, math.floor(math.log2(self.sigma)) - 16)
        noisy = np.rint(draws.normal("gaussian", columns) * (self.sigma / grid)) * grid
        if classes == 2:
            return torch.from_numpy(labels + noisy[:, 0]).float()
        noisy[np.arange(len(labels)), labels] += 1
        return torch.from_numpy(noisy).float()

    def claim(self, classes: int) -> LabelClaim:
        """Return mu, the distance of two labels in standard deviations of the noise."""
        return LabelClaim(mu=math.sqrt(1 if classes == 2 else 2) / self.sigma)

    def hard(self, released: Tensor) -> Tensor:
        """Return the class that the noisy label is nearest to."""
        return (released > 0.5).long() if released.dim() == 1 else released.argmax(dim=1)


def get_labels(spec: str | LabelMechanism) -> LabelMechanism:
    """Return the label mechanism that a spec string describes.

    >>> str(get_labels("rr(0.58)"))
    'rr(epsilon=0.58)'
    """
    return spec if isinstance(spec, LabelMechanism) else LABELS.get(spec)


def _in_full(value: Any) -> Any:  # noqa: ANN401 - whatever a parameter takes
    """Return a parameter as it is written without rounding; 0.58 of ``float32`` is not 0.58."""
    return value if isinstance(value, str | bool | int | None) else float(value)


def keep_probability(epsilon: float, classes: int) -> float:
    """Return ``e^epsilon / (e^epsilon + classes - 1)``."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def check_epsilon(owner: str, epsilon: Any) -> None:  # noqa: ANN401 - whatever the caller passed
    """Refuse an epsilon that is not positive, not a number, or so large that nothing is flipped."""
    rule = (
        f"{owner}: epsilon must be above 0 and at most 30 (from there on no label is ever flipped)"
    )
    require(0 < epsilon <= 30, rule, epsilon)
