"""A limit on what may be released about any one example, and a plan of it in advance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, final

from tacit.errors import ParameterError
from tacit.measure._arrays import positive_count
from tacit.measure.bounds import auc_bound, gaussian_auc
from tacit.measure.label_auc import label_sum_kl

_FORM = re.compile(r"\s*(auc|sum_kl|epsilon)\s*=\s*([^\s,=]+)\s*")
_ROUNDING = 1e-9  # relative: ten times a tenth is one
MOST_RELEASES = 65535
"""How many releases of an example a ledger can count."""


@final
@dataclass(frozen=True)
class Budget:
    """The most that may be released about any one example.

    ``auc=0.70`` limits the bound on any score's AUC, ``sum_kl=0.5`` the divergence that adds up
    over releases, ``epsilon=1`` the label differential privacy. What is exactly at the limit is
    within it.

    >>> str(Budget.parse("auc=0.70")), Budget.parse("auc=0.7").allows(0.7)
    ('auc=0.7', True)
    """

    kind: Literal["auc", "sum_kl", "epsilon"]
    limit: float

    def __post_init__(self) -> None:
        least, most = (0.5, 1.0) if self.kind == "auc" else (0.0, math.inf)
        if not least < self.limit < most:
            raise ParameterError(
                f"budget {self.kind} must lie between {least:g} and {most:g}, got {self.limit:g}: "
                f"at {least:g} nothing could be released, {most:g} would be no limit"
            )

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget that a text such as ``auc=0.70`` describes."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        try:
            if found is not None:
                return cls(found[1], float(found[2]))  # type: ignore[arg-type]
        except ParameterError:
            raise
        except ValueError:
            pass
        raise ParameterError(
            f"a budget is written auc=0.70, sum_kl=0.5 or epsilon=1, got {text!r}: choose one"
        )

    def allows(self, value: float) -> bool:
        """Whether this much is within the budget, up to rounding."""
        return value <= self.limit * (1 + _ROUNDING)

    def __str__(self) -> str:
        return f"{self.kind}={self.limit:g}"


def sum_kl_for_auc(auc: float) -> float:
    """Return the largest ``sum_kl`` that keeps ``auc_bound`` at ``auc``.

    ``4 (1 - sqrt(2 - 2 auc))^2``, the inverse of ``auc_bound`` on [1/2, 1].

    >>> round(sum_kl_for_auc(0.875), 6), sum_kl_for_auc(0.5)
    (1.0, 0.0)
    """
    if not 0.5 <= auc <= 1:
        raise ParameterError(f"auc must lie between 0.5 and 1, got {auc}: no bound is below 0.5")
    return 4 * (1 - math.sqrt(2 - 2 * auc)) ** 2


def epsilon_for_auc(auc: float) -> float:
    """Return the epsilon of the randomised response whose labels alone have this AUC.

    ``log(auc / (1 - auc))``

    >>> round(epsilon_for_auc(0.64), 3)
    0.575
    """
    if not 0.5 < auc < 1:
        raise ParameterError(f"auc must lie between 0.5 and 1, got {auc}: no epsilon gives that")
    return math.log(auc / (1 - auc))


def sum_kl_within(budget: Budget) -> float:
    """Return the ``sum_kl`` of releases of gradients that a budget has room for, 0 for epsilon.

    >>> sum_kl_within(Budget("sum_kl", 0.5)), sum_kl_within(Budget("epsilon", 1.0))
    (0.5, 0.0)
    """
    if budget.kind == "epsilon":
        return 0.0
    return sum_kl_for_auc(budget.limit) if budget.kind == "auc" else budget.limit


def label_epsilon(budget: Budget) -> float:
    """Return the largest epsilon of a randomised response of two classes within a budget."""
    if budget.kind == "auc":
        return epsilon_for_auc(budget.limit)
    if budget.kind == "epsilon":
        return min(budget.limit, 30.0)
    low, high = 0.0, 30.0  # by bisection: the epsilon of a divergence has no closed form
    for _ in range(60):
        middle = (low + high) / 2
        fits = label_sum_kl(epsilon=middle) <= budget.limit
        low, high = (middle, high) if fits else (low, middle)
    return low


def rounded_down(value: float) -> float:
    """Return three digits of a positive value, never more than it but for rounding.

    >>> rounded_down(0.014859), rounded_down(0.25)
    (0.0148, 0.25)
    """
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit * (1 + _ROUNDING)) * unit:.3g}")


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a training will have released about each example, known before its first step.

    It follows from the budget, the number of epochs and what the protection claims of a release,
    never from labels or gradients: so the end of a training reveals nothing.

    Attributes:
        budget: what to stay within.
        epochs: how often each example is to be released.
        sum_kl: the most that a release may cost; one that would cost more goes without signal.
        allowed: how many of the epochs the budget has room for.
        reference: ``gaussian_auc`` after all epochs; ``bound`` the ``auc_bound``.
        per_release: the ``sum_kl`` per release that has room for all of them.
        epsilon: of randomised labels, instead of noise.
    """

    budget: Budget
    epochs: int
    sum_kl: float
    allowed: int
    reference: float
    bound: float
    per_release: float
    epsilon: float

    def __str__(self) -> str:
        text = (
            f"{_epochs(self.epochs)} of sumKL {self.sum_kl:g}: reference {self.reference:.2f}, "
            f"bound {self.bound:.2f} for honest batches; "
        )
        if self.allowed == self.epochs:
            return text + f"within the budget {self.budget}"
        return text + f"the budget {self.budget} has room for {_epochs(self.allowed)}; " + self.way

    def record(self) -> dict[str, Any]:
        """Return the fields as JSON values, for the results of a run."""
        return {**vars(self), "budget": str(self.budget)}

    @property
    def way(self) -> str:
        """What to do so that all epochs fit."""
        return (
            f"for {_epochs(self.epochs)} use marvell(sum_kl={self.per_release:g}, covariance=full) "
            f"or labels rr(epsilon={self.epsilon:g})"
        )


