"""What an attack is: a score per example out of what the feature party saw, and nothing else.

An attack declares the side information that it uses. The call checks the view once for every
attack, brings the gradients to a common scale and hands the attack a :class:`PreparedView`.
Neither type has a field for labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from tacit.errors import InputError, KnowledgeError
from tacit.rows import as_rows, exponent
from tacit.spec import Registry, Specified
from tacit.types import Known, View

# Scores go back to the gradients' units up to this power of two; beyond it, float64 would drop
# small scores to zero or large ones to infinity and the ranking with them.
_REACH = 800
_GRADIENTS = ("positive", "centres")
_ABOUT_ONE_CLASS = frozenset({"positive", "hints", "centres"})
_INDICES = (torch.int64, torch.int32, torch.int16)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedView:
    """A checked view, ready for arithmetic.

    Attributes:
        rows: ``[B, d]`` in ``float64``; an exact power of two brings the largest value of the
            gradients and of the known gradients into ``[1/2, 1)``.
        view: the view as the attacker got it, in its own units.
        exponent: ``grads == rows * 2**exponent``.
        side: the declared side information, gradients in the units of ``rows``.
    """

    rows: Tensor
    view: View
    exponent: int
    side: Mapping[str, Tensor]
    _cache: dict[str, Tensor] = field(default_factory=dict)

    def cached(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make(rows)``, computed once for all attacks that share this view."""
        if name not in self._cache:
            self._cache[name] = make(self.rows)
        return self._cache[name]

    @property
    def positive(self) -> Tensor:
        """One clean gradient of a positive example, ``[d]``."""
        return self._declared("positive")

    @property
    def centres(self) -> Tensor:
        """The centre of each class's gradients, ``[classes, d]``."""
        return self._declared("centres")

    @property
    def hints(self) -> Tensor:
        """Indices of the rows known to be positive, ascending, at least one."""
        return self._declared("hints")

    def restore(self, scores: Tensor, *, degree: int) -> Tensor:
        """Return scores that grow like ``|g|**degree`` in the gradients' own units.

        Every batch has its own exponent: without this, scores of two batches do not compare.
        """
        return shift(scores, max(-_REACH, min(_REACH, degree * self.exponent)))

    def _declared(self, name: str) -> Tensor:
        if name not in self.side:
            raise KnowledgeError(f"known.{name} was not declared: add it to the attack's `needs`")
        return self.side[name]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The scores of every example that an attack saw in many views.

    Attributes:
        ids: ``[n]`` int64, each example once, in the order in which they were first seen.
        scores: ``[n]`` float64, higher for "more likely positive".
        clusters: ``[n]`` int64, the group of each example, from attacks that find groups.
    """

    ids: Tensor
    scores: Tensor
    clusters: Tensor | None = None


@final
@dataclass(frozen=True)
class AuditForm:
    """One form in which the default audit runs an attack.

    Attributes:
        spec: the attack as a spec string; it may wrap the attack, as ``memory(of=...)`` does.
        order: forms run in ascending order, cheap ones first; the default comes after the built-in
            attacks.
    """

    spec: str
    order: int = 1000


Condition = Literal["always", "without_marvell", "isotropic_marvell"]


@final
@dataclass(frozen=True)
class Cause:
    """Why an attack succeeds, as advice gives it before the remedy.

    Attributes:
        text: the reason, without a full stop.
        when: the protection under which this is the reason: ``without_marvell`` for any other one
            or none, ``isotropic_marvell`` for Marvell without ``covariance=full``.
    """

    text: str
    when: Condition = "always"


GAUSSIAN_FAILS = Cause("the Gaussian assumption fails", "isotropic_marvell")


class StreamingAttack(ABC):
    """The state of an attack over many views; it recognises examples by their id."""

    @abstractmethod
    def add(self, view: View) -> None:
        """Take one more view into account; it must have ids."""

    @abstractmethod
    def result(self) -> Scored:
        """Return the scores of every example seen so far; more views may follow."""

    @property
    def late(self) -> bool:
        """Whether time ran out before the last result was finished; see ``limit``."""
        return False

    def limit(self, seconds: float) -> None:  # noqa: B027 - most attacks take little time
        """Limit the time of each later result; it is then the best that was found by the end."""


class Attack(Specified, ABC):
    """A way to score examples by how positive they look from the feature party's side.

    Subclasses are frozen dataclasses registered in ``ATTACKS``; their fields are parameters. A
    higher score means "more likely positive" as far as the attacker can tell; measures of leakage
    do not depend on the sign.

    The audit, the monitor and the advice read the class attributes. So an attack that is registered
    anywhere, also outside of this package, is listed, audited and advised on.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of ``Known`` that must be there, and ``"embeddings"`` if the view must have them."""
    centre: ClassVar[Literal["mean", "median"]] = "mean"
    """Which centre of a class the attacker is assumed to know, for attacks that need centres."""
    adds_up: ClassVar[bool] = False
    """Whether the result of many views draws on all the releases of an example."""
    reads: ClassVar[frozenset[str]] = frozenset({"gradients"})
    """What it looks at: ``"gradients"``, ``"embeddings"`` or both. Noise on gradients protects only
    against attacks that read them, and its bound holds only for attacks that read nothing else."""
    audit_forms: ClassVar[tuple[AuditForm, ...] | None] = None
    """In which forms the default audit runs it: None for once with its default parameters, after
    the built-in attacks, and an empty tuple for only when it is asked for."""
    scale_free: ClassVar[bool] = True
    """Whether the ranking of its scores is the same in any unit of the gradients."""
    live: ClassVar[bool] = False
    """Whether it is cheap enough to be one of the live monitor's default attacks."""
    causes: ClassVar[tuple[Cause, ...]] = ()
    """Why it succeeds; advice gives the first cause whose condition holds. That noise averages out
    need not be declared: advice says so for attacks that add up over epochs."""
    remedy: ClassVar[str] = ""
    """What to do about it, where the usual advice (noise on gradients, fewer epochs, randomised
    labels) does not fit; in the form "do this, or that", without a full stop."""

    @property
    def about_one_class(self) -> bool:
        """Whether its side information tells one class from the rest, so it needs two classes."""
        return bool(self.needs & _ABOUT_ONE_CLASS)

    @final
    def __call__(self, view: View, rng: torch.Generator) -> Tensor:
        """Return one finite ``float64`` score per row of the view."""
        if not isinstance(rng, torch.Generator):
            raise InputError(
                f"rng must be a torch.Generator, got {type(rng).__name__}: "
                "write torch.Generator().manual_seed(0)"
            )
        return self.scores(self.prepare(view), rng)

    @final
    def scores(self, prepared: PreparedView, rng: torch.Generator) -> Tensor:
        """Return what the call returns, for a view that was prepared before."""
        with torch.no_grad():
            scores = self.score(prepared, rng).to(torch.float64)
        if scores.shape != prepared.rows.shape[:1] or not scores.isfinite().all():
            raise InputError(
                f"{self} must return a finite score for each of {len(prepared.rows)} rows, "
                f"got shape {tuple(scores.shape)}: correct its score method"
            )
        return scores

    @abstractmethod
    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return one score per row; any randomness comes from ``rng``."""

    def streaming(self, rng: torch.Generator) -> StreamingAttack | None:  # noqa: ARG002
        """Return the attack over many views, or None if it scores each view by itself."""
        return None

    def hints_used(self) -> int | None:
        """Return how many of ``known.hints`` one call uses at most, or None for all."""
        return None

    @torch.no_grad()
    def prepare(self, view: View) -> PreparedView:
        """Check a view and bring it to a common scale; attacks with the same needs can share it."""
        self._check_needs(view)
        grads = as_rows(view.grads.detach()).double()
        known = {name: self._gradient(view, name, grads) for name in self.needs & {*_GRADIENTS}}
        scales = [exponent(grads), *(exponent(g, name=f"known.{n}") for n, g in known.items())]
        peak = max((k for k in scales if k is not None), default=0)
        side = {name: shift(gradient, -peak) for name, gradient in known.items()}
        if "hints" in self.needs:
            side["hints"] = self._hints(view, len(grads))
        return PreparedView(rows=shift(grads, -peak), view=view, exponent=peak, side=side)

    def _check_needs(self, view: View) -> None:
        for name in sorted(self.needs - {"embeddings"}):
            if getattr(view.known, name) is None:
                raise KnowledgeError(
                    f"{self} needs known.{name}: pass View(known=Known({name}=...)), "
                    "or let tacit.evaluate.reveal build it from the labels"
                )
        if "embeddings" not in self.needs:
            return
        if view.embeddings is None:
            raise KnowledgeError(f"{self} needs embeddings: pass View(embeddings=...)")
        embeddings = as_rows(view.embeddings.detach(), name="embeddings")
        exponent(embeddings, name="embeddings")
        if len(embeddings) != len(view.grads):
            raise InputError(
                f"embeddings must have {len(view.grads)} rows like grads, got {len(embeddings)}"
            )

    def _gradient(self, view: View, name: str, grads: Tensor) -> Tensor:
        """Return a known gradient flat and in ``float64``: ``[d]`` for one, ``[n, d]`` for many."""
        given: Tensor = getattr(view.known, name).detach().to(grads.device)
        single = name == "positive"
        rows = as_rows(given.reshape(1, -1) if single else given, name=f"known.{name}").double()
        if rows.shape[1] != grads.shape[1]:
            raise InputError(
                f"known.{name} must have {grads.shape[1]} values per gradient like grads, "
                f"got shape {tuple(given.shape)}"
            )
        return rows[0] if single else rows

    def _hints(self, view: View, count: int) -> Tensor:
        """Return the known rows as ascending indices without repeats."""
        assert view.known.hints is not None  # noqa: S101 - checked, as `needs` says
        hints = view.known.hints.detach().to(view.grads.device)
        if hints.dtype == torch.bool and hints.shape == (count,):
            hints = hints.nonzero().flatten()
        elif hints.dtype not in _INDICES or hints.dim() != 1:
            raise InputError(
                f"known.hints must be row indices or a mask [{count}], "
                f"got {hints.dtype} of shape {tuple(hints.shape)}"
            )
        if len(hints) == 0:
            raise KnowledgeError(f"{self} needs known.hints with at least one row, got none")
        if int(hints.min()) < 0 or int(hints.max()) >= count:
            raise InputError(f"known.hints must lie in 0..{count - 1}, got {hints.tolist()}")
        mask = torch.zeros(count, dtype=torch.bool, device=hints.device)
        mask[hints.long()] = True
        return mask.nonzero().flatten()


class LabelledAttack(Attack, ABC):
    """An attack that learns from the rows whose label is known, ``known.labelled``.

    It gives log-odds or class probabilities, which compare from one fit to another. So an evaluator
    can cross-fit it: give it the labels of some rows, keep its scores of the others, and join the
    scores of several such fits.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"labelled"})

    @abstractmethod
    def log_odds(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the scores ``[B]`` of a call.

        Without ``honest`` it takes less time, and labelled rows are scored by a fit that they took
        part in: for callers who leave them out.
        """

    @abstractmethod
    def probabilities(self, view: View, rng: torch.Generator, *, honest: bool = True) -> Tensor:
        """Return the probability of each class ``[B, classes]``; ``honest`` as for ``log_odds``."""

    def within(self, seconds: float) -> LabelledAttack:  # noqa: ARG002 - most take little time
        """Return the same attack with at most so many seconds for each fit."""
        return self


ATTACKS: Registry[Attack] = Registry("attack", base=Attack)


def shift(values: Tensor, power: int) -> Tensor:
    """Return ``values * 2**power``, exact and in two steps where one factor alone may overflow."""
    if abs(power) <= _REACH:
        return values * 2.0**power
    return values * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)


def classes_of(known: Known) -> int:
    """Return how many classes there are: as known, as the prior has, or else two."""
    count = known.classes
    if count is not None and count < 2:
        raise InputError(f"known.classes must be 2 or more, got {count}: leave it out for two")
    if known.prior is None:
        return 2 if count is None else count
    shares = known.prior
    if shares.dim() != 1 or (count is not None and len(shares) != count) or len(shares) < 2:
        raise InputError(
            f"known.prior must have one share for each of {count or '2 or more'} classes, "
            f"got shape {tuple(shares.shape)}: give the shares of the same classes"
        )
    if not bool(torch.isfinite(shares).all()) or bool((shares <= 0).any()):
        raise InputError(
            f"known.prior must be positive shares of the classes, got {shares.tolist()}: "
            "leave out classes that never occur"
        )
    return len(shares)
