"""The guard: one line in any PyTorch loop, and every check a release must pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tacit.checks import check_release, strongest
from tacit.errors import InputError, ReplayError
from tacit.measure.bounds import auc_bound, gaussian_auc
from tacit.protect import Chain, Protection
from tacit.protect import get as get_protection
from tacit.protect.base import EMPIRICAL, Batch, Draft
from tacit.rng import Key, whole
from tacit.spec import require
from tacit.types import Certificate, Cut, Release

__all__ = ["Guard"]

Probs = Tensor | Callable[[], Tensor]
Watcher = Callable[[Cut, Release], None]


@final
class Guard:
    """Protects the gradient at one cut: identity forward, protected gradient backward.

    ``z = guard(bottom(x), y)`` in a training loop, or ``guard.release(cut)`` where the gradient is
    at hand. Every release is checked before it is handed out: finite, right shape and type, noise
    of the planned size in it, power within budget. If a check fails, nothing is released.

    The noise key comes from the operating system; ``seed`` is for experiments only, since whoever
    knows it can subtract the noise. The noise of a release is keyed by the step, the embedding, the
    clean gradient and the spec: asking for a step again gives the same bytes, and a step with other
    content is refused.

    Args:
        spec: the protection, such as ``"marvell(s=4)"``.
        seed: replaces the secret key in experiments.
        reduction: how the loss averages over the batch. With ``"mean"`` one example's gradient is
            the batch size times what autograd shows; parameters in absolute units refer to it.
        watch: called with every cut and release, e.g. a ``LeakMonitor``; it changes nothing.

    >>> z = torch.ones(4, 2, requires_grad=True)
    >>> guard = Guard("gaussian(sigma=1)", seed=7)
    >>> guard(z, torch.tensor([0, 0, 1, 1])).sum().backward()
    >>> bool((z.grad == 1).any())
    False
    """

    def __init__(
        self,
        spec: str | Protection[Any] | Chain,
        *,
        seed: int | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        watch: Watcher | None = None,
    ) -> None:
        require(reduction in ("mean", "sum"), "reduction must be mean or sum", reduction)
        self.protection = get_protection(spec)
        self._spec = str(self.protection)
        self.counts: Counter[str] = Counter()
        self._key = Key.fresh() if seed is None else Key.from_seed(seed)
        self._mean = reduction == "mean"
        self._watch = watch
        self._memory: tuple[object, ...] | None = None
        self._width: int | None = None
        self._last: _Last | None = None

    def __call__(
        self, z: Tensor, y: Tensor, *, ids: Tensor | None = None, probs: Probs | None = None
    ) -> Tensor:
        """Return ``z`` unchanged; the gradient that flows back through it is a release.

        ``probs`` may be a function without arguments, called when the gradient arrives: by then
        the predictions exist.
        """
        if y.dim() != 1 or len(y) != len(z):
            raise InputError(f"labels must be [{len(z)}] like the embedding, got {tuple(y.shape)}")
        step: list[int] = []

        def protect(grads: Tensor) -> Tensor:
            cut = Cut(
                grads=grads,
                labels=y,
                probs=self._needed(probs),
                ids=ids,
                embeddings=z.detach(),
                step=step[0] if step else None,
                weight=1 / len(grads) if self._mean else 1.0,
            )
            release = self.release(cut)
            step[:] = [release.step]
            return release.grads

        return _Seam.apply(z, protect) if z.requires_grad else z  # type: ignore[no-untyped-call]

    def release(self, cut: Cut) -> Release:
        """Return the protected gradients with their certificate, or raise and release nothing."""
        batch = Batch.of(cut, needs=self.protection.needs)
        width = batch.rows.shape[1]
        if self._width not in (None, width):
            raise InputError(f"a guard protects one cut, of width {self._width}, got {width}")
        # Without noise there is nothing to average away or to cancel: any step may come again.
        tags = () if self.protection.identity else self._tags(cut, batch)
        step = self._next_step(cut.step)
        again = bool(tags) and self._last is not None and step == self._last.step
        if again:
            self._check_same(tags)
        memory = self._last.before if again and self._last is not None else self._memory
        stream = self._key.stream("noise", step, *tags, self._spec)
        draft = self.protection.apply(batch, stream, memory)
        grads = draft.rows.to(cut.grads.dtype).reshape(cut.grads.shape)
        release = Release(grads=grads, certificate=self._certify(batch, draft, grads), step=step)
        if again:
            return release
        certificate = release.certificate
        self._last = _Last(tags=tags, step=step, certificate=certificate, before=memory)
        self._memory, self._width = draft.memory, width  # type: ignore[assignment]
        self.counts[certificate.how] += 1
        if self._watch is not None:
            self._watch(cut, release)
        return release

    @property
    def last_certificate(self) -> Certificate | None:
        """The certificate of the last release; it stays at the label party."""
        return None if self._last is None else self._last.certificate

    def _needed(self, probs: Probs | None) -> Tensor | None:
        """Return the probabilities if the protection takes any; they are not computed in vain."""
        if "probs" not in self.protection.needs:
            return None
        return probs() if callable(probs) else probs

    def _tags(self, cut: Cut, batch: Batch) -> tuple[bytes, ...]:
        """Return what stands for everything that the noise is keyed by."""
        content = (cut.grads, cut.embeddings, self._needed(cut.probs))
        tags = tuple(b"" if part is None else self._key.tag(part) for part in content)
        return (*tags, self._key.digest(batch.labels.tobytes()))

    def _next_step(self, asked: int | None) -> int:
        last = -1 if self._last is None else self._last.step
        if asked is None:
            return last + 1
        asked = whole(asked)
        if asked < 0:
            raise InputError(f"a step is a whole number from 0 on, got {asked}")
        if asked < last and not self.protection.identity:
            raise ReplayError(
                f"step {asked} was released before, step {last} is the last: a step that lies back "
                "is not released again, because fresh noise could be averaged away"
            )
        return asked

    def _check_same(self, tags: tuple[bytes, ...]) -> None:
        if self._last is None or tags != self._last.tags:
            raise ReplayError(
                "this step was released with another embedding, gradient or label: two releases of "
                "one step would let the noise be cancelled; take the next step"
            )

    def _certify(self, batch: Batch, draft: Draft, grads: Tensor) -> Certificate:
        """Check the release against its plans and return what may be claimed of it."""
        unit = 2.0 ** (batch.exponent or 0)
        plans = draft.plans
        power, measured = check_release(
            batch, draft, grads, unit, identity=self.protection.identity
        )
        best = strongest(self.protection, plans)
        kl = None if best is None else best.sum_kl
        return Certificate(
            spec=self._spec,
            how=" | ".join(plan.how for plan in plans),
            assumption=EMPIRICAL if best is None else best.assumption,
            sum_kl=kl,
            auc_bound=None if kl is None else auc_bound(kl),
            gaussian_auc=None if kl is None else gaussian_auc(kl),
            power=power * unit * unit,
            measured_power=measured * unit * unit,
        )

    def __repr__(self) -> str:
        return f"Guard({self._spec!r}, releases={self.counts.total()})"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Last:
    """What is kept of the last release: enough to make it again, not the bytes themselves."""

    tags: tuple[bytes, ...]
    step: int
    certificate: Certificate
    before: tuple[object, ...] | None


@final
class _Seam(torch.autograd.Function):
    """Identity forward; backward hands the gradient to the guard."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, protect: Callable[[Tensor], Tensor]) -> Tensor:  # noqa: ANN401
        ctx.protect = protect
        return z.clone()  # a view could not be changed in place by what comes next

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.protect(grads[0]), None
