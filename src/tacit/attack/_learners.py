"""Learning from labelled rows: how they are dealt and judged, and a logistic regression.

A :class:`Lesson` is what they are taught with, dealt into rows to fit and rows to check. Each
returns a :class:`Learned` whose check has not seen the check rows, so learners are compared fairly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from tacit.errors import InputError
from tacit.measure import auc

__all__ = [
    "Bools",
    "Draws",
    "Floats",
    "Ints",
    "Learned",
    "Lesson",
    "as_logits",
    "cross_entropy",
    "deal",
    "kept_back",
    "learn_quadratic",
    "log_softmax",
    "quality",
    "tuned",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # of the likelihood against the penalty
_UNCHECKED = 1e-2  # the strength where too few rows are labelled to choose one
_CHECK = 5  # one row in so many is kept back to check
_CHECKED_ROWS = 4  # of each class at least: fewer would choose at random


@final
@dataclass(frozen=True, eq=False)
class Lesson:
    """Labelled rows, some of them kept back.

    Attributes:
        features: ``[m, p]``.
        classes: ``[m]``, numbered without gaps.
        check: ``[m]``, true for the rows kept back, maybe none; every class has a row to fit.
    """

    features: Floats
    classes: Ints
    check: Bools

    @property
    def count(self) -> int:
        """How many classes there are."""
        return int(self.classes.max()) + 1


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """A fitted learner.

    Attributes:
        checked: its logits ``[k, classes]`` for the rows kept back.
        logits: from features ``[n, p]`` to logits ``[n, classes]``.
    """

    checked: Floats
    logits: Callable[[Floats], Floats]


@final
class Draws:
    """Two generators set by one draw: for folds, and for networks."""

    def __init__(self, rng: torch.Generator) -> None:
        if not isinstance(rng, torch.Generator):
            raise InputError(
                f"rng must be a torch.Generator, got {type(rng).__name__}: "
                "write torch.Generator().manual_seed(0)"
            )
        seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))
        self.folds = np.random.default_rng(seed)
        self.network = torch.Generator().manual_seed(seed)


def deal(classes: Ints, groups: Ints, *, folds: int, rng: np.random.Generator) -> Ints:
    """Return the fold of each row: classes evenly spread, rows of one group together.

    A group counts as the class of its first row. Folds are filled in turn, each class going on
    where the last one ended.

    >>> deal(np.array([0, 0, 1, 1]), np.array([5, 6, 7, 7]), folds=2, rng=np.random.default_rng(0))
    array([0, 1, 0, 0])
    """
    _, first, member = np.unique(groups, return_index=True, return_inverse=True)
    # Groups in the order in which they come: their numbers carry no meaning.
    order = first.argsort()[rng.permutation(len(first))]
    order = order[classes[first[order]].argsort(kind="stable")]
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.arange(len(order)) % folds
    dealt: Ints = fold[member]
    return dealt


def kept_back(classes: Ints, groups: Ints, *, rng: np.random.Generator) -> Bools:
    """Return a mask of a fifth of each class, or of none where a class has too few to share."""
    check: Bools = deal(classes, groups, folds=_CHECK, rng=rng) == 0
    spare, rest = (np.bincount(classes[m], minlength=classes.max() + 1) for m in (check, ~check))
    enough = spare.min() >= _CHECKED_ROWS and rest.min() >= 1  # a group may be all of its class
    return check if enough else np.zeros_like(check)


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities ``[n, classes]``, finite however unlikely a class is."""
    peak = logits.max(axis=1, keepdims=True)
    found: Floats = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
    return found


def quality(logits: Floats, classes: Ints) -> float:
    """Return the AUC of each class against the rest, averaged over the classes; 0 of no rows."""
    if not len(classes):
        return 0.0
    scores = log_softmax(logits)
    columns = range(logits.shape[1]) if logits.shape[1] > 2 else (1,)
    return float(np.mean([auc(scores[:, c], classes == c) for c in columns]))


def learn_quadratic(lesson: Lesson, _rng: torch.Generator) -> Learned:
    """Fit a logistic regression, its strength chosen by the loss on the rows kept back."""
    strength, fitted = tuned(lesson)

    def refitted(rows: Floats) -> Floats:  # only when it is asked: most variants are not chosen
        return _regress(lesson.features, lesson.classes, strength)(rows)

    checked = fitted(lesson.features[lesson.check])
    return Learned(checked=checked, logits=refitted if len(checked) else fitted)


def tuned(lesson: Lesson) -> tuple[float, Callable[[Floats], Floats]]:
    """Return the best strength and the regression of that strength on the rows to fit.

    Best by the loss, not the AUC: log-odds of the right size compare from one fit to another.
    """
    features, classes = lesson.features[~lesson.check], lesson.classes[~lesson.check]
    if not lesson.check.any():
        return _UNCHECKED, _regress(features, classes, _UNCHECKED)
    found = []
    for strength in _STRENGTHS:
        fitted = _regress(features, classes, strength)
        logits = fitted(lesson.features[lesson.check])
        found.append((cross_entropy(logits, lesson.classes[lesson.check]), strength, fitted))
        if found[-1][0] > min(found)[0]:
            break  # the loss has one valley: beyond it, weaker penalties only take longer
    return min(found, key=lambda one: one[0])[1:]


def _regress(features: Floats, classes: Ints, strength: float) -> Callable[[Floats], Floats]:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - slow to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import

    if not features.shape[1]:
        return lambda rows: np.tile(np.log(np.bincount(classes)), (len(rows), 1))
    model: Any = LogisticRegression(C=strength, tol=1e-6, max_iter=300)
    with warnings.catch_warnings():
        # Few labelled rows are separable: the climb then ends far up, and anywhere there will do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, classes)
    slope, start = model.coef_.T, model.intercept_
    return lambda rows: as_logits(rows @ slope + start)


def as_logits(found: Floats) -> Floats:
    """Return scikit-learn's scores as ``[n, classes]``: for two classes it gives the difference."""
    columns = found[:, None] if found.ndim == 1 else found
    return np.insert(columns, 0, 0.0, axis=1) if columns.shape[1] == 1 else columns


def cross_entropy(logits: Floats, classes: Ints) -> float:
    """Return the cross-entropy of the logits."""
    return float(-log_softmax(logits)[np.arange(len(classes)), classes].mean())
