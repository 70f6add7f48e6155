"""A limit on what may be released about any one example, and a plan of it in advance."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from tacit.errors import ParameterError
from tacit.measure._arrays import positive_count
from tacit.measure.bounds import auc_bound, gaussian_auc
from tacit.measure.label_auc import label_sum_kl

__all__ = ["Budget", "Forecast", "bounds_after", "epsilon_for_auc", "forecast", "sum_kl_for_auc"]

Floats = npt.NDArray[np.float64]

_FORM = re.compile(r"\s*(auc|sum_kl|epsilon)\s*=\s*([^\s,=]+)\s*")
_ROUNDING = 1e-9  # relative: ten times a tenth is one


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


def bounds_after(sum_kl: Floats, label_kl: Floats, epsilon: Floats) -> Floats:
    """Return the AUC that no score of all releases exceeds, per example.

    ``sum_kl`` was spent by releases of gradients, ``label_kl`` by label mechanisms, ``epsilon`` by
    these too, infinite where one of them has none. Theorem 1 holds for the sum of all divergences
    of independent releases; where only randomised labels count, ``e^epsilon / (1 + e^epsilon)``
    holds as well, and the smaller of both is returned.

    >>> bounds_after(np.zeros(1), np.full(1, 0.33), np.log([64 / 36])).round(2).tolist()
    [0.64]
    """
    total = sum_kl + label_kl
    root = np.sqrt(np.minimum(total, 4.0))
    bound: Floats = 0.5 + root / 2 - root * root / 8
    with np.errstate(over="ignore"):
        labels_only = 1 / (1 + np.exp(-epsilon))
    return np.where(sum_kl > 0, bound, np.minimum(bound, labels_only))


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


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a number of epochs will have released about each example.

    Attributes:
        total: ``sum_kl`` after all epochs; every example is released once per epoch.
        reference: ``gaussian_auc`` of it; ``bound`` the ``auc_bound``.
        target: the bound that is wanted.
        per_release: the ``sum_kl`` per release that keeps it; ``epsilon`` the label mechanism's.
        last: after how many epochs it is overrun otherwise.
    """

    epochs: int
    sum_kl: float
    total: float
    reference: float
    bound: float
    target: float
    per_release: float
    epsilon: float
    last: int

    def __str__(self) -> str:
        said = (
            f"{self.epochs} epochs of sumKL {self.sum_kl:g}: reference {self.reference:.2f}, "
            f"bound {self.bound:.2f}; "
        )
        if self.bound <= self.target * (1 + _ROUNDING):
            return said + f"within the bound of {self.target:.2f}"
        return said + (
            f"for a bound of {self.target:.2f} use sumKL {self.per_release:.2g} per release, "
            f"{self.last} epochs, or rr(epsilon={self.epsilon:.2f})"
        )


def forecast(epochs: int, sum_kl_per_release: float, *, target: float = 0.65) -> Forecast:
    """Return what a plan will have released at its end, before it begins.

    Guarantee:
        ``bound`` as for ``auc_bound``, with the divergence added up over the epochs; the noise of
        each must be independent. ``reference`` is what averaging over epochs was measured to reach.

    >>> print(forecast(20, 0.25))  # doctest: +NORMALIZE_WHITESPACE
    20 epochs of sumKL 0.25: reference 0.94, bound 1.00; for a bound of 0.65 use sumKL 0.0053 per
    release, 0 epochs, or rr(epsilon=0.62)
    """
    count = positive_count(epochs, name="epochs")
    total = count * float(sum_kl_per_release)
    room = sum_kl_for_auc(target)
    each = float(sum_kl_per_release)
    return Forecast(
        epochs=count,
        sum_kl=each,
        total=total,
        reference=gaussian_auc(total),
        bound=auc_bound(total),
        target=target,
        per_release=room / count,
        epsilon=epsilon_for_auc(target),
        last=min(count, math.floor(room * (1 + _ROUNDING) / each)) if each > 0 else count,
    )


def way_out(budget: Budget) -> str:
    """Return what to do instead where a budget refuses."""
    if budget.kind == "auc":
        epsilon = epsilon_for_auc(budget.limit)
    elif budget.kind == "epsilon":
        epsilon = min(budget.limit, 30.0)
    else:  # the epsilon whose divergence is the limit, by bisection: it has no closed form
        low, high = 0.0, 30.0
        for _ in range(60):
            middle = (low + high) / 2
            fits = label_sum_kl(epsilon=middle) <= budget.limit
            low, high = (middle, high) if fits else (low, middle)
        epsilon = low
    shown = math.floor(epsilon * 100) / 100 or epsilon
    return (
        "stop training here, plan for more noise per release, or randomise the labels once with "
        f"labels=rr(epsilon={shown:.2g})"
    )
