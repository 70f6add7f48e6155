"""Randomised response with a prior, in stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.protect.labels.keyed_draws import ExampleDraws
from tacit.protect.labels.mechanisms import (
    LABELS,
    Ints,
    LabelClaim,
    LabelMechanism,
    Plan,
    check_epsilon,
    keep_probability,
)
from tacit.spec import require

Floats = npt.NDArray[np.float64]

_ROUNDS = 200  # of the fit; the change is then far below the grid that the prior is rounded to
_GRID = 2.0**20


@final
@LABELS.register("rr_prior")
@dataclass(frozen=True)
class PriorResponse(LabelMechanism):
    """Randomised response among the likely classes only, learnt in stages; for three classes up.

    Every example belongs to one of the stages, by a keyed function of its id. Stage 1 is plain
    randomised response. Each later stage fits the frequencies of the classes to the randomised
    labels of all stages before it (maximum likelihood) and answers among the k most frequent
    classes, with the k that maximises ``P(answer = label)``, that is ``e^epsilon / (e^epsilon + k -
    1)`` times the frequency of the k classes together. A label outside them becomes any of them
    alike.

    Guarantee: epsilon label differential privacy, as for ``rr``: every label is randomised once,
    given a prior that was computed from randomised labels of other examples.

    References:
        Ghazi et al., "Deep Learning with Label Differential Privacy" (NeurIPS 2021), Algorithms 1
        (RRTop-k), 2 (RRWithPrior) and 3 (stages).

    Departures: the paper's prior is one prediction per example, of a model that was trained on the
    stages before; here it is the same for all examples, so rare classes may disappear. Nothing is
    corrected for: the loss takes the answers as they are.

    >>> str(LABELS.get("rr_prior(1, stages=3)"))
    'rr_prior(epsilon=1, stages=3)'
    """

    whole: ClassVar[bool] = True
    epsilon: float
    stages: int = 2

    def __post_init__(self) -> None:
        check_epsilon("rr_prior", self.epsilon)
        require(2 <= self.stages <= 100, "rr_prior: stages must be 2 to 100", self.stages)

    def check_classes(self, classes: int) -> None:
        """Refuse two classes, where the prior leaves only one."""
        super().check_classes(classes)
        if classes == 2:
            raise InputError(
                "rr_prior needs three classes or more, got 2: once the more frequent class has a "
                f"share above {keep_probability(self.epsilon, 2):.2f}, every later answer is that "
                f"class and nothing is left to learn; use rr(epsilon={self.epsilon:g})"
            )

    def prepare(self, labels: Ints, draws: ExampleDraws, *, classes: int) -> Plan:
        """Return the classes that each stage answers among, stage after stage."""
        stage = self._stage(draws)
        plan: list[tuple[int, ...]] = []
        counts = np.zeros((self.stages, classes))
        for number in range(self.stages):
            channels = [self._channel(likely, classes) for likely in plan]
            prior = _fit(counts[:number], channels, classes)
            plan.append(likely_classes(prior, self.epsilon))
            rows = np.flatnonzero(stage == number)
            answers = self._answer(labels[rows], draws.take(rows), number, plan[number], classes)
            counts[number] = np.bincount(answers, minlength=classes)
        return tuple(plan)

    def randomize(self, labels: Ints, draws: ExampleDraws, *, classes: int, plan: Plan) -> Tensor:
        """Randomise each label among the classes of the example's stage."""
        stage = self._stage(draws)
        answers = np.empty(len(labels), dtype=np.int64)
        for number, likely in enumerate(plan):
            rows = np.flatnonzero(stage == number)
            answers[rows] = self._answer(labels[rows], draws.take(rows), number, likely, classes)
        return torch.from_numpy(answers)

    def claim(self, classes: int) -> LabelClaim:  # noqa: ARG002
        """Return epsilon; binary randomised response reveals the most of all with that epsilon."""
        return LabelClaim(epsilon=self.epsilon, channel=2)

    def _stage(self, draws: ExampleDraws) -> Ints:
        return (draws.uniform("stage") * self.stages).astype(np.int64)

    def _answer(
        self, labels: Ints, draws: ExampleDraws, number: int, likely: tuple[int, ...], classes: int
    ) -> Ints:
        """Return randomised response within ``likely``; outside labels become any of them.

        The coin depends on the classes to choose from: should another data set lead to others under
        the same secret, the two answers are independent and their epsilons add up. One coin for
        both would give labels away.
        """
        if len(labels) == 0:
            return labels
        chosen = np.array(likely, dtype=np.int64)
        place = np.full(classes, -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        coin, which = draws.uniform(f"rr_prior {number} {likely}", 2).T
        own = place[labels]
        other = (which * (len(chosen) - 1)).astype(np.int64)
        other += other >= own
        keep = coin < keep_probability(self.epsilon, len(chosen))
        anywhere = (which * len(chosen)).astype(np.int64)
        answers: Ints = chosen[np.where(own < 0, anywhere, np.where(keep, own, other))]
        return answers

    def _channel(self, likely: tuple[int, ...], classes: int) -> Floats:
        """Return the probability of every answer (column) given every label (row)."""
        keep = keep_probability(self.epsilon, len(likely))
        channel = np.zeros((classes, classes))
        channel[:, likely] = 1 / len(likely)
        channel[np.ix_(likely, likely)] = keep * math.exp(-self.epsilon)
        channel[likely, likely] = keep
        return channel


def likely_classes(prior: Floats, epsilon: float) -> tuple[int, ...]:
    """Return the k most frequent classes, with the k that makes the answer right most often.

    >>> likely_classes(np.array([0.1, 0.6, 0.3]), 0.5)
    (1,)
    >>> likely_classes(np.ones(3) / 3, 0.5)
    (0, 1, 2)
    """
    order = np.argsort(-prior, kind="stable")
    count = np.arange(len(prior))
    right = np.cumsum(prior[order]) / (1 + count * math.exp(-epsilon))
    # Equal up to rounding counts as equal, and the larger set wins: it keeps more classes alive.
    best = int(np.flatnonzero(right >= right.max() - 1e-9)[-1])
    return tuple(sorted(int(c) for c in order[: best + 1]))


def _fit(counts: Floats, channels: list[Floats], classes: int) -> Floats:
    """Return the class frequencies that make the answers likeliest, on a grid (EM).

    The grid makes the result the same wherever sums are added in another order.
    """
    prior = np.full(classes, 1 / classes)
    if counts.sum() == 0:
        return prior
    for _ in range(_ROUNDS):
        weight = np.zeros(classes)
        for seen, channel in zip(counts, channels, strict=True):
            joint = prior[:, None] * channel
            weight += (joint * (seen / np.maximum(joint.sum(axis=0), 1e-300))).sum(axis=1)
        prior = weight / weight.sum()
    return np.asarray(np.rint(prior * _GRID) / _GRID)
