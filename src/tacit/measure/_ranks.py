"""What the AUC, its null and its bootstrap share: the two sorted classes and their wins.

A win is a pair (positive, negative) in which the positive scores higher; a tie is half a win.
Each class is sorted on its own (numpy sorts plain arrays with vector instructions, an argsort of
both together would be several times slower) and one is looked up in the other.
"""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from tacit.errors import InputError
from tacit.measure._arrays import Floats, Values, binary_labels, float_vector, require_same_length


@final
class Ranked(NamedTuple):
    """The scores of the two classes, each in ascending order."""

    positives: Floats
    negatives: Floats

    @property
    def pairs(self) -> int:
        """How many (positive, negative) pairs there are."""
        return self.positives.size * self.negatives.size


def split(scores: Values, labels: Values) -> Ranked:
    """Check scores and labels and sort each class; a class may be empty."""
    values = float_vector(scores, name="scores")
    mask = binary_labels(labels)
    require_same_length(values, mask, names="scores and labels")
    ranked = Ranked(values[mask], values[~mask])
    ranked.positives.sort()
    ranked.negatives.sort()
    return ranked


def rank(scores: Values, labels: Values) -> Ranked:
    """Check scores and labels and sort each class; one class alone is refused."""
    ranked = split(scores, labels)
    if not ranked.pairs:
        raise InputError(
            f"labels must hold both classes, got only {int(ranked.positives.size > 0)}; "
            f"leave such a batch out or pool batches with pooled_leak"
        )
    return ranked


def wins(ranked: Ranked) -> float:
    """Return the Mann-Whitney statistic: the wins of the positives, ties counting half."""
    few, many = sorted(ranked, key=len)
    below = many.searchsorted(few)
    doubled = 2 * int(below.sum())
    if (many.take(below, mode="clip") == few).any():  # the second search only where it is needed
        doubled += int((many.searchsorted(few, "right") - below).sum())
    return doubled / 2 if few is ranked.positives else ranked.pairs - doubled / 2


def tie_sum(ranked: Ranked) -> float:
    """Return the sum of ``t^3 - t`` over the groups of equal scores, t their size."""
    merged = np.sort(np.concatenate(ranked))
    starts = np.flatnonzero(merged[1:] != merged[:-1]) + 1
    if starts.size == merged.size - 1:
        return 0.0
    sizes = np.diff(starts, prepend=0, append=merged.size).astype(np.float64)
    return float((sizes**3 - sizes).sum())


def null_variance(positives: Floats, negatives: Floats, ties: Floats) -> Floats:
    """Return the variance of the wins when labels are dealt to the scores at random.

    ``n1 n0 / 12 * (n + 1 - ties / (n (n - 1)))`` with ``n = n1 + n0``; exact for any scores.
    """
    n = positives + negatives
    return positives * negatives / 12 * (n + 1 - ties / (n * (n - 1)))
