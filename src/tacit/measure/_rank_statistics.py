"""The Mann-Whitney statistic U, on which the AUC, its null and its bootstrap rest.

U counts the pairs (positive, negative) in which the positive scores higher; a tie is half a pair.
Each class is sorted on its own (numpy sorts plain arrays with vector instructions, an argsort of
both together would be several times slower) and one is looked up in the other.
"""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from tacit.errors import InputError
from tacit.measure._arrays import Floats, Values, binary_labels, float_vector, require_same_length


@final
class ClassScores(NamedTuple):
    """The scores of the two classes, each in ascending order."""

    positives: Floats
    negatives: Floats

    @property
    def pairs(self) -> int:
        """How many (positive, negative) pairs there are."""
        return self.positives.size * self.negatives.size


def class_scores(scores: Values, labels: Values) -> ClassScores:
    """Check scores and labels and sort each class; a class may be empty."""
    values = float_vector(scores, name="scores")
    mask = binary_labels(labels)
    require_same_length(values, mask, names="scores and labels")
    by_class = ClassScores(values[mask], values[~mask])
    by_class.positives.sort()
    by_class.negatives.sort()
    return by_class


def both_class_scores(scores: Values, labels: Values) -> ClassScores:
    """Check scores and labels and sort each class; one class alone is refused."""
    by_class = class_scores(scores, labels)
    if not by_class.pairs:
        raise InputError(
            f"labels must hold both classes, got only {int(by_class.positives.size > 0)}; "
            f"leave such a batch out or pool batches with pooled_leak"
        )
    return by_class


def mann_whitney_u(by_class: ClassScores) -> float:
    """Return U: pairs in which the positive scores higher, ties counting half; AUC = U / pairs."""
    few, many = sorted(by_class, key=len)
    below = many.searchsorted(few)
    doubled = 2 * int(below.sum())
    if (many.take(below, mode="clip") == few).any():  # the second search only where it is needed
        doubled += int((many.searchsorted(few, "right") - below).sum())
    return doubled / 2 if few is by_class.positives else by_class.pairs - doubled / 2


def tie_sum(by_class: ClassScores) -> float:
    """Return the sum of ``t^3 - t`` over the groups of equal scores, t their size."""
    merged = np.sort(np.concatenate(by_class))
    starts = np.flatnonzero(merged[1:] != merged[:-1]) + 1
    if starts.size == merged.size - 1:
        return 0.0
    sizes = np.diff(starts, prepend=0, append=merged.size).astype(np.float64)
    return float((sizes**3 - sizes).sum())


def null_variance(positives: Floats, negatives: Floats, ties: Floats) -> Floats:
    """Return the variance of U when labels are dealt to the scores at random.

    ``n1 n0 / 12 * (n + 1 - ties / (n (n - 1)))`` with ``n = n1 + n0``; exact for any scores.
    """
    n = positives + negatives
    return positives * negatives / 12 * (n + 1 - ties / (n * (n - 1)))
