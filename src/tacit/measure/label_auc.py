"""What randomised labels allow any attacker, alone and together with a prediction from features."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tacit.errors import ParameterError
from tacit.measure._arrays import Values, float_vector, positive_count
from tacit.measure._rank_statistics import ClassScores, both_class_scores, mann_whitney_u

_Floats = npt.NDArray[np.float64]
_NORMAL = NormalDist()


def flip_for_epsilon(epsilon: float, *, classes: int = 2) -> float:
    """Return how often randomised response makes a label another one.

    ``(C - 1) / (e^epsilon + C - 1)``

    >>> round(flip_for_epsilon(math.log(64 / 36)), 6)
    0.36
    """
    e, others = _epsilon(epsilon), _classes(classes) - 1
    return others / (math.exp(e) + others) if e < 700 else 0.0


def randomized_label_auc(flip: float, *, classes: int = 2) -> float:
    """Return the AUC of one randomised label between its class and another.

    ``1/2 + (p - q) (1 + (C - 2) q) / 2`` with ``p = 1 - flip`` and ``q = flip / (C - 1)``; for two
    classes this is ``1 - flip``.

    Guarantee:
        No score of the randomised label does better, whatever it is compared with: the AUC of the
        best score is convex in the distribution of the other side, so a mixture of classes (one
        against the rest) is never easier than the worst single one.

    >>> round(randomized_label_auc(0.36), 4), randomized_label_auc(0.5)
    (0.64, 0.5)
    """
    keep, other = _channel(flip, classes)
    return 0.5 + (keep - other) * (1 + (classes - 2) * other) / 2


def bayes_combined_auc(
    baseline_auc: float | None = None,
    *,
    epsilon: float | None = None,
    flip: float | None = None,
    classes: int = 2,
    scores: Values | None = None,
    labels: Values | None = None,
) -> float:
    """Return the best AUC of a randomised label together with what features predict.

    The combination adds log-odds: those of the prediction, and ``+a`` or ``-a`` for the randomised
    label, ``a = log(p / q)``. Its AUC is the average over what the randomised labels of a positive
    and of a negative can be, ``sum of P1(a1) P0(a0) P(L1 + a1 > L0 + a0)``: exact, no sampling.

    The baseline is an AUC, and then L is taken to be binormal, ``N(+-d^2 / 2, d^2)`` with ``d =
    sqrt(2) Phi^-1(auc)``; or the scores of examples, as calibrated probabilities, with their
    labels. How frequent the classes are shifts every log-odds alike and changes no AUC.

    Guarantee:
        No score of anything that was computed from features and randomised labels has a higher
        AUC, if examples are independent and the baseline is the best prediction from features. Of
        the other examples' labels nothing is learnt about this one beyond its features; so all
        there is about it is the pair (features, randomised label), everything sent is a function of
        such pairs (post-processing), and the likelihood ratio, the sum above, has the highest ROC
        curve (Neyman and Pearson). A baseline weaker than the attacker's gives too low a number.

    >>> round(bayes_combined_auc(0.78, flip=0.36), 2), round(bayes_combined_auc(0.5, flip=0.36), 2)
    (0.81, 0.64)
    """
    if (epsilon is None) == (flip is None):
        raise ParameterError(f"give one of epsilon and flip, got {epsilon} and {flip}")
    if (baseline_auc is None) == (scores is None) or (scores is None) != (labels is None):
        raise ParameterError("give baseline_auc, or scores with labels: one baseline, not both")
    if flip is None:
        flip = flip_for_epsilon(epsilon or 0.0, classes=classes)
    keep, other = _channel(flip, classes)
    if other == 0:
        return 1.0
    a = math.log(keep / other)
    odds = np.array([a, 0.0, -a])
    positive = np.array([keep, (classes - 2) * other, other])
    gaps = odds[:, None] - odds
    weights = positive[:, None] * positive[::-1]
    if baseline_auc is not None:
        return float((weights * _binormal_auc(_baseline(baseline_auc), gaps)).sum())
    logits = _logits(scores)  # type: ignore[arg-type]
    by_class = both_class_scores(logits, labels)  # type: ignore[arg-type]
    return sum(
        float(weights[gaps == gap].sum()) * _shifted_auc(by_class, float(gap))
        for gap in np.unique(gaps)
    )


def gaussian_combined_auc(mu: float, *, baseline_auc: float = 0.5) -> float:
    """Return the best AUC of a label under Gaussian noise together with a binormal baseline.

    ``Phi(sqrt((mu^2 + d^2) / 2))``, ``d = sqrt(2) Phi^-1(baseline_auc)``: two independent Gaussian
    observations are one at the distance of both.

    Guarantee:
        As for ``bayes_combined_auc``.

    >>> round(gaussian_combined_auc(1.0), 4)
    0.7602
    """
    d = _baseline(baseline_auc)
    return _NORMAL.cdf(math.sqrt((_mu(mu) ** 2 + d**2) / 2)) if d < math.inf else 1.0


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the delta at which Gaussian noise has this epsilon.

    ``Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)``

    Guarantee:
        Exact: no smaller delta holds.

    References:
        Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018),
        Theorem 8; Dong, Roth and Su (2022), Corollary 2.13.

    >>> round(gaussian_delta(1.0, 1.0), 4)
    0.1269
    """
    m, e = _mu(mu), _epsilon(epsilon)
    # e^epsilon Phi(-x) in logarithms: Phi may vanish where the product does not.
    x = m / 2 + e / m
    tail = math.erfc(x / math.sqrt(2)) / 2
    second = math.exp(e + math.log(tail)) if tail > 0 else 0.0
    return max(0.0, _NORMAL.cdf(m / 2 - e / m) - second)


