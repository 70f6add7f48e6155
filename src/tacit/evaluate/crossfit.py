"""Cross-fitting of attacks that learn labels: every row is scored by a fit that never saw it.

The evaluator has all labels. :func:`cross_fit` gives an attack the labels of some folds and keeps
its scores of the other; :func:`prediction_baseline` does the same with features alone, and what
an attack finds beyond that is leakage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.attack._classifiers import (
    Bools,
    FittedClassifier,
    Floats,
    Ints,
    LabelledRows,
    SeededGenerators,
    as_logits,
    cross_entropy,
    fit_quadratic,
    held_out_mask,
    log_softmax,
    mean_auc,
    second_order,
    stratified_folds,
)
from tacit.attack.base import Attack, LabelledAttack
from tacit.attack.spectral import principal_coordinates
from tacit.attack.supervised import examples
from tacit.errors import InputError, KnowledgeError
from tacit.evaluate.side_information import class_indices
from tacit.rows import as_rows
from tacit.spec import require
from tacit.types import View

_FIT_ROWS = 50_000  # more make the baseline slower and hardly any better
_TREES, _ROUNDS, _BINS = 120, 8, 63  # trees in all, but so many rounds at least
_WIDE = 128  # features from which on trees see the strongest directions: their time grows with it
_FLAT, _FAR = 1e-12, 10.0  # a spread that is only rounding; standard deviations to clamp at


def cross_fit(
    attack: Attack, view: View, labels: Tensor, *, rng: torch.Generator, folds: int = 3
) -> Tensor:
    """Return scores ``[B]``, each from an attack that knew the labels of the other folds only.

    Folds have equal shares of each class; rows with the same id lie in one fold, so that no
    example is recognised. Scores must compare between fits, as log-odds do.

    Where there is nothing to learn, the AUC is one half on average, but it spreads more than that
    of scores fixed beforehand, because every row serves to fit and to be scored: 1.25 to 1.33
    times in simulations with 2, 3 and 5 folds. Allow ``sqrt(2)`` times the width of ``null_band``.

    Args:
        attack: one that needs ``labelled`` rows, such as ``supervised``.
        view: the rows; the rest of ``view.known`` is passed on.
        labels: ``[B]`` class indices.
        rng: draws the folds and whatever the attack draws.
        folds: how many; each fit takes all but one.

    >>> from tacit.attack import Supervised
    >>> labels = torch.arange(60) % 2
    >>> view = View(grads=labels + torch.linspace(-0.1, 0.1, 60))
    >>> scores = cross_fit(Supervised(), view, labels, rng=torch.Generator().manual_seed(0))
    >>> bool(scores[labels == 1].min() > scores[labels == 0].max())
    True
    """
    _require_learner(attack)
    scores = torch.empty(len(view.grads), dtype=torch.float64, device=view.grads.device)
    for held, known in _folds(view, labels, rng=rng, folds=folds):
        if isinstance(attack, LabelledAttack):  # only rows without a label are kept
            scores[held] = attack.log_odds(known, rng, honest=False)[held]
        else:
            scores[held] = attack(known, rng)[held]
    return scores


def cross_fit_probabilities(
    attack: Attack, view: View, labels: Tensor, *, rng: torch.Generator, folds: int = 3
) -> Tensor:
    """Return probabilities ``[B, classes]``, as :func:`cross_fit` does scores.

    >>> from tacit.attack import Supervised
    >>> labels = torch.arange(60) % 3
    >>> view = View(grads=labels + torch.linspace(-0.1, 0.1, 60))
    >>> rng = torch.Generator().manual_seed(0)
    >>> probs = cross_fit_probabilities(Supervised(), view, labels, rng=rng)
    >>> bool((probs.argmax(dim=1) == labels).all())
    True
    """
    _require_learner(attack)
    if not isinstance(attack, LabelledAttack):
        raise InputError(f"{attack} gives no probabilities: take supervised, or call cross_fit")
    classes = class_indices(labels, like=view.grads)
    width = max(2, int(classes.max()) + 1, view.known.classes or 0)
    probs = torch.zeros(len(classes), width, dtype=torch.float64, device=classes.device)
    for held, known in _folds(view, classes, rng=rng, folds=folds):
        probs[held] = attack.probabilities(known, rng, honest=False)[held]
    return probs


def prediction_baseline(
    features: Tensor, labels: Tensor, *, rng: torch.Generator, folds: int = 3
) -> Tensor:
    """Return how well features alone predict the labels: an attack's excess over that is leakage.

    Scores ``[B]`` for two classes, log-odds at even odds as in ``supervised``; probabilities
    ``[B, classes]`` for more. Each row is judged by a fit to the other folds: boosted trees (of
    more than 128 features, on the 128 strongest directions), a logistic regression on second-order
    features, or the mean of both, whichever has the highest AUC on rows held out.

    Args:
        features: ``[B, ...]``, the raw features, or the embeddings of the first epoch; embeddings
            of later epochs have taken up labels already. One row for each example.
        labels: ``[B]`` class indices.
        rng: draws folds, and 50,000 rows to fit where there are more.
        folds: how many; each fit takes all but one.

    >>> labels = torch.arange(300) % 2
    >>> scores = prediction_baseline(labels + torch.linspace(-0.4, 0.4, 300), labels,
    ...                              rng=torch.Generator().manual_seed(0))
    >>> bool(scores[labels == 1].min() > scores[labels == 0].max())
    True
    """
    rows = _standard(features)
    truth = class_indices(labels.cpu(), like=rows).numpy()
    names, classes = np.unique(truth, return_inverse=True)
    generators = SeededGenerators(rng)
    quadratic = second_order(rows, directions=len(rows) // 4).numpy()
    strong = rows if rows.shape[1] <= _WIDE else principal_coordinates(rows)[:, -_WIDE:]
    sources = {"quadratic": quadratic, "trees": strong.numpy()}
    found = np.zeros((len(rows), len(names)))
    for held in _held_out(truth, np.arange(len(rows)), rng=generators.folds, folds=folds):
        known = generators.folds.permutation(np.flatnonzero(~held))[:_FIT_ROWS]
        found[held] = _predicted(sources, classes, known=known, held=held, generators=generators)
    shares = np.bincount(classes) / len(classes)
    if names[-1] > 1:
        probs = np.zeros((len(rows), names[-1] + 1))
        probs[:, names] = np.exp(log_softmax(found + np.log(shares)))
        return torch.from_numpy(probs)
    return torch.from_numpy(found[:, 1] - found[:, 0])


def _require_learner(attack: Attack) -> None:
    if "labelled" not in attack.needs:
        raise InputError(f"{attack} does not learn from labelled rows: call it on the view itself")


def _folds(
    view: View, labels: Tensor, *, rng: torch.Generator, folds: int
) -> Iterator[tuple[Tensor, View]]:
    """Yield the rows of each fold as a mask, and the view with the labels of all other folds."""
    classes = class_indices(labels, like=view.grads)
    generators = SeededGenerators(rng)
    for held in _held_out(classes.cpu().numpy(), examples(view), rng=generators.folds, folds=folds):
        mask = torch.from_numpy(held).to(view.grads.device)
        rows = (~mask).nonzero().flatten()
        yield mask, replace(view, known=replace(view.known, labelled=(rows, classes[rows])))


def _held_out(
    classes: Ints, groups: Ints, *, rng: np.random.Generator, folds: int
) -> Iterator[Bools]:
    """Yield a mask of each fold; the other folds hold every class."""
    require(folds >= 2, "folds must be at least 2", folds)
    fold_of = stratified_folds(classes, groups, folds=folds, rng=rng)
    names, counts = np.unique(classes, return_counts=True)
    if len(names) < 2:
        raise KnowledgeError(
            f"labels must hold two classes or more, got only class {names[0]}: judge more rows"
        )
    for fold in range(folds):
        left = [len(np.unique(groups[(fold_of != fold) & (classes == c)])) for c in names]
        if min(left) < 2:
            rare = int(np.argmin(left))
            raise KnowledgeError(
                f"each class needs two examples outside of every fold, class {names[rare]} has "
                f"{counts[rare]} rows in all: leave them out, or take more folds"
            )
        yield fold_of == fold


def _standard(features: Tensor) -> Tensor:
    """Return the features at mean 0 and variance 1, outliers clamped, constants at 0."""
    rows = as_rows(features.detach(), name="features").double().cpu()
    if not rows.isfinite().all():
        raise InputError("features must be finite, found NaN or infinity: fill the gaps first")
    peak = rows.abs().amax(dim=0)
    rows = rows / torch.where(peak > 0, peak, 1.0)
    centred = rows - rows.mean(dim=0)
    spread = centred.square().mean(dim=0).sqrt()
    return (centred / torch.where(spread > _FLAT, spread, torch.inf)).clamp(-_FAR, _FAR)


def _predicted(
    sources: dict[str, Floats],
    classes: Ints,
    *,
    known: Ints,
    held: Bools,
    generators: SeededGenerators,
) -> Floats:
    """Return log-likelihoods of the ``held`` rows by the classifier that does best on a check.

    The check is a part of the known rows that classifiers are not fitted to.
    """
    check = held_out_mask(classes[known], known, rng=generators.folds)
    learned = {
        name: learn(LabelledRows(sources[name][known], classes[known], check), generators.network)
        for name, learn in _LEARNERS.items()
    }
    checked = {name: log_softmax(found.checked) for name, found in learned.items()}

    def judged(names: tuple[str, ...]) -> float:
        return mean_auc(np.mean([checked[n] for n in names], axis=0), classes[known][check])

    best = max(_CHOICES, key=judged)
    found = [log_softmax(learned[name].logits(sources[name][held])) for name in best]
    shares = np.bincount(classes[known]) / len(known)
    likelihoods: Floats = np.mean(found, axis=0) - np.log(shares)
    return likelihoods


def _fit_trees(data: LabelledRows, rng: torch.Generator) -> FittedClassifier:
    """Fit boosted trees, as many as give the least loss on the rows held out."""
    seed = int(torch.randint(2**31, (), generator=rng))
    fit = ~data.check
    most = max(_ROUNDS, _TREES // (data.count if data.count > 2 else 1))
    rounds, checked = _ROUNDS, np.empty((0, data.count))
    if data.check.any():
        trees = _boosted(data.features[fit], data.classes[fit], rounds=most, seed=seed)
        stages = trees.staged_decision_function(data.features[data.check])
        logits = [as_logits(stage) for stage in stages]
        losses = [cross_entropy(stage, data.classes[data.check]) for stage in logits]
        rounds, checked = int(np.argmin(losses)) + 1, logits[int(np.argmin(losses))]

    def refitted(rows: Floats) -> Floats:
        trees = _boosted(data.features, data.classes, rounds=rounds, seed=seed)
        return as_logits(trees.decision_function(rows))

    return FittedClassifier(checked=checked, logits=refitted)


def _boosted(features: Floats, classes: Ints, *, rounds: int, seed: int) -> Any:  # noqa: ANN401
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - slow to import

    trees = HistGradientBoostingClassifier(
        max_iter=rounds, max_bins=_BINS, early_stopping=False, random_state=seed
    )
    return trees.fit(features, classes)


_LEARNERS: Final[Mapping[str, Callable[[LabelledRows, torch.Generator], FittedClassifier]]] = {
    "quadratic": fit_quadratic,
    "trees": _fit_trees,
}
_CHOICES: Final = (("quadratic",), ("trees",), ("quadratic", "trees"))
