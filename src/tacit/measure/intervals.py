"""How far chance alone can move an AUC: the bootstrap interval and the band of pure noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
from scipy.special import stdtrit

from tacit.errors import InputError, ParameterError
from tacit.measure._arrays import (
    Floats,
    Ints,
    Values,
    as_generator,
    binary_labels,
    open_fraction,
    positive_count,
)
from tacit.measure._rank_statistics import ClassScores, both_class_scores

_CHUNK = 1 << 20  # resampled entries held at once, some 50 MB; never less than one resample


@final
class Interval(NamedTuple):
    """An interval with both of its ends."""

    low: float
    high: float


def bootstrap_u(by_class: ClassScores, *, rng: np.random.Generator, resamples: int) -> Floats:
    """Return the U statistic of ``resamples`` draws with replacement within each class.

    The rank of a positive among the negatives never changes, only how often each is drawn: every
    resample costs two counts and one running sum.
    """
    below = by_class.negatives.searchsorted(by_class.positives, "left")
    up_to = by_class.negatives.searchsorted(by_class.positives, "right")
    parts = []
    for rows in chunks(resamples, by_class.positives.size + by_class.negatives.size):
        drawn = draws(rng, rows, by_class.positives.size)
        running = np.zeros((rows, by_class.negatives.size + 1))
        draws(rng, rows, by_class.negatives.size).cumsum(axis=1, out=running[:, 1:])
        parts.append((drawn * (running[:, below] + running[:, up_to])).sum(axis=1) / 2)
    return np.concatenate(parts)


def percentiles(drawn: Floats, *, level: float, size: int, freedom: int) -> Interval:
    """Return the expanded percentile interval of ``drawn``; see ``bootstrap_auc``."""
    open_fraction(level, name="level")
    if freedom < 1:
        return Interval(0.0, 1.0)
    reach = math.sqrt(size / freedom) * float(stdtrit(freedom, (1 + level) / 2))
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(float(low), float(high))


def chunks(total: int, width: int) -> Iterator[int]:
    """Split ``total`` rows of ``width`` entries so that no part exceeds the memory bound."""
    step = max(1, _CHUNK // width)
    for start in range(0, total, step):
        yield min(step, total - start)


def draws(rng: np.random.Generator, rows: int, size: int) -> Ints:
    """Return how often each of ``size`` items is drawn in ``size`` draws, for each row."""
    picks = rng.integers(size, size=(rows, size))
    picks += np.arange(0, rows * size, size)[:, None]
    return np.bincount(picks.ravel(), minlength=rows * size).reshape(rows, size)


def bootstrap_auc(
    scores: Values,
    labels: Values,
    *,
    rng: np.random.Generator,
    resamples: int = 200,
    level: float = 0.95,
) -> Interval:
    """Return a bootstrap interval of ``auc``, drawing examples anew within each class.

    The percentile interval with its tails widened from the normal to Student's t, because a sample
    of m spreads like m - 1: without that, few positives give too short an interval. One example of
    a class says nothing about its spread: the interval is then [0, 1].

    Guarantee:
        Asymptotic only. At an AUC of exactly 0 or 1 all resamples agree and the interval has no
        width; compare with ``null_band`` then.

    References:
        Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), the
        expanded percentile interval, with m the size of the smaller class.

    >>> import numpy as np
    >>> y = np.arange(200) % 2
    >>> low, high = bootstrap_auc(y + np.sin(np.arange(200)), y, rng=np.random.default_rng(0))
    >>> round(low, 1), round(high, 1)
    (0.8, 0.9)
    """
    by_class = both_class_scores(scores, labels)
    count = positive_count(resamples, name="resamples")
    drawn = bootstrap_u(by_class, rng=as_generator(rng), resamples=count) / by_class.pairs
    smaller = min(by_class.positives.size, by_class.negatives.size)
    return percentiles(drawn, level=level, size=smaller, freedom=smaller - 1)


def null_band(
    labels: Values | None = None,
    *,
    positives: int | None = None,
    negatives: int | None = None,
    level: float = 0.95,
) -> Interval:
    """Return where ``leak_auc`` falls with probability ``level`` if the score knows nothing.

    ``[0.5, 0.5 + z * sd]``, ``sd^2 = (n1 + n0 + 1) / (12 n1 n0)``, z the two-sided normal quantile
    (leak AUC has no sign), cut at 1. Give the labels, or the two counts.

    Guarantee:
        The variance is exact for scores without ties, and too large with ties, which widens the
        band; the normal shape is an approximation from about 5 examples of each class on.

    References:
        Mann and Whitney (1947), the variance of U.

    >>> low, high = null_band(positives=6, negatives=122)
    >>> low, round(high, 3)
    (0.5, 0.738)
    """
    n1, n0 = _counts(labels, positives, negatives)
    sd = math.sqrt((n1 + n0 + 1) / (12 * n1 * n0))
    return Interval(0.5, min(1.0, 0.5 + null_width(sd, level=level)))


def null_width(sd: float, *, level: float) -> float:
    """Return z * sd, where a normal deviation stays within z * sd with probability ``level``."""
    return NormalDist().inv_cdf((1 + open_fraction(level, name="level")) / 2) * sd


def _counts(labels: Values | None, n1: int | None, n0: int | None) -> tuple[int, int]:
    """Return the two class counts, given as labels or as numbers but not as both."""
    if labels is not None and n1 is None and n0 is None:
        mask = binary_labels(labels)
        n1 = int(np.count_nonzero(mask))
        n0 = mask.size - n1
    elif labels is not None or n1 is None or n0 is None:
        raise ParameterError(
            f"null_band takes labels alone, or positives and negatives, got positives={n1} and "
            f"negatives={n0} {'with' if labels is not None else 'without'} labels; give one of both"
        )
    if min(n1, n0) < 1:
        raise InputError(
            f"both classes need an example, got {n1} positives and {n0} negatives; "
            f"there is no AUC of one class"
        )
    return n1, n0
