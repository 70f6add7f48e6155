"""Classifiers fitted to labelled rows: second-order features, a logistic regression, a network.

Each takes :class:`LabelledRows`, which has rows to fit and rows that are held out, and returns a
:class:`FittedClassifier` with its logits for the held-out rows, by which classifiers are compared.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from tacit.attack.spectral import principal_coordinates
from tacit.errors import InputError
from tacit.measure import auc
from tacit.rows import norms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# The logistic regression, and the rows that are held out.
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # of the likelihood against the penalty
_UNCHECKED = 1e-2  # the strength where too few rows are labelled to choose one
_CHECK = 5  # one row in so many is held out
_CHECKED_ROWS = 4  # held-out rows of each class at least: with fewer, chance would choose

# The network.
_HIDDEN = 64
_EPOCHS, _PATIENCE, _UNCHECKED_EPOCHS = 100, 12, 10
_BATCH, _RATE, _DECAY, _GAIN = 256, 5e-3, 1.0, 0.5
_WORTHWHILE = 1e-4  # a smaller fall of the loss does not count as progress

# Second-order features.
_DIRECTIONS = 1024  # coordinates at most: time grows with them
_SQUARES = 256
_PRODUCTS = 12
# There are many squares and products. At a smaller scale the same penalty restrains them more.
_SECOND = 0.3
# Weak directions are scaled down too: most of them hold only rounding, but some can be learnt from.
_FADE, _FAINTEST = 0.25, 0.05
# Coordinates are clamped at this many standard deviations: the square of an outlier would outweigh
# all others.
_FAR = 10.0
_FLOOR = 1e-9  # of the mean energy: below it, energies differ by rounding alone
_FLAT = 1e-8  # features have no unit: less than this is rounding


@final
@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Labelled rows, some of them held out.

    Attributes:
        features: ``[m, p]``.
        classes: ``[m]``, numbered without gaps.
        check: ``[m]``, true for the rows held out, maybe none; every class has a row to fit.
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
class FittedClassifier:
    """A classifier with its logits for the held-out rows.

    Attributes:
        checked: ``[k, classes]``, the logits of the held-out rows, which it was not fitted to.
        logits: maps features ``[n, p]`` to logits ``[n, classes]``; it may have been fitted to all
            rows.
    """

    checked: Floats
    logits: Callable[[Floats], Floats]


@final
class SeededGenerators:
    """Two generators seeded by one draw: numpy's for folds, torch's for networks."""

    def __init__(self, rng: torch.Generator) -> None:
        if not isinstance(rng, torch.Generator):
            raise InputError(
                f"rng must be a torch.Generator, got {type(rng).__name__}: "
                "write torch.Generator().manual_seed(0)"
            )
        seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))
        self.folds = np.random.default_rng(seed)
        self.network = torch.Generator().manual_seed(seed)


def stratified_folds(classes: Ints, groups: Ints, *, folds: int, rng: np.random.Generator) -> Ints:
    """Return the fold of each row: classes evenly spread, rows of one group together.

    A group counts as the class of its first row. Groups go to the folds in turn, and each class
    starts at the fold after the one where the last class ended.

    >>> classes, groups = np.array([0, 0, 1, 1]), np.array([5, 6, 7, 7])
    >>> stratified_folds(classes, groups, folds=2, rng=np.random.default_rng(0))
    array([0, 1, 0, 0])
    """
    _, first, member = np.unique(groups, return_index=True, return_inverse=True)
    # Groups in the order of their first row: the result must not depend on their numbers.
    order = first.argsort()[rng.permutation(len(first))]
    order = order[classes[first[order]].argsort(kind="stable")]
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.arange(len(order)) % folds
    found: Ints = fold[member]
    return found


def held_out_mask(classes: Ints, groups: Ints, *, rng: np.random.Generator) -> Bools:
    """Return a mask of a fifth of each class, or of no row where a class has too few."""
    check: Bools = stratified_folds(classes, groups, folds=_CHECK, rng=rng) == 0
    spare, rest = (np.bincount(classes[m], minlength=classes.max() + 1) for m in (check, ~check))
    enough = spare.min() >= _CHECKED_ROWS and rest.min() >= 1  # a group may be all of its class
    return check if enough else np.zeros_like(check)


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities ``[n, classes]``, finite however unlikely a class is."""
    peak = logits.max(axis=1, keepdims=True)
    found: Floats = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
    return found


