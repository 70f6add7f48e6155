"""The worst case: an attacker who knows the labels of some rows and learns the rest from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from tacit.attack._classifiers import (
    Bools,
    Floats,
    Ints,
    LabelledRows,
    SeededGenerators,
    fit_mlp,
    fit_quadratic,
    held_out_mask,
    log_softmax,
    mean_auc,
    second_order,
    stratified_folds,
)
from tacit.attack.base import (
    ATTACKS,
    GAUSSIAN_FAILS,
    Attack,
    AuditForm,
    Cause,
    LabelledAttack,
    PreparedView,
    shift,
)
from tacit.errors import InputError, KnowledgeError
from tacit.rows import as_rows, exponent, norms
from tacit.types import View

# Directions beyond a quarter of the labelled rows could be fitted to anything.
_ROWS_PER_DIRECTION = 4
# With fewer labelled rows a network learns nothing that a regression does not.
_ENOUGH_FOR_MLP = 500
_LEARNERS: Final = {"quadratic": fit_quadratic, "mlp": fit_mlp}
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


@final
@ATTACKS.register("supervised")
@dataclass(frozen=True)
class Supervised(LabelledAttack):
    """Learn from the rows whose label is known, and score all rows by the log-odds of class 1.

    ``r(g) = log p(g | y = 1) - log p(g | y = 0)`` as far as it can be learnt: ``quadratic`` is a
    logistic regression on second-order features in the principal basis of all rows, which holds
    the likelihood ratio of Gaussians with different means and different variances along that
    basis, noise on one class alone included; ``mlp`` adds a network of two hidden layers of 64 on
    the same features. ``by=both`` adds those of the embeddings. ``best`` takes, of the models and
    sources there are, the one with the highest AUC on labelled rows held out.

    Needs: the labels of some rows, at least two of each class; embeddings where the view has them.

    References:
        Ours. An estimate, from below, of what Li et al., ICLR 2022, Theorem 1, bound from above:
        the AUC of the best score there is.

    What the attacker knows already does not count as success: a labelled row is scored by a fit to
    the half of the labelled rows that it does not belong to. The share of positives among the
    labelled rows is taken out of the score, so that scores of different fits compare. Rows of one
    id stay together when rows are held out. ``best`` tries the network from 500 labelled rows on;
    with fewer than 20 of a class there is nothing to hold out, and it is the regression on the
    gradients, at a fixed penalty. Principal directions beyond a quarter of the labelled rows count
    by their energy only.

    >>> from tacit.types import Known, View
    >>> labels = torch.arange(80) % 2
    >>> grads = torch.stack([3.0 * labels, torch.linspace(-1, 1, 80)], dim=1)
    >>> rows = torch.arange(80)[torch.arange(80) % 4 < 2]
    >>> known = Known(labelled=(rows, labels[rows]))
    >>> scores = Supervised()(View(grads=grads, known=known), torch.Generator().manual_seed(0))
    >>> bool(((scores > 0) == labels).all())
    True
    """

    model: Literal["best", "quadratic", "mlp"] = "best"
    by: Literal["best", "gradient", "both"] = "best"

    needs: ClassVar[frozenset[str]] = frozenset({"labelled"})
    reads: ClassVar[frozenset[str]] = frozenset({"gradients", "embeddings"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("supervised", 120),)
    causes: ClassVar[tuple[Cause, ...]] = (GAUSSIAN_FAILS,)

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return the log-odds of class 1, at even odds before the row was seen."""
        return self._log_odds(prepared, rng, honest=True)

    def log_odds(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the scores ``[B]`` of a call; without ``honest`` in half of the time."""
        with torch.no_grad():
            return self._log_odds(self.prepare(view), rng, honest=honest)

    def probabilities(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the probability of each class ``[B, classes]``, for any number of classes.

        Before a row is seen, a class has the probability of its share of the labelled rows.
        ``honest`` is as for ``log_odds``.
        """
        with torch.no_grad():
            prepared = self.prepare(view)
            known = _Labelled.of(self, prepared)
            found = self._likelihoods(prepared, known, rng, honest=honest) + np.log(known.shares)
        count = max(2, int(known.names[-1]) + 1, view.known.classes or 0)
        probs = torch.zeros(len(found), count, dtype=torch.float64)
        probs[:, known.names] = torch.from_numpy(np.exp(log_softmax(found)))
        return probs.to(view.grads.device)

    def _log_odds(self, prepared: PreparedView, rng: torch.Generator, *, honest: bool) -> Tensor:
        known = _Labelled.of(self, prepared)
        if known.names[-1] > 1:
            raise KnowledgeError(
                f"{self} scores class 1 against class 0, got known.labelled with class "
                f"{known.names[-1]}: call its `probabilities`, or pass (classes == c).long()"
            )
        found = self._likelihoods(prepared, known, rng, honest=honest)
        return torch.from_numpy(found[:, 1] - found[:, 0]).to(prepared.view.grads.device)

    def _likelihoods(
        self, prepared: PreparedView, known: _Labelled, rng: torch.Generator, *, honest: bool
    ) -> Floats:
        """Return the log-likelihood of each class ``[B, k]``, up to a constant for each row."""
        generators = SeededGenerators(rng)
        sources = self._sources(prepared, directions=max(1, len(known.rows) // _ROWS_PER_DIRECTION))
        found = self._fit(sources, known, generators)(np.arange(len(prepared.rows)))
        if honest:
            half = stratified_folds(known.classes, known.groups, folds=2, rng=generators.folds)
            for part in (0, 1):
                rows = known.rows[half == part]
                found[rows] = self._fit(sources, known.where(half != part), generators)(rows)
        return found

    def _sources(self, prepared: PreparedView, *, directions: int) -> list[Floats]:
        """Return the features of each source that is to be tried, the gradients first."""
        gradient = second_order(prepared.rows, directions=directions).cpu()
        embeddings = None if self.by == "gradient" else _embeddings(self, prepared.view)
        found = [] if self.by == "both" else [gradient.numpy()]
        if embeddings is not None:
            other = second_order(embeddings, directions=directions).cpu()
            found.append(torch.cat([gradient, other], dim=1).numpy())
        return found

    def _fit(
        self, sources: list[Floats], known: _Labelled, generators: SeededGenerators
    ) -> Callable[[Ints], Floats]:
        """Return the classifier that does best on held-out labelled rows, as log-likelihoods."""
        check = held_out_mask(known.classes, known.groups, rng=generators.folds)
        tried = []
        for model, features in itertools.product(self._models(len(known.rows)), sources):
            data = LabelledRows(features[known.rows], known.classes, check)
            fitted = _LEARNERS[model](data, generators.network)
            tried.append((mean_auc(fitted.checked, known.classes[check]), fitted, features))
        _, best, features = max(tried, key=lambda found: found[0])  # the simplest of equals
        return lambda rows: best.logits(features[rows]) - np.log(known.shares)

    def _models(self, labelled: int) -> list[Literal["quadratic", "mlp"]]:
        if self.model != "best":
            return [self.model]
        return ["quadratic", "mlp"] if labelled >= _ENOUGH_FOR_MLP else ["quadratic"]


@final
@dataclass(frozen=True, eq=False)
class _Labelled:
    """The labelled rows, in an order that follows from their content.

    Attributes:
        rows: indices ``[m]`` into the view's rows.
        classes: ``[m]``, numbered without gaps.
        groups: ``[m]``, the same number for rows of the same example.
        names: the class that each number stands for, ascending.
    """

    rows: Ints
    classes: Ints
    groups: Ints
    names: Ints

    @classmethod
    def of(cls, attack: Attack, prepared: PreparedView) -> _Labelled:
        """Return the labelled rows of a view, or raise if they cannot be learnt from."""
        rows, given = labelled_rows(prepared.view, len(prepared.rows))
        names, classes = np.unique(given, return_inverse=True)
        found = cls(rows, classes, examples(prepared.view)[rows], names)._in_order(prepared)
        found._check(attack)
        return found

    @property
    def shares(self) -> Floats:
        """The share of each class among the rows."""
        return np.bincount(self.classes, minlength=len(self.names)) / len(self.classes)

    def where(self, chosen: Bools | Ints) -> _Labelled:
        """Return some of the rows, by a mask or by indices."""
        rows, classes, groups = (part[chosen] for part in (self.rows, self.classes, self.groups))
        return _Labelled(rows, classes, groups, self.names)

    def _in_order(self, prepared: PreparedView) -> _Labelled:
        """Sort by length, so that folds and fits do not depend on the order of the rows."""
        keys = (prepared.rows.sum(dim=1), norms(prepared.rows))
        total, length = (key.cpu().numpy()[self.rows] for key in keys)
        return self.where(np.lexsort((self.classes, total, length)))

    def _check(self, attack: Attack) -> None:
        examples = np.unique(np.stack([self.groups, self.classes]), axis=1)
        if len(np.unique(examples[0])) < examples.shape[1]:
            raise InputError(
                "known.labelled gives rows of one id different classes: one example has one class"
            )
        counts = np.bincount(examples[1])
        if len(counts) < 2:
            raise KnowledgeError(
                f"{attack} needs known.labelled with two classes or more, got only class "
                f"{self.names[0]}: label rows of another class too"
            )
        if counts.min() < 2:
            raise KnowledgeError(
                f"{attack} needs known.labelled with two examples of each class, got one of class "
                f"{self.names[counts.argmin()]}: label another one, or leave that class out"
            )


def labelled_rows(view: View, count: int) -> tuple[Ints, Ints]:
    """Return ``known.labelled`` as checked row indices and classes."""
    assert view.known.labelled is not None  # noqa: S101 - checked, as `needs` says
    rows, classes = (part.detach().cpu() for part in view.known.labelled)
    if rows.dim() != 1 or rows.shape != classes.shape or {rows.dtype, classes.dtype} - {*_WHOLE}:
        raise InputError(
            "known.labelled must be row indices [m] and classes [m], both whole numbers, got "
            f"{rows.dtype} of shape {tuple(rows.shape)} and {classes.dtype} of shape "
            f"{tuple(classes.shape)}"
        )
    if len(rows) == 0:
        raise KnowledgeError("known.labelled must hold rows of two classes or more, got no row")
    if ((rows < 0) | (rows >= count)).any():
        odd = int(rows.min() if rows.min() < 0 else rows.max())
        raise InputError(f"known.labelled must name rows in 0..{count - 1}, got {odd}")
    if len(torch.unique(rows)) < len(rows):
        raise InputError("known.labelled must name each row once: leave repeated indices out")
    if int(classes.min()) < 0:
        raise InputError(f"known.labelled must hold classes 0, 1, ..., got {int(classes.min())}")
    return rows.long().numpy(), classes.long().numpy()


def examples(view: View) -> Ints:
    """Return the number ``[B]`` of each row's example: its id, or its own where there are none."""
    count = len(view.grads)
    if view.ids is None:
        return np.arange(count)
    if view.ids.shape != (count,):
        raise InputError(f"ids must be [{count}] like grads, got shape {tuple(view.ids.shape)}")
    found: Ints = view.ids.detach().cpu().numpy()
    return found


def _embeddings(attack: Supervised, view: View) -> Tensor | None:
    """Return the embeddings as rows at a common scale, or None where the view has none."""
    if view.embeddings is None:
        if attack.by == "both":
            raise KnowledgeError(
                f"{attack} needs embeddings: pass View(embeddings=...), or take by=gradient"
            )
        return None
    rows = as_rows(view.embeddings.detach(), name="embeddings").double()
    power = exponent(rows, name="embeddings") or 0
    if len(rows) != len(view.grads):
        raise InputError(f"embeddings must have {len(view.grads)} rows like grads, got {len(rows)}")
    return shift(rows, -power)
