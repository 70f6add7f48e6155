"""A shrinkage quadratic discriminant whose every decision is made by rows other than its own.

Two Gaussians are fitted in the principal coordinates of all rows (found without knowing which
sample a row belongs to). Two things are shrunk, each by the amount that minimises its expected
squared error: class variances towards their pooled value, class correlations towards none. With
much data this is the quadratic discriminant, with few rows and many coordinates a linear one.

References:
    Schaefer and Strimmer, "A shrinkage approach to large-scale covariance matrix estimation"
    (2005); Opgen-Rhein and Strimmer (2007) for the variances, here with the pooled variance as
    target instead of the median.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple, final

import numpy as np
from scipy.linalg import solve_triangular

from tacit.measure._arrays import Bools, Floats, Ints

__all__ = ["fold_numbers", "held_out_signs", "principal_coordinates"]

_FOLDS = 8
_FOLDS_WIDE = 4  # with more coordinates than _WIDE one fit takes long
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
    folds = min(_FOLDS if points.shape[1] <= _WIDE else _FOLDS_WIDE, smaller)
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