def mean_auc(logits: Floats, classes: Ints) -> float:
    """Return the AUC of each class against the rest, averaged over the classes; 0 of no rows."""
    if not len(classes):
        return 0.0
    scores = log_softmax(logits)
    columns = range(logits.shape[1]) if logits.shape[1] > 2 else (1,)
    return float(np.mean([auc(scores[:, c], classes == c) for c in columns]))


def fit_quadratic(data: LabelledRows, _rng: torch.Generator) -> FittedClassifier:
    """Fit a logistic regression, its strength chosen by the loss on the rows held out."""
    strength, fitted = fit_regression(data)

    def refitted(rows: Floats) -> Floats:  # fitted only when called: most variants are not chosen
        return _regress(data.features, data.classes, strength)(rows)

    checked = fitted(data.features[data.check])
    return FittedClassifier(checked=checked, logits=refitted if len(checked) else fitted)


def fit_regression(data: LabelledRows) -> tuple[float, Callable[[Floats], Floats]]:
    """Return the best strength and the regression of that strength on the rows to fit.

    Best by the loss, not the AUC: log-odds of the right size compare from one fit to another.
    """
    features, classes = data.features[~data.check], data.classes[~data.check]
    if not data.check.any():
        return _UNCHECKED, _regress(features, classes, _UNCHECKED)
    found = []
    for strength in _STRENGTHS:
        fitted = _regress(features, classes, strength)
        logits = fitted(data.features[data.check])
        found.append((cross_entropy(logits, data.classes[data.check]), strength, fitted))
        if found[-1][0] > min(found)[0]:
            break  # the loss has one minimum: beyond it, weaker penalties only take longer
    return min(found, key=lambda one: one[0])[1:]


def _regress(features: Floats, classes: Ints, strength: float) -> Callable[[Floats], Floats]:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - slow to import
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import

    if not features.shape[1]:
        return lambda rows: np.tile(np.log(np.bincount(classes)), (len(rows), 1))
    model: Any = LogisticRegression(C=strength, tol=1e-6, max_iter=300)
    with warnings.catch_warnings():
        # A few labelled rows may be separable. Then there is no optimum, and any late step will do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, classes)
    slope, start = model.coef_.T, model.intercept_
    return lambda rows: as_logits(rows @ slope + start)


def as_logits(found: Floats) -> Floats:
    """Return scikit-learn's scores as ``[n, classes]``: for two classes it gives the difference."""
    columns = found[:, None] if found.ndim == 1 else found
    return np.insert(columns, 0, 0.0, axis=1) if columns.shape[1] == 1 else columns


def cross_entropy(logits: Floats, classes: Ints) -> float:
    """Return the mean cross-entropy of the logits."""
    return float(-log_softmax(logits)[np.arange(len(classes)), classes].mean())


def fit_mlp(data: LabelledRows, rng: torch.Generator) -> FittedClassifier:
    """Fit a network of two hidden layers, stopped where the loss on the rows held out is least.

    Its output is added to that of a logistic regression, and starts at zero: where there is nothing
    more to learn, the result is the regression.
    """
    if not data.features.shape[1]:
        return fit_quadratic(data, rng)
    _, start = fit_regression(data)
    net = _two_hidden_layers(data.features.shape[1], data.count, rng)

    def logits(rows: Floats) -> Floats:
        with torch.no_grad():
            found: Floats = start(rows) + net(torch.from_numpy(rows)).numpy()
        return found

    fit = ~data.check
    features, classes = data.features[fit], data.classes[fit]
    rows = TensorDataset(*map(torch.from_numpy, (features, start(features), classes)))
    optimiser = torch.optim.AdamW(net.parameters(), lr=_RATE, weight_decay=_DECAY, fused=True)
    if data.check.any():
        _train_until_best(net, optimiser, rows, data, logits, rng)
    else:
        for _ in range(_UNCHECKED_EPOCHS):
            _train_epoch(net, optimiser, rows, rng)
    return FittedClassifier(checked=logits(data.features[data.check]), logits=logits)


