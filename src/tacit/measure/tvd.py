"""The total variation distance of two samples, from sets chosen without the rows they judge.

Plugging samples into the definition flatters the distance: with m bins, two samples of n from one
distribution are about ``sqrt(m / (pi n))`` apart (0.1 at n = 500, m = 16). Nearest neighbours fare
worse in many dimensions. So every set here is chosen on some folds of the rows and judged on
another: chance agreement then cancels, and what is left is a lower bound on average.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.errors import InputError
from tacit.measure._arrays import Bools, Floats, Ints, Values, row_matrix
from tacit.measure._discriminant import fold_numbers, held_out_signs, principal_coordinates

__all__ = ["tvd"]

_FOLDS = 10


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
        samples that hardly differ by about ``0.2 * sqrt(1 / na + 1 / nb)``): rows that judge a set
        had no say in it, so overfitting cannot raise the value. For rows of more than one number
        it can stay far below: differences beyond the second moments go unseen.

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
    line = rows_a.shape[1] == 1
    _require_rows(rows_a, rows_b, least=2 if line else 3)
    is_a = np.arange(len(rows_a) + len(rows_b)) < len(rows_a)
    rows = np.concatenate([rows_a, rows_b])
    signs = _signs_on_a_line(rows[:, 0], is_a) if line else _signs_in_space(rows, is_a)
    return max(0.0, float(signs[is_a].mean() - signs[~is_a].mean()) / 2)


def _signs_in_space(rows: Floats, is_a: Bools) -> Ints:
    """Return +1 where held-out rows look like ``a``, -1 like ``b``."""
    points = principal_coordinates(rows)
    if not points.shape[1]:
        return np.zeros(len(rows), dtype=np.int64)
    return held_out_signs(points, is_a)


def _signs_on_a_line(values: Floats, is_a: Bools) -> Ints:
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
    """Return the edges between the bins of ascending ``values`` and who prevails in each."""
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
