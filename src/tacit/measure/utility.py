"""How good predicted probabilities are: log loss, normalised cross-entropy, calibration, accuracy.

Probabilities are ``[n]`` (of the positive class, labels 0 and 1) or ``[n, K]`` (one column per
class, labels 0 to K - 1); ``[n]`` means the two columns ``1 - p`` and ``p``.
"""

from __future__ import annotations

import numpy as np

from tacit.errors import InputError
from tacit.measure._arrays import (
    Bools,
    Floats,
    Ints,
    Values,
    class_labels,
    positive_count,
    probabilities,
    require_same_length,
)


def log_loss(probs: Values, labels: Values) -> float:
    """Return the mean negative log-probability of the true class, in nats.

    ``-mean(log p[true class])``. Probabilities are first clipped to ``[eps, 1 - eps]``, eps being
    the rounding unit of their type (2.2e-16 for float64, 1.2e-7 for float32 and shorter), so one
    confident mistake costs at most ``-log eps`` and not infinity.

    >>> round(log_loss([0.9, 0.2, 0.6], [1, 0, 1]), 4)
    0.2798
    """
    table, truth = _checked(probs, labels)
    eps = np.finfo(table.dtype).eps
    likely = np.clip(table[np.arange(len(truth)), truth], eps, 1 - eps)
    return float(-np.log(likely.astype(np.float64)).mean())


def nce(probs: Values, labels: Values) -> float:
    """Return the log loss relative to that of always predicting the class frequencies.

    ``log_loss / H(frequencies of the labels)``: 1 is no better than the base rate, lower is better.

    References:
        Kariyappa and Qureshi, "ExPLOit: Extracting Private Labels in Split Learning", section 5
        (footnote on normalised cross-entropy) and the denominator of Eq. 8, after He et al.,
        "Practical Lessons from Predicting Clicks on Ads at Facebook" (2014).

    >>> round(nce([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1]), 4)
    1.0
    """
    _, truth = _checked(probs, labels)
    counts = np.bincount(truth)
    rates = counts[counts > 0] / len(truth)
    if len(rates) < 2:
        raise InputError(
            f"labels must hold at least two classes, got only {truth[0]}; "
            f"the base rate of one class has no entropy to divide by"
        )
    return log_loss(probs, labels) / float(-(rates * np.log(rates)).sum())


def accuracy(probs: Values, labels: Values) -> float:
    """Return the share of examples whose most probable class is the true one.

    Of equal probabilities the lower class counts, so ``p = 0.5`` predicts 0.

    >>> accuracy([0.9, 0.2, 0.4], [1, 0, 1])
    0.6666666666666666
    """
    table, truth = _checked(probs, labels)
    return float((table.argmax(axis=1) == truth).mean())


def ace(probs: Values, labels: Values, bins: int = 15) -> float:
    """Return the adaptive calibration error.

    ``mean over classes and ranges of |share of the class - mean probability|``, where the ranges of
    a class hold equally many of its predicted probabilities.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning" (2019), ACE. Equal probabilities
        stay in one range, so the order of the rows does not matter and fewer ranges may be left;
        the mean is over those that hold an example.

    >>> ace([0.25, 0.25, 0.25, 0.25], [0, 0, 0, 1])
    0.0
    >>> round(ace([0.1, 0.4, 0.6, 0.9], [0, 0, 1, 1], bins=2), 4)
    0.25
    """
    table, truth = _checked(probs, labels)
    ranges = positive_count(bins, name="bins")
    return float(np.mean([_gap(p, truth == c, ranges) for c, p in enumerate(table.T)]))


def _gap(probs: Floats, hits: Bools, bins: int) -> float:
    """Return the mean gap between hits and probabilities over the ranges of one class."""
    starts = np.rint(np.arange(bins) * (len(probs) / bins)).astype(np.int64)
    edges = np.unique(np.sort(probs)[np.minimum(starts, len(probs) - 1)])
    where = edges.searchsorted(probs, "right") - 1
    sizes = np.bincount(where)
    sums = np.bincount(where, hits - probs.astype(np.float64))
    return float((np.abs(sums) / sizes).mean())


def _checked(probs: Values, labels: Values) -> tuple[Floats, Ints]:
    table = probabilities(probs)
    truth = class_labels(labels, classes=table.shape[1])
    require_same_length(table, truth, names="probs and labels")
    return table, truth
