"""The total variation distance of two samples, from sets chosen without the rows they judge.

Plugging samples into the definition overstates the distance: with m bins, two samples of n from one
distribution are about ``sqrt(m / (pi n))`` apart (0.1 at n = 500, m = 16). Nearest neighbours fare
worse in many dimensions. So every set here is chosen on some folds of the rows and judged on
another: chance agreement then cancels, and what is left is a lower bound on average.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple, final

import numpy as np
from scipy.linalg import solve_triangular

from tacit.errors import InputError
from tacit.measure._arrays import Bools, Floats, Ints, Values, row_matrix

_FOLDS = 10
_FIT_FOLDS = 8
_FIT_FOLDS_WIDE = 4  # with more coordinates than _WIDE one fit takes long
_WIDE = 512
_LEAST_SPREAD = 1e-6  # of the total variance: classes that are points still get a width


@final
class _Gaussian(NamedTuple):
    mean: Floats
    scale: Floats
    root: Floats  # the Cholesky factor of the correlations


def principal_coordinates(rows: Floats) -> Floats:
    """Return the centred rows in their principal directions, in units of the largest entry.

    With fewer rows than coordinates there are at most n - 1 such directions and nothing is lost.
    Directions with little variance stay: what separates the samples may lie there alone.
    """
    rows = rows - rows.mean(axis=0)
    largest = np.abs(rows).max()
    if largest == 0:
        return np.empty((len(rows), 0))
    left, spread, _ = np.linalg.svd(rows / largest, full_matrices=False)
    live = spread > max(rows.shape) * np.finfo(np.float64).eps * spread[0]
    points: Floats = left[:, live] * spread[live]
    return points


def fold_numbers(is_a: Bools, folds: int) -> Ints:
    """Deal the rows of each sample to the folds in turn."""
    return np.where(is_a, is_a.cumsum() - 1, (~is_a).cumsum() - 1) % folds


def held_out_signs(points: Floats, is_a: Bools) -> Ints:
    """Return +1 for rows that look like sample a, -1 for b, decided by the other folds.

    Fits leave out two folds at a time. For the rows of fold k, the fits without k score them, and
    the threshold is the best one for the other folds' rows, each scored by a fit without k and
    without its own fold. So nothing that decides over a row has seen which sample it is from.
    """
    smaller = min(int(is_a.sum()), int((~is_a).sum()))
    folds = min(_FIT_FOLDS if points.shape[1] <= _WIDE else _FIT_FOLDS_WIDE, smaller)
    fold = fold_numbers(is_a, folds)
    scores = np.zeros((folds, len(points)))  # row k: by fits without fold k
    for j, k in combinations(range(folds), 2):
        out = (fold == j) | (fold == k)
        ratio = _log_ratio(points[~out], is_a[~out], points[out])
        scores[j, out] += np.where(fold[out] == j, ratio / (folds - 1), ratio)
        scores[k, out] += np.where(fold[out] == k, ratio / (folds - 1), ratio)
    signs = np.empty(len(points), dtype=np.int64)
    for k in range(folds):
        own = fold == k
        threshold = _best_threshold(scores[k, ~own], is_a[~own])
        signs[own] = np.where(scores[k, own] > threshold, 1, -1)
    return signs


def _log_ratio(known: Floats, is_a: Bools, asked: Floats) -> Floats:
    """Return the log-likelihood ratio of ``asked`` rows under the fits to the two samples."""
    a, b = known[is_a], known[~is_a]
    squares = ((a - a.mean(axis=0)) ** 2).sum(axis=0) + ((b - b.mean(axis=0)) ** 2).sum(axis=0)
    pooled = squares / max(len(known) - 2, 1)
    width = np.sqrt(np.maximum(pooled, _LEAST_SPREAD * known.var(axis=0)))
    width[width == 0] = 1.0
    ratio = _log_density(_fit(a, width), asked) - _log_density(_fit(b, width), asked)
    return np.round(ratio, 9)  # rounding noise must not order rows that are alike


def _fit(rows: Floats, width: Floats) -> _Gaussian:
    """Fit mean, variances and correlations; ``width`` is the pooled standard deviation."""
    n = len(rows)
    mean = rows.mean(axis=0)
    if n < 3:
        return _Gaussian(mean, width, np.eye(len(mean)))
    centred = (rows - mean) / width
    variance = (centred**2).sum(axis=0) / (n - 1)
    noise = n / (n - 1) ** 3 * ((centred**2 - (centred**2).mean(axis=0)) ** 2).sum()
    trust = 1 - _intensity(noise, ((variance - 1) ** 2).sum(), n)
    scale = width * np.sqrt(1 - trust + trust * variance)
    unit = centred / np.sqrt(np.where(variance > 0, variance, 1.0))
    correlation = unit.T @ unit / (n - 1)
    noise = ((unit**2).T @ unit**2 / (n - 1) - correlation**2) / (n - 1)
    np.fill_diagonal(noise, 0.0)
    np.fill_diagonal(correlation, 0.0)
    correlation *= 1 - _intensity(noise.sum(), (correlation**2).sum(), n)
    np.fill_diagonal(correlation, 1.0)
    return _Gaussian(mean, scale, np.linalg.cholesky(correlation))


def _intensity(noise: float, signal: float, n: int) -> float:
    """Return how far to shrink: noise over signal, never less than one part in n, at most 1."""
    return float(min(1.0, max(noise / signal, 1 / n))) if signal > 0 else 1.0


def _log_density(fit: _Gaussian, rows: Floats) -> Floats:
    standard = ((rows - fit.mean) / fit.scale).T
    white = solve_triangular(fit.root, standard, lower=True, check_finite=False)
    volume = np.log(fit.scale).sum() + np.log(np.diag(fit.root)).sum()
    density: Floats = -(white**2).sum(axis=0) / 2 - volume
    return density


def _best_threshold(scores: Floats, is_a: Bools) -> float:
    """Return the middle of the gap at which ``score > t`` best picks sample a from b."""
    order = np.argsort(scores, kind="stable")
    scores = scores[order]
    n_a, n_b = int(is_a.sum()), int((~is_a).sum())
    gain = np.append(0, np.where(is_a[order], -n_b, n_a).cumsum())  # after leaving out the lowest
    padded = np.concatenate([scores[:1] - 1, scores, scores[-1:] + 1])
    gain = np.where(padded[1:] > padded[:-1], gain, gain.min() - 1)  # no cut between equal scores
    best = np.flatnonzero(gain == gain.max())
    cut = best[len(best) // 2]
    return float(padded[cut] + padded[cut + 1]) / 2


def tvd(a: Values, b: Values) -> float:
    """Return an estimate of the total variation distance of the distributions of two samples.

    ``TV(P, Q) = sup over sets A of |P(A) - Q(A)|``, estimated as ``P(A) - Q(A)`` on held-out rows.

    ``[n]`` or ``[n, 1]``: A is a union of bins that hold equal mass of the even mixture of both
    samples, ``2 * ceil(n^(1/3))`` of them (n the smaller sample): the rate that balances the
    width of a bin against the noise in it, even so that samples that do not overlap are split
    between two bins. ``[n, ...]``: trailing dimensions are one row, and A is where a shrinkage
    quadratic discriminant favours ``a``: means, variances and correlations, each trusted as far
    as the sample supports it. Folds go by row number: the same input gives the same number.

    Guarantee:
        On average not above the true distance (before cutting at 0, which lifts the value for
        samples that hardly differ by about ``0.2 * sqrt(1 / na + 1 / nb)``): a set is judged on
        rows that it was not chosen on, so overfitting cannot raise the value. For rows of more than
        one number it can stay far below: differences beyond the second moments are not found.

    References:
        Han and Guan, "GAN-based Federated Learning for Label Protection in Binary Classification"
        (2023), Eq. 12. The paper does not say how it estimates the supremum.

    >>> tvd([0.0, 0.1, 0.2, 0.3], [1.0, 1.1, 1.2, 1.3])
    1.0
    >>> tvd([0.0, 0.1, 0.2, 0.3], [0.0, 0.1, 0.2, 0.3])
    0.0
    """
    rows_a, rows_b = row_matrix(a, name="a"), row_matrix(b, name="b")
    if rows_a.shape[1] != rows_b.shape[1]:
        raise InputError(
            f"rows of a and b must have equal length, got {rows_a.shape[1]} and "
            f"{rows_b.shape[1]}; compare samples of the same quantity"
        )
    scalar = rows_a.shape[1] == 1
    _require_rows(rows_a, rows_b, least=2 if scalar else 3)
    is_a = np.arange(len(rows_a) + len(rows_b)) < len(rows_a)
    rows = np.concatenate([rows_a, rows_b])
    signs = _signs_by_bins(rows[:, 0], is_a) if scalar else _signs_by_discriminant(rows, is_a)
    return max(0.0, float(signs[is_a].mean() - signs[~is_a].mean()) / 2)


def _signs_by_discriminant(rows: Floats, is_a: Bools) -> Ints:
    """Return +1 where held-out rows look like ``a``, -1 like ``b``."""
    points = principal_coordinates(rows)
    if not points.shape[1]:
        return np.zeros(len(rows), dtype=np.int64)
    return held_out_signs(points, is_a)


def _signs_by_bins(values: Floats, is_a: Bools) -> Ints:
    """Return for each row which sample prevails in its bin, judged by the other folds."""
    smaller = min(int(is_a.sum()), int((~is_a).sum()))
    bins = 2 * math.ceil(smaller ** (1 / 3))
    order = np.argsort(values, kind="stable")
    values, from_a = values[order], is_a[order]
    fold = fold_numbers(is_a, min(_FOLDS, smaller))[order]
    signs = np.empty(len(values), dtype=np.int64)
    for k in range(int(fold.max()) + 1):
        judged = fold == k
        edges, prevailing = _bins(values[~judged], from_a[~judged], bins)
        signs[order[judged]] = prevailing[edges.searchsorted(values[judged])]
    return signs


def _bins(values: Floats, from_a: Bools, bins: int) -> tuple[Floats, Ints]:
    """Return the edges between the bins of ascending ``values`` and the sign of the surplus."""
    n_a, n_b = int(from_a.sum()), int((~from_a).sum())
    # Integer masses: both samples weigh n_a * n_b in total, so ties are exact ties.
    mass = np.where(from_a, n_b, n_a).cumsum()
    targets = -(-2 * n_a * n_b * np.arange(1, bins) // bins)
    last = np.unique(values[mass.searchsorted(targets)])
    last = last[last < values[-1]]
    edges = last / 2 + values[values.searchsorted(last, "right")] / 2  # halfway to the next value
    where = edges.searchsorted(values)
    surplus = np.bincount(where, np.where(from_a, n_b, -n_a), minlength=edges.size + 1)
    return edges, np.sign(surplus).astype(np.int64)


def _require_rows(a: Floats, b: Floats, *, least: int) -> None:
    if min(len(a), len(b)) < least:
        raise InputError(
            f"each sample needs at least {least} rows, got {len(a)} and {len(b)}; pool more batches"
        )
