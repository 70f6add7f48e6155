"""From a target leakage to a protection and its strength."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import final

from tacit.accounting.budget import rounded_down
from tacit.measure._arrays import positive_count
from tacit.measure.bounds import auc_bound, gaussian_auc
from tacit.measure.label_auc import flip_for_epsilon, randomized_label_auc
from tacit.spec import require

_ENOUGH = 2_000  # randomised labels, in clean ones, below which a model has little to learn from


@final
@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A protection for a target.

    Attributes:
        protect: the spec of the per-step protection; ``"none"`` where labels are randomised.
        labels: the spec of the label mechanism, or None.
        leak: the leak AUC to expect after all epochs.
        bound: no score exceeds this, under the assumption of the certificate; for noise, of honest
            batches only.
        budget: the ``--budget`` that covers all of it: a budget limits the bound.
        effective: as many clean labels have the variance of the debiased ones; None for noise.
        reason: what the choice is based on, in words.
    """

    protect: str
    labels: str | None
    leak: float
    bound: float
    budget: str
    effective: int | None
    reason: str

    def __str__(self) -> str:
        flags, whose = f"--labels '{self.labels}'", ""
        if self.labels is None:
            flags, whose = f"--protect '{self.protect}'", " for honest batches"
        return (
            f"{flags} --budget {self.budget}: leak {self.leak:.2f} expected, bound "
            f"{self.bound:.2f}{whose}; {self.reason}"
        )


def recommend(
    *, target: float, epochs: int, examples: int, classes: int = 2, proven: bool = False
) -> tuple[Recommendation, ...]:
    """Return what keeps the leakage of all epochs at a target, the first choice first.

    Randomised labels: ``rr(epsilon)`` with ``(e^eps - 1) / (e^eps + C - 1) = 2 target - 1``, the
    same after any number of epochs. Noise: ``marvell(sum_kl=k, covariance=full)`` with
    ``gaussian_auc(T k) = target``, because divergences add up over ``T`` epochs.

    Guarantee: for randomised labels ``leak`` is the bound itself, without an assumption on
    gradients; features may add to it. For noise ``leak`` is a reference value, not a bound.

    Noise comes first for two classes: at the same leakage it was measured to cost far less quality
    than randomised labels (``docs/audits.md``). Randomised labels come first where a proof is
    asked for, and are the only choice for more than two classes.

    >>> best, other = recommend(target=0.65, epochs=20, examples=27_000)
    >>> best.protect, other.labels
    ('marvell(sum_kl=0.0148, covariance=full)', 'rr(epsilon=0.619)')
    """
    require(0.5 < target < 1, "target must lie between 0.5 and 1", target)
    positive_count(epochs, name="epochs")
    positive_count(examples, name="examples")
    labels, noise = _randomised(target, examples, classes), _noise(target, epochs)
    if classes > 2:
        return (labels,)
    return (labels, noise) if proven else (noise, labels)


def _randomised(target: float, examples: int, classes: int) -> Recommendation:
    epsilon = rounded_down(math.log((1 + (classes - 1) * (2 * target - 1)) / (2 - 2 * target)))
    while (
        randomized_label_auc(flip_for_epsilon(epsilon, classes=classes), classes=classes) > target
    ):
        epsilon = rounded_down(epsilon * 0.99)
    flip = flip_for_epsilon(epsilon, classes=classes)
    leak = randomized_label_auc(flip, classes=classes)
    effective = int(examples * (1 - flip * classes / (classes - 1)) ** 2)
    few = "" if effective >= _ENOUGH else ", which is little to learn from"
    return Recommendation(
        protect="none",
        labels=f"rr(epsilon={epsilon:g})",
        leak=leak,
        bound=leak,
        budget=f"epsilon={epsilon:g}",
        effective=effective,
        reason=f"{flip:.0%} of labels are flipped, once, so epochs add nothing; debiased, they are "
        f"as noisy as {effective:,} clean ones{few}",
    )


def _noise(target: float, epochs: int) -> Recommendation:
    each = rounded_down(2 * NormalDist().inv_cdf(target) ** 2 / epochs)
    total = each * epochs
    return Recommendation(
        protect=f"marvell(sum_kl={each:g}, covariance=full)",
        labels=None,
        leak=gaussian_auc(total),
        bound=auc_bound(total),
        budget=_budget(total),
        effective=None,
        reason=f"sumKL {each:g} per release adds up to {total:.2g} over the epochs",
    )


def _budget(total: float) -> str:
    """Return the least budget of three digits with room for a sum_kl, of AUC where that is one."""
    limit = math.ceil(auc_bound(total) * 1000 - 1e-6) / 1000
    if limit < 1:
        return f"auc={limit:g}"
    unit = 10.0 ** (math.floor(math.log10(total)) - 2)
    return f"sum_kl={math.ceil(total / unit - 1e-6) * unit:.3g}"