def forecast(
    epochs: int, sum_kl_per_release: float, *, budget: Budget | str = "auc=0.65"
) -> Forecast:
    """Return what a plan will have released at its end, before it begins.

    Guarantee:
        For honest batches, ``bound`` as for ``auc_bound``, with the divergence added up over the
        epochs; the noise of each must be independent. ``reference`` is what averaging over epochs
        was measured to reach.

    >>> print(forecast(20, 0.05, budget="auc=0.8"))  # doctest: +NORMALIZE_WHITESPACE
    20 epochs of sumKL 0.05: reference 0.76, bound 0.88 for honest batches; the budget auc=0.8 has
    room for 10 epochs; for 20 epochs use marvell(sum_kl=0.027, covariance=full) or labels
    rr(epsilon=1.38)
    """
    count = positive_count(epochs, name="epochs")
    limit = Budget.parse(budget) if isinstance(budget, str) else budget
    each, room = float(sum_kl_per_release), sum_kl_within(limit)
    most = math.floor(room * (1 + _ROUNDING) / each) if each > 0 else MOST_RELEASES
    return Forecast(
        budget=limit,
        epochs=count,
        sum_kl=each,
        allowed=min(count, most, MOST_RELEASES),
        reference=gaussian_auc(count * each),
        bound=auc_bound(count * each),
        per_release=rounded_down(room / count) if room > 0 else 0.0,
        epsilon=rounded_down(label_epsilon(limit)),
    )


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def way_out(budget: Budget) -> str:
    """Return what to do instead where a budget refuses."""
    return (
        "train fewer epochs, plan for more noise per release, or randomise the labels once with "
        f"labels=rr(epsilon={rounded_down(label_epsilon(budget)):g})"
    )
