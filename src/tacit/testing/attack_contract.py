"""What every attack must do, as checks that the author of a new one can run.

>>> AttackContract("norm").check_all()
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from scipy.stats import norm as normal
from scipy.stats import rankdata
from torch import Tensor

from tacit import attack as attacks
from tacit.attack import Attack
from tacit.errors import InputError, KnowledgeError, TacitError
from tacit.evaluate import reveal
from tacit.rows import FLOATS
from tacit.testing.checks import Contract
from tacit.types import Known, View

_ROWS, _WIDTH = 48, 24
_SOURCES = {"gradients", "embeddings"}
_NULL_BATCHES, _NULL_ROWS, _NULL_LEVEL = 100, 128, 1e-6


@final
class AttackContract(Contract):
    """The checks, for one attack or its spec; each raises ``AssertionError`` with what went wrong.

    ``check_all`` runs them all and names the one that failed.

    Side information comes from :func:`tacit.evaluate.reveal`, so an attack that declares what it
    needs is checked without further ado.
    """

    def __init__(self, attack: str | Attack) -> None:
        self.attack = attacks.get(attack)

    @property
    def subject(self) -> str:
        """The spec of the attack."""
        return str(self.attack)

    def check_declarations(self) -> None:
        """What it says of itself makes sense: the audit and its advice rely on it."""
        reads, needs = self.attack.reads, self.attack.needs
        self._expect(bool(reads) and reads <= _SOURCES, f"reads is {set(reads)}, not {_SOURCES}")
        says_all = "embeddings" in reads or "embeddings" not in needs
        self._expect(says_all, "it needs embeddings, but `reads` does not say so")
        for form in self.attack.audit_forms or ():
            try:
                attacks.get(form.spec)
            except TacitError as error:
                self._expect(False, f"the audit cannot build its form {form.spec!r}: {error}")

    def check_output(self) -> None:
        """One finite ``float64`` score per row, without a gradient graph."""
        grads, labels = _batch()
        scores = self._scores(self._view(grads.requires_grad_(), labels))
        self._expect(scores.dtype == torch.float64, f"scores are {scores.dtype}, not float64")
        self._expect(not scores.requires_grad, "scores carry a gradient graph")
        self._check_finite(scores, _ROWS, "an ordinary batch")

    def check_reproducible(self) -> None:
        """The same generator state gives the same scores; global randomness is not used."""
        view = self._view(*_batch())
        before = torch.get_rng_state()
        first, second = self._scores(view, seed=5), self._scores(view, seed=5)
        self._expect(torch.equal(first, second), "the same rng seed gave other scores")
        self._expect(torch.equal(before, torch.get_rng_state()), "torch's global rng was used")

    def check_inputs_untouched(self) -> None:
        """Nothing that was handed in is changed."""
        view = self._view(*_batch(dtype=torch.float64))
        before = {name: tensor.clone() for name, tensor in _tensors(view).items()}
        self._scores(view)
        for name, tensor in _tensors(view).items():
            self._expect(torch.equal(before[name], tensor), f"{name} was changed in place")

    def check_trailing_shape(self) -> None:
        """Rows of any shape score like the same rows laid flat."""
        grads, labels = _batch()
        flat = self._scores(self._view(grads, labels))
        block = self._scores(self._view(grads.reshape(_ROWS, 2, 3, 4), labels))
        self._expect(torch.equal(flat, block), "scores depend on the shape behind the batch")

    def check_dtypes(self) -> None:
        """Any floating type scores like the same values in ``float64``."""
        for dtype in FLOATS:
            grads, labels = _batch(dtype=dtype)
            narrow = self._scores(self._view(grads, labels))
            wide = self._scores(self._view(grads.double(), labels))
            self._expect(_close(narrow, wide), f"{dtype} scores unlike the same float64 values")

    def check_scale(self) -> None:
        """The ranking is the same at 1e-24 and 1e+20 times the scale (as exact powers of two).

        Of an attack that is not ``scale_free``, scores are finite there.
        """
        grads, labels = _batch()
        order = self._scores(self._view(grads, labels)).argsort(stable=True)
        for power in (-80, 66):
            scores = self._scores(self._view(grads * 2.0**power, labels))
            if not self.attack.scale_free:
                self._check_finite(scores, _ROWS, f"gradients times 2**{power}")
                continue
            same = torch.equal(order, scores.argsort(stable=True))
            self._expect(same, f"gradients times 2**{power} are ranked in another order")

    def check_zero_rows(self) -> None:
        """Zero rows beside rows of 1e8 get finite scores."""
        grads, labels = _batch()
        grads = grads * 1e8
        grads[::3] = 0.0
        self._check_finite(self._scores(self._view(grads, labels)), _ROWS, "a batch with zero rows")

    def check_single_row(self) -> None:
        """A batch of one is scored, by all attacks but those that learn from labelled rows."""
        if "labelled" in self.attack.needs:
            return  # one row cannot show two classes
        for grads in (torch.ones(1, _WIDTH), torch.zeros(1, _WIDTH), torch.ones(1, 1)):
            self._check_finite(self._scores(self._alone(grads)), 1, "a batch of one")

    def check_width_one(self) -> None:
        """Gradients of one value per row are scored, also without the second dimension."""
        grads, labels = _batch()
        column = self._scores(self._view(grads[:, :1], labels))
        self._check_finite(column, _ROWS, "a batch of width one")
        flat = self._scores(self._view(grads[:, 0], labels))
        self._expect(torch.equal(column, flat), "[B] and [B, 1] score differently")

    def check_zero_batch(self) -> None:
        """Where every gradient is zero, no row scores above another."""
        self._check_alike(torch.zeros(_ROWS, _WIDTH))

    def check_constant_batch(self) -> None:
        """Where all gradients are the same, no row scores above another."""
        self._check_alike(torch.full((_ROWS, _WIDTH), 0.1))

    def check_missing_knowledge(self) -> None:
        """Declared side information that is missing is refused by name."""
        fields = {field.name for field in dataclasses.fields(Known)} | {"embeddings"}
        odd = ", ".join(self.attack.needs - fields)
        self._expect(not odd, f"needs names {odd}, which no view has")
        view = self._view(*_batch())
        for name in sorted(self.attack.needs):
            with self._refused(KnowledgeError, f"a view without {name}", name, str(self.attack)):
                self.attack(_with(view, name, None), _generator(1))

    def check_row_order(self) -> None:
        """Rows in another order get the same scores, up to one sign for all."""
        view = self._view(*_batch(dtype=torch.float64))
        order = torch.randperm(_ROWS, generator=_generator(3))
        plain, moved = self._scores(view)[order], self._scores(_reordered(view, order))
        same = _close(plain, moved) or _close(plain, -moved)
        self._expect(same, "scores depend on the order of the rows")

    def check_not_finite_refused(self) -> None:
        """NaN and infinity are refused, in the gradients and in known gradients."""
        view = self._view(*_batch())
        for name, tensor in _tensors(view).items():
            for bad in (math.nan, math.inf) if tensor.is_floating_point() else ():
                broken = tensor.detach().clone()
                broken.view(-1)[-1] = bad
                with self._refused(InputError, f"{name} with a {bad}", name):
                    self.attack(_with(view, name, broken), _generator(1))

    def check_finds_nothing(self) -> None:
        """On gradients that are independent of the labels, the AUC is that of chance.

        Side information comes from other gradients with the same labels: a row is part of its own
        batch's class means, and would be found by them in pure noise.
        """
        rng = _generator(17)
        scores, truth = [], []
        for _ in range(_NULL_BATCHES):
            grads, other = torch.randn(2, _NULL_ROWS, 8, generator=rng)
            labels = (torch.rand(_NULL_ROWS, generator=rng) < 0.3).long()
            labels[:2] = torch.tensor([0, 1])
            labels = labels[torch.randperm(_NULL_ROWS, generator=rng)]
            view = dataclasses.replace(self._view(other, labels, rng=rng), grads=grads)
            scores.append(self.attack(view, rng))
            truth.append(labels)
        found = pooled_auc(torch.cat(scores), torch.cat(truth))
        low, high = null_band(torch.cat(truth), level=_NULL_LEVEL)
        self._expect(
            low <= found <= high,
            f"pure noise gave AUC {found:.4f}, outside the band of chance {low:.4f}..{high:.4f}",
        )

    def _expect(self, holds: bool, failure: str) -> None:
        assert holds, f"{self.attack}: {failure}"

    @contextmanager
    def _refused(self, kind: type[TacitError], what: str, *words: str) -> Iterator[None]:
        try:
            yield
        except kind as error:
            lost = [word for word in words if word not in str(error)]
            self._expect(not lost, f"the refusal of {what} does not name {lost}: {error}")
        else:
            self._expect(False, f"{what} was not refused")

    def _check_finite(self, scores: Tensor, count: int, what: str) -> None:
        self._expect(scores.shape == (count,), f"{what} gave scores of shape {scores.shape}")
        self._expect(bool(scores.isfinite().all()), f"{what} gave scores that are not finite")

    def _check_alike(self, grads: Tensor) -> None:
        labels = _batch()[1]
        view = self._view(grads, labels)
        if view.embeddings is not None:
            view = _with(view, "embeddings", torch.ones_like(view.embeddings))
        scores = self._scores(view)
        self._check_finite(scores, len(grads), "a batch of equal rows")
        spread = float(scores.max() - scores.min())
        equal = spread <= 1e-9 * max(1.0, float(scores.abs().max()))
        self._expect(equal, f"equal rows got scores that differ by {spread}")

    def _scores(self, view: View, *, seed: int = 1) -> Tensor:
        """Return the scores of a view that the attack has no reason to refuse."""
        try:
            return self.attack(view, _generator(seed))
        except Exception as error:
            raise AssertionError(f"{self.attack}: a sound view was refused: {error!r}") from error

    def _view(self, grads: Tensor, labels: Tensor, *, rng: torch.Generator | None = None) -> View:
        """Return a view of the batch with everything that the attack declares."""
        rng = rng or _generator(2)
        try:
            known = reveal(self.attack, clean=grads, released=grads, labels=labels, rng=rng)
        except KnowledgeError as error:
            raise AssertionError(f"{self.attack}: nothing can be revealed: {error}") from error
        embeddings = None
        if "embeddings" in self.attack.needs:
            embeddings = torch.randn(len(grads), grads[0].numel(), generator=rng)
        return View(grads=grads, embeddings=embeddings, known=known)

    def _alone(self, grads: Tensor) -> View:
        """Return a view of one row; what one row cannot supply comes from a larger batch."""
        others = torch.randn(8, *grads.shape[1:], generator=_generator(4))
        view = dataclasses.replace(self._view(others, torch.arange(8) % 2), grads=grads)
        if view.embeddings is not None:
            view = _with(view, "embeddings", view.embeddings[:1])
        return view if view.known.hints is None else _with(view, "hints", torch.tensor([0]))


def pooled_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the chance that a positive scores above a negative, ties counting half."""
    positive = (labels == 1).numpy()
    ones, zeros = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(scores.numpy())
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def null_band(labels: Tensor, *, level: float) -> tuple[float, float]:
    """Return the interval that holds the AUC of random scores with probability ``1 - level``.

    The Mann-Whitney variance ``(n + 1) / (12 n1 n0)``; ties only make it smaller.
    """
    ones = int((labels == 1).sum())
    zeros = len(labels) - ones
    half = float(normal.isf(level / 2)) * math.sqrt((len(labels) + 1) / (12 * ones * zeros))
    return 0.5 - half, 0.5 + half


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _batch(*, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return gradients of two opposed classes with noise, and their labels; a quarter is 1."""
    rng = _generator(0)
    labels = (torch.arange(_ROWS) % 4 == 1).long()
    signal = (0.3 - labels).unsqueeze(1) * torch.linspace(0.5, 1.5, _WIDTH)
    grads = signal + 0.3 * torch.randn(_ROWS, _WIDTH, generator=rng)
    return grads.to(dtype), labels


def _tensors(view: View) -> dict[str, Tensor]:
    """Return every tensor of a view that a check may look at, by name."""
    known = {f.name: getattr(view.known, f.name) for f in dataclasses.fields(Known)}
    all_of_it = {"grads": view.grads, "embeddings": view.embeddings, **known}
    return {name: value for name, value in all_of_it.items() if isinstance(value, Tensor)}


def _with(view: View, name: str, value: Tensor | None) -> View:
    """Return the view with one field of it, or of what is known, replaced."""
    if name in ("grads", "embeddings"):
        return dataclasses.replace(view, **{name: value})  # type: ignore[arg-type]
    known = dataclasses.replace(view.known, **{name: value})  # type: ignore[arg-type]
    return dataclasses.replace(view, known=known)


def _reordered(view: View, order: Tensor) -> View:
    """Return the same view with row ``order[i]`` at place ``i``, known rows moved along."""
    known = view.known
    if known.hints is not None:
        known = dataclasses.replace(known, hints=torch.argsort(order)[known.hints])
    if known.labelled is not None:
        rows, classes = known.labelled
        known = dataclasses.replace(known, labelled=(torch.argsort(order)[rows], classes))
    embeddings = None if view.embeddings is None else view.embeddings[order]
    return View(grads=view.grads[order], embeddings=embeddings, known=known)


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two sets of scores agree to rounding, measured by how far the scores spread."""
    spread = float((a.max() - a.min()).clamp_min(a.abs().max() * 1e-6))
    return bool(((a - b).abs() <= 1e-7 * spread).all())
