"""Drawing anew: bootstrap samples of the two classes, and the interval that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple, final

import numpy as np
from scipy.special import stdtrit

from tacit.measure._arrays import Floats, Ints, open_fraction
from tacit.measure._ranks import Ranked

__all__ = ["Interval", "chunks", "draws", "percentiles", "resampled_wins"]

_CHUNK = 1 << 20  # resampled entries held at once, some 50 MB; never less than one resample


@final
class Interval(NamedTuple):
    """The two ends of an interval."""

    low: float
    high: float


def resampled_wins(ranked: Ranked, *, rng: np.random.Generator, resamples: int) -> Floats:
    """Return the wins in each of ``resamples`` draws with replacement within each class.

    Where a positive stands among the negatives never changes, only how often each is drawn: every
    resample costs two counts and one running sum.
    """
    below = ranked.negatives.searchsorted(ranked.positives, "left")
    up_to = ranked.negatives.searchsorted(ranked.positives, "right")
    parts = []
    for rows in chunks(resamples, ranked.positives.size + ranked.negatives.size):
        drawn = draws(rng, rows, ranked.positives.size)
        running = np.zeros((rows, ranked.negatives.size + 1))
        draws(rng, rows, ranked.negatives.size).cumsum(axis=1, out=running[:, 1:])
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