def label_sum_kl(
    *, epsilon: float | None = None, mu: float | None = None, classes: int = 2
) -> float:
    """Return the symmetrised KL divergence between the randomised labels of two classes.

    ``2 epsilon (p - q)`` for randomised response, ``mu^2`` for Gaussian noise.

    Guarantee:
        For ``classes = 2`` no other mechanism of this epsilon has more: each is post-processing of
        binary randomised response (Kairouz, Oh and Viswanath, 2015, Theorem 2.5).

    >>> label_sum_kl(mu=2.0), round(label_sum_kl(epsilon=math.log(3)), 4)
    (4.0, 1.0986)
    """
    if (epsilon is None) == (mu is None):
        raise ParameterError(f"give one of epsilon and mu, got {epsilon} and {mu}")
    if mu is not None:
        return _mu(mu) ** 2
    keep, other = _channel(flip_for_epsilon(epsilon or 0.0, classes=classes), classes)
    return 2 * (epsilon or 0.0) * (keep - other)


def _binormal_auc(d: float, gaps: _Floats) -> _Floats:
    """Return ``P(L1 - L0 + gap > 0)``, ties half, for log-odds of a binormal score."""
    if d == math.inf:
        return np.ones_like(gaps)
    if d == 0:
        return np.asarray((1 + np.sign(gaps)) / 2)
    return np.asarray(np.vectorize(_NORMAL.cdf)((d * d + gaps) / (math.sqrt(2) * d)))


def _shifted_auc(by_class: ClassScores, gap: float) -> float:
    return (
        mann_whitney_u(ClassScores(by_class.positives + gap, by_class.negatives)) / by_class.pairs
    )


def _logits(scores: Values) -> _Floats:
    probs = float_vector(scores, name="scores").astype(np.float64)
    if probs.min() <= 0 or probs.max() >= 1:
        raise ParameterError(
            f"scores must be probabilities above 0 and below 1, got {probs.min():.6g} to "
            f"{probs.max():.6g}: calibrate them, e.g. apply sigmoid to logits"
        )
    return np.asarray(np.log(probs) - np.log1p(-probs))


def _channel(flip: float, classes: int) -> tuple[float, float]:
    """Return the probabilities of the own class and of each other one."""
    others = _classes(classes) - 1
    most = others / classes
    if not 0 <= flip <= most + 1e-12:
        raise ParameterError(
            f"flip must lie between 0 and {most:.6g} for {classes} classes, got {flip}: more flips "
            "than that would point to the label again"
        )
    return 1 - flip, flip / others


def _baseline(auc: float) -> float:
    """Return the distance of the two classes of a binormal score, in standard deviations."""
    if not 0.5 <= auc <= 1:
        raise ParameterError(
            f"baseline_auc must lie between 0.5 and 1, got {auc}: turn the score around"
        )
    return math.inf if auc == 1 else math.sqrt(2) * _NORMAL.inv_cdf(auc)


def _classes(classes: int) -> int:
    if positive_count(classes, name="classes") < 2:
        raise ParameterError(f"classes must be 2 or more, got {classes}")
    return classes


def _epsilon(epsilon: float) -> float:
    if not epsilon >= 0:
        raise ParameterError(f"epsilon must be at least 0, got {epsilon}: it bounds a ratio")
    return float(epsilon)


def _mu(mu: float) -> float:
    if not 0 < mu < math.inf:
        raise ParameterError(f"mu must be positive and finite, got {mu}: it is 1 / sigma")
    return float(mu)