def _two_hidden_layers(inputs: int, outputs: int, rng: torch.Generator) -> nn.Sequential:
    """Return a network that says 0 at first, its weights drawn from ``rng`` alone.

    In ``float64``: rounding grows with every step, and scores must not depend on the order of rows
    or on their unit.
    """
    layers: list[nn.Module] = []
    for fan, width in ((inputs, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN, outputs)):
        # On "meta", the layer's own start draws nothing from torch's global generator.
        linear = nn.Linear(fan, width, device="meta", dtype=torch.float64).to_empty(device="cpu")
        drawn = torch.randn(fan, width, generator=rng, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(drawn.T * (_GAIN / fan) ** 0.5)
            linear.bias.zero_()
        layers += [linear, nn.ReLU()]
    with torch.no_grad():
        linear.weight.zero_()
    return nn.Sequential(*layers[:-1])


def _train_epoch(
    net: nn.Sequential, optimiser: torch.optim.Optimizer, rows: TensorDataset, rng: torch.Generator
) -> None:
    """Take one step for each batch of the rows, in a new order."""
    order = torch.randperm(len(rows), generator=rng)
    for batch in torch.split(order, max(1, min(_BATCH, len(order) // 4))):
        features, start, classes = rows[batch]
        with torch.enable_grad():
            loss = functional.cross_entropy(start + net(features), classes)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()


def _train_until_best(
    net: nn.Sequential,
    optimiser: torch.optim.Optimizer,
    rows: TensorDataset,
    data: LabelledRows,
    logits: Callable[[Floats], Floats],
    rng: torch.Generator,
) -> None:
    """Train until the loss on the rows held out has not fallen for a while, and go back there."""
    spare, truth = data.features[data.check], data.classes[data.check]
    best, since, kept = cross_entropy(logits(spare), truth), 0, copy.deepcopy(net.state_dict())
    for _ in range(_EPOCHS):
        _train_epoch(net, optimiser, rows, rng)
        loss = cross_entropy(logits(spare), truth)
        since += 1
        if loss < best - _WORTHWHILE:
            best, since, kept = loss, 0, copy.deepcopy(net.state_dict())
        if since == _PATIENCE:
            break
    net.load_state_dict(kept)


def second_order(rows: Tensor, *, directions: int) -> Tensor:
    """Return features ``[B, p]`` of the rows, each with mean 0; ``p`` is 0 if all rows are equal.

    In the principal basis of the rows, strongest direction first: standardised coordinates
    ``x_j``, their squares, the products of the strongest twelve, the log norm, and the log
    energies of the halves and quarters of the spectrum. The log-likelihood ratio of two Gaussians
    is a linear function of ``x_j``, ``x_j^2`` and ``x_j x_k``; the log energies cover all
    directions, also those beyond the first ``directions``.

    >>> second_order(torch.randn(50, 3, generator=torch.Generator()), directions=3).shape
    torch.Size([50, 15])
    """
    along = _signed(principal_coordinates(rows.double()).flip(1))
    strong = along[:, : min(directions, _DIRECTIONS)]
    spread = strong.square().mean(dim=0).sqrt()
    near = (strong / spread).clamp(-_FAR, _FAR)
    top = near[:, :_PRODUCTS]
    first, second = torch.triu_indices(top.shape[1], top.shape[1], 1)
    energy = torch.cat([norms(rows).square().unsqueeze(1), _bands(along.square())], dim=1)
    weight = (spread / spread.max() if len(spread) else spread).pow(_FADE).clamp_min(_FAINTEST)
    found = [
        _standard(near) * weight,
        _standard(_log(energy)),
        _standard(near[:, :_SQUARES].square()) * weight[:_SQUARES] * _SECOND,
        _standard(top[:, first] * top[:, second]) * _SECOND,
    ]
    features = torch.cat(found, dim=1)
    return features[:, features.any(dim=0)]


def _signed(along: Tensor) -> Tensor:
    """Return each coordinate with its longer tail positive: a basis has no sign of its own."""
    return torch.where(along.pow(3).sum(dim=0) < 0, -along, along)


def _standard(columns: Tensor) -> Tensor:
    """Return the columns at mean 0 and variance 1; those that do not vary are 0."""
    centred = columns - columns.mean(dim=0)
    spread = centred.square().mean(dim=0).sqrt()
    return centred / torch.where(spread > _FLAT, spread, torch.inf)


def _bands(energy: Tensor) -> Tensor:
    """Return the energy ``[B, 6]`` in the two halves and four quarters of the spectrum."""
    parts = [band for count in (2, 4) for band in energy.tensor_split(count, dim=1)]
    return torch.stack([band.sum(dim=1) for band in parts], dim=1)


def _log(energy: Tensor) -> Tensor:
    """Return the log of each energy over its mean; zero where a band has none at all."""
    mean = energy.mean(dim=0)
    return torch.log(energy / torch.where(mean > 0, mean, 1.0) + _FLOOR) * (mean > 0)
