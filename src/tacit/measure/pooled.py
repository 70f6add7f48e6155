"""The leak AUC of many batches together, with its interval and the band of pure noise."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import final

import numpy as np
from scipy.special import erf

from tacit.errors import InputError
from tacit.measure._arrays import Floats, Values, as_generator, class_labels, positive_count
from tacit.measure._rank_statistics import (
    ClassScores,
    class_scores,
    mann_whitney_u,
    null_variance,
    tie_sum,
)
from tacit.measure.intervals import Interval, bootstrap_u, chunks, draws, null_width, percentiles
from tacit.measure.leak import quantile_over_steps

_ENOUGH = 10  # from this many batches on, whole batches are drawn anew


@final
@dataclass(frozen=True, kw_only=True)
class PooledLeak:
    """What the batches of a run leak together.

    Attributes:
        leak_auc: the share of pairs (positive, negative) of one batch in which the positive scores
            higher, over all batches; the direction is fixed once.
        signed: the same share as it is, below 0.5 where positives score lower.
        low: lower end of its bootstrap interval, not below 0.5.
        high: upper end of its bootstrap interval.
        null_low: 0.5, the least a leak AUC can be.
        null_high: a score without information stays below this with probability ``level``.
        mean: the mean over batches of each batch's own ``max(auc, 1 - auc)``.
        q95: the 95% quantile over batches of the same.
        null_mean: what ``mean`` is for a score without information.
        null_q95: what ``q95`` is for a score without information and many batches.
        signed_q95: the 95% quantile over batches of each batch's own AUC, with its sign.
        null_signed_q95: what ``signed_q95`` is for a score without information and many batches.
        batches: how many batches were compared.
        examples: how many examples they hold.
        skipped: how many further batches held one class only.
    """

    leak_auc: float
    low: float
    high: float
    null_low: float
    null_high: float
    mean: float
    q95: float
    null_mean: float
    null_q95: float
    signed: float
    signed_q95: float
    null_signed_q95: float
    batches: int
    examples: int
    skipped: int


@final
class LeakMeter:
    """Collect scores batch by batch; keep a few numbers per batch.

    Four numbers a batch (32 bytes), plus the scores themselves while there are fewer than ten
    batches, because only then does the interval need them.

    >>> import numpy as np
    >>> meter = LeakMeter()
    >>> meter.add([0.1, 0.9, 0.2], [0, 1, 0])
    >>> meter.add([5.0, 7.0, 6.0], [0, 0, 1])
    >>> meter.compute(rng=np.random.default_rng(0)).leak_auc
    0.75
    """

    __slots__ = ("_by_class", "_numbers", "_skipped")

    def __init__(self) -> None:
        self._numbers = array("d")
        self._by_class: list[ClassScores] = []
        self._skipped = 0

    @property
    def batches(self) -> int:
        """How many batches with both classes were added."""
        return len(self._numbers) // 4

    def add(self, scores: Values, labels: Values) -> None:
        """Add one batch; a batch of one class has no pairs and is only counted."""
        by_class = class_scores(scores, labels)
        if not by_class.pairs:
            self._skipped += 1
            return
        n1, n0 = by_class.positives.size, by_class.negatives.size
        self._numbers.extend((n1, n0, mann_whitney_u(by_class), tie_sum(by_class)))
        if len(self._numbers) < 4 * _ENOUGH:
            self._by_class.append(by_class)
        else:
            self._by_class.clear()

    def compute(
        self, *, rng: np.random.Generator, resamples: int = 200, level: float = 0.95
    ) -> PooledLeak:
        """Return the record of everything added so far; more batches may follow."""
        as_generator(rng)
        positive_count(resamples, name="resamples")
        if not self._numbers:
            raise InputError(
                f"a pool needs a batch with both classes, got none and {self._skipped} of one "
                f"class; add larger batches"
            )
        table = np.array(self._numbers).reshape(-1, 4)
        if self._by_class:
            drawn = sum(bootstrap_u(r, rng=rng, resamples=resamples) for r in self._by_class)
            # Each batch estimates its own spread, so each costs one degree of freedom.
            size = int(table[:, :2].sum(axis=0).min())
            drawn, freedom = drawn / _pairs(table).sum(), size - len(table)
        else:
            drawn, size = _resampled_batches(table, rng=rng, resamples=resamples), len(table)
            freedom = size - 1
        interval = percentiles(drawn, level=level, size=size, freedom=freedom)
        return _record(table, interval, level=level, skipped=self._skipped)


def pooled_leak(
    batches: Iterable[tuple[Values, Values]],
    *,
    rng: np.random.Generator,
    resamples: int = 200,
    level: float = 0.95,
) -> PooledLeak:
    """Return what many batches of ``(scores, labels)`` leak together.

    ``sum over batches of U / sum of pairs``, then ``max(a, 1 - a)`` once. Only pairs inside
    one batch are compared, so scores of different steps need no common scale. The interval draws
    whole batches anew from ten batches on, examples within their batch and class below that.

    Guarantee:
        ``null_high`` uses the exact variance of the pool (any scores, ties included) when labels
        are dealt at random within each batch, and a normal shape. The interval is asymptotic.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022), section
        5.2, for ``q95``; van Elteren (1960) for the stratified statistic, here with every pair
        weighing the same. We depart from the per-batch leak AUC as a headline number because noise
        alone lifts it (``null_mean``).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(128) < 6
    >>> noise = pooled_leak([(rng.normal(size=128), y) for _ in range(100)], rng=rng)
    >>> noise.leak_auc < noise.null_high, round(noise.null_high, 2), round(noise.null_mean, 2)
    (True, 0.52, 0.6)
    """
    meter = LeakMeter()
    for scores, labels in batches:
        meter.add(scores, labels)
    return meter.compute(rng=rng, resamples=resamples, level=level)


def _record(table: Floats, interval: Interval, *, level: float, skipped: int) -> PooledLeak:
    """Turn the numbers of all batches and the interval of the signed AUC into the record."""
    positives, negatives, u, ties = table.T
    pairs = _pairs(table)
    variance = null_variance(positives, negatives, ties)
    signed = u.sum() / pairs.sum()
    low, high = _sign_free(interval, flipped=bool(signed < 0.5))
    each = np.maximum(u, pairs - u) / pairs
    spreads = np.sqrt(variance) / pairs
    reach = null_width(float(np.sqrt(variance.sum()) / pairs.sum()), level=level)
    return PooledLeak(
        leak_auc=float(max(signed, 1 - signed)),
        low=low,
        high=high,
        null_low=0.5,
        null_high=min(1.0, 0.5 + reach),
        mean=float(each.mean()),
        q95=quantile_over_steps(each),
        null_mean=0.5 + float(spreads.mean()) * math.sqrt(2 / math.pi),
        null_q95=0.5 + _null_quantile(spreads, 0.95),
        signed=float(signed),
        signed_q95=quantile_over_steps(u / pairs),
        null_signed_q95=0.5 + _null_quantile(spreads, 0.90),
        batches=len(table),
        examples=int(table[:, :2].sum()),
        skipped=skipped,
    )


def _null_quantile(spreads: Floats, q: float) -> float:
    """Return the ``q`` quantile of ``|x|`` where x is normal, with each spread equally often.

    >>> round(_null_quantile(np.array([2.0, 2.0]), 0.95), 3)
    3.92
    """
    sizes, counts = np.unique(spreads[spreads > 0], return_counts=True)
    still = len(spreads) - int(counts.sum())  # batches of equal scores are always at 0.5
    if still >= q * len(spreads):
        return 0.0
    low, high = 0.0, float(sizes[-1]) * 10
    for _ in range(50):
        middle = (low + high) / 2
        below = still + float(counts @ erf(middle / (sizes * math.sqrt(2))))
        low, high = (middle, high) if below < q * len(spreads) else (low, middle)
    return (low + high) / 2


def _sign_free(interval: Interval, *, flipped: bool) -> Interval:
    """Return the values that ``max(a, 1 - a)`` takes over an interval of ``a``."""
    low, high = (1 - interval.high, 1 - interval.low) if flipped else interval
    return Interval(max(0.5, low), max(high, 1 - low))


def _pairs(table: Floats) -> Floats:
    return table[:, 0] * table[:, 1]


def _resampled_batches(table: Floats, *, rng: np.random.Generator, resamples: int) -> Floats:
    """Return the stratified AUC of ``resamples`` draws of whole batches."""
    u_and_pairs = np.stack([table[:, 2], _pairs(table)], axis=1)
    parts = [draws(rng, rows, len(table)) @ u_and_pairs for rows in chunks(resamples, len(table))]
    u, pairs = np.concatenate(parts).T
    share: Floats = u / pairs
    return share


_COUNTS = ("batches", "examples", "skipped")


@final
class OneVsRest:
    """A ``LeakMeter`` for every class against the rest; its record is their mean.

    ``leak_auc = mean over classes c of max(a_c, 1 - a_c)`` with ``a_c`` the pooled AUC of the
    scores for "is of class c". A class that no batch had together with others is left out.

    Guarantee:
        The ends of the interval and of the band of noise are means of the classes' own: the mean
        leaks of scores without information stays below ``null_high`` at least as surely as one
        class's does.

    >>> meter = OneVsRest(3)
    >>> meter.add([3.0, 3.1, 1.0, 2.0, 2.1], [2, 2, 0, 1, 1])
    >>> round(meter.compute(rng=np.random.default_rng(0)).leak_auc, 3)  # 1, 2/3 and 1
    0.889
    """

    __slots__ = ("_meters",)

    def __init__(self, classes: int) -> None:
        if positive_count(classes, name="classes") < 2:
            raise InputError(f"one against the rest takes two classes or more, got {classes}")
        self._meters = [LeakMeter() for _ in range(classes)]

    @property
    def batches(self) -> int:
        """How many batches could be judged for the class that had most of them."""
        return max(meter.batches for meter in self._meters)

    def add(self, scores: Values, labels: Values) -> None:
        """Add one batch of scores that do not know of a class: all classes are judged by them."""
        truth = class_labels(labels, classes=len(self._meters))
        for number in range(len(self._meters)):
            self.add_class(number, scores, truth == number)

    def add_class(self, number: int, scores: Values, member: Values) -> None:
        """Add one batch of scores for "is of this class", with what is true."""
        self._meters[number].add(scores, member)

    def compute(
        self, *, rng: np.random.Generator, resamples: int = 200, level: float = 0.95
    ) -> PooledLeak:
        """Return the mean over classes of everything added so far; more batches may follow."""
        usable = [meter for meter in self._meters if meter.batches]
        if not usable:
            raise InputError("a pool needs a batch with two classes, got none; add larger batches")
        found = [meter.compute(rng=rng, resamples=resamples, level=level) for meter in usable]
        names = [field.name for field in fields(PooledLeak)]
        most = {name: max(getattr(one, name) for one in found) for name in _COUNTS}
        means = {n: float(np.mean([getattr(one, n) for one in found])) for n in names}
        return PooledLeak(**{**means, **most})


def meter_for(classes: int) -> LeakMeter | OneVsRest:
    """Return a ``LeakMeter`` for two classes, one per class against the rest for more."""
    return LeakMeter() if classes == 2 else OneVsRest(classes)
