"""How well one score per example tells the labels: AUC, leak AUC and the best threshold."""

from __future__ import annotations

import numpy as np

from tacit.measure._arrays import Ints, Values, as_numpy, class_labels, float_vector, fraction
from tacit.measure._rank_statistics import ClassScores, both_class_scores, mann_whitney_u


def auc(scores: Values, labels: Values) -> float:
    """Return the area under the ROC curve of ``scores`` for ``labels`` in {0, 1}.

    ``P(score of a positive > score of a negative) + P(equal) / 2`` over all pairs of the sample.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022),
        section 3.2, "Leak AUC", and its appendix A.1.

    >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    by_class = both_class_scores(scores, labels)
    return mann_whitney_u(by_class) / by_class.pairs


def leak_auc(scores: Values, labels: Values) -> float:
    """Return the AUC in the better of the two directions, at least 0.5.

    ``max(auc, 1 - auc)``. Of one small batch it lies well above 0.5 even for noise (0.60 on average
    with 6 positives in 128 rows): ``pooled_leak`` fixes the direction once for many batches.
    Of more than two classes, each is taken against the rest, and this is the mean of all.

    References:
        Han and Guan, "GAN-based Federated Learning for Label Protection in Binary Classification"
        (2023), Eq. 11.

    >>> leak_auc([0.9, 0.6, 0.65, 0.2], [0, 0, 1, 1])
    0.75
    >>> leak_auc([0.1, 0.2, 0.3], [0, 1, 2])  # 1, 1/2 and 1
    0.8333333333333334
    """
    kinds = np.unique(as_numpy(labels, name="labels"))
    if len(kinds) > 2:
        truth = class_labels(labels, classes=int(kinds[-1]) + 1)
        return float(np.mean([leak_auc(scores, truth == kind) for kind in kinds]))
    value = auc(scores, labels)
    return max(value, 1 - value)


def quantile_over_steps(values: Values, q: float = 0.95) -> float:
    """Return the ``q`` quantile of one number per step, interpolated linearly.

    The 95% quantile shows the steps that leak most without depending on a single one.

    References:
        Li et al. (ICLR 2022), section 5.2.

    >>> quantile_over_steps([0.5, 0.6, 0.7, 0.8, 0.9], q=0.75)
    0.8
    """
    steps = float_vector(values, name="values").astype(np.float64)
    return float(np.quantile(steps, fraction(q, name="q")))


def detection_error(scores: Values, labels: Values, p: float = 0.5) -> float:
    """Return the smallest mixture error of a threshold on ``scores``, in either direction.

    ``min over A of p * FNR + (1 - p) * FPR`` where A, the set called positive, is
    ``{score >= t}`` or ``{score < t}`` for any t, also nothing or everything: in the report the
    set is free, so both directions count. The threshold is chosen with the labels at hand, which
    no attacker can do: the value errs in the attacker's favour.

    References:
        Technical Report of Label Leakage and Protection in Federated Learning, ``M`` and ``M_p``.
        There A runs over all sets of gradients; here over the half-lines of one score.

    >>> detection_error([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.25
    """
    weight = fraction(p, name="p")
    by_class = both_class_scores(scores, labels)
    missed, alarms = _mistakes(by_class)
    error = (
        weight * missed / by_class.positives.size + (1 - weight) * alarms / by_class.negatives.size
    )
    # "score < t" is wrong exactly where "score >= t" is right, in each class: 1 - error.
    return float(min(error.min(), 1 - error.max()))


def best_threshold_accuracy(scores: Values, labels: Values) -> float:
    """Return the accuracy of "1 when the score exceeds T" at the best T.

    One direction only, as published; the majority class alone is always among the candidates.

    References:
        Kariyappa and Qureshi, "ExPLOit: Extracting Private Labels in Split Learning", Eq. 13.

    >>> best_threshold_accuracy([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    by_class = both_class_scores(scores, labels)
    missed, alarms = _mistakes(by_class)
    return float(1 - (missed + alarms).min() / (by_class.positives.size + by_class.negatives.size))


def top_fraction(scores: Values, p: float) -> Ints:
    """Return labels in {0, 1}: the ``round(p * n)`` highest scores are 1.

    Of equal scores the earlier rows come first.

    References:
        Technical Report of Label Leakage and Protection in Federated Learning, section
        "2-norm Attack", second step.

    >>> top_fraction([0.3, 0.9, 0.1, 0.5], 0.5)
    array([0, 1, 0, 1])
    """
    values = float_vector(scores, name="scores")
    highest = np.argsort(-values, kind="stable")[: round(fraction(p, name="p") * values.size)]
    labels = np.zeros(values.size, dtype=np.int64)
    labels[highest] = 1
    return labels


def _mistakes(by_class: ClassScores) -> tuple[Ints, Ints]:
    """Count missed positives and false alarms of ``score >= t`` for every t, "never" at the end."""
    cuts = np.concatenate(by_class)
    missed = np.append(by_class.positives.searchsorted(cuts), by_class.positives.size)
    passed = np.append(by_class.negatives.searchsorted(cuts), by_class.negatives.size)
    return missed, by_class.negatives.size - passed
