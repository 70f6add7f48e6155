"""The guard: one line in any PyTorch loop, and every check a release must pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tacit.accounting import Ledger
from tacit.errors import InputError, ReplayError
from tacit.guard.checks import check_release, check_untouched, strongest
from tacit.guard.labels import LabelGuard, label_key
from tacit.guard.state import Arrays, Last, State, noise_key, pack, state_types, unpack
from tacit.measure.bounds import auc_bound, gaussian_auc
from tacit.protect import Chain, LabelMechanism, Protection, RandomizedLabels
from tacit.protect import get as get_protection
from tacit.protect.base import EMPIRICAL, Batch, Draft, without_signal
from tacit.protect.labels.keyed_draws import Ids
from tacit.protect.marvell.measured_kl import measured_sum_kl
from tacit.rng import whole
from tacit.rows import to_grid
from tacit.spec import require
from tacit.types import Certificate, Cut, Flips, LabelCertificate, Release, as_tensor

Probs = Tensor | Callable[[], Tensor]
Watcher = Callable[[Cut, Release], None]


@final
class Guard:
    """Protects the gradient at one cut: identity forward, protected gradient backward.

    ``z = guard(bottom(x), y)`` in a training loop, or ``guard.release(cut)`` where the gradient is
    at hand. Every release is checked before it is handed out: finite, right shape and type, noise
    of the planned size in it, power within budget. If a check fails, nothing is released. Gradient
    and noise are added in ``float64`` on the CPU and rounded to one step for all rows.

    The noise key comes from the operating system unless given. The noise of a release is keyed by
    the step, the embedding, the clean gradient and the spec: asking for a step again gives the same
    bytes, and a step with other content is refused.

    Args:
        spec: the protection, such as ``"marvell(s=4)"``.
        seed: replaces the secret key in experiments only: whoever knows it can subtract the noise.
        key: 32 bytes in place of a fresh key, where a run must go on after a restart; one key per
            run. Keep it secret, in a file that only the label party can read: whoever has it can
            subtract the noise. With ``labels``, keep ``label_secret`` as well; another 32 bytes.
        reduction: how the loss averages over the batch. With ``"mean"`` one example's gradient is
            the batch size times what autograd shows; parameters in absolute units refer to it.
        watch: called with every cut and release, one or several, e.g. a ``LeakMonitor`` and a
            ``TapeWriter``; it changes nothing. With a label mechanism the cut holds randomised
            labels.
        labels: a label mechanism, such as ``"rr(epsilon=0.58)"``. Then ``guard.labels(ids, y)``
            randomises labels, and nothing but what it returned is taken as labels. It is up to the
            caller to compute the loss from its ``targets`` too: the guard cannot see which labels
            a gradient came from.
        label_secret: 32 bytes that belong to the data set: labels randomised under another secret
            are released anew, at another epsilon. Fresh by default; from ``seed`` in experiments.
        classes: how many there are; without, more than two are counted as their labels come.
        ledger: counts what is released about each example, and refuses a release before it is made
            if that would overrun its budget; every cut needs ids then. One that would cost more
            than the ledger was planned with goes out as noise without signal.

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
        key: bytes | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        watch: Watcher | Sequence[Watcher] | None = None,
        labels: str | LabelMechanism | None = None,
        label_secret: bytes | None = None,
        classes: int = 2,
        ledger: Ledger | None = None,
    ) -> None:
        require(reduction in ("mean", "sum"), "reduction must be mean or sum", reduction)
        self.protection = get_protection(spec)
        self._spec = str(self.protection)
        self._types = state_types(self.protection.memory_types)
        self.counts: Counter[str] = Counter()
        self._key = noise_key(key, seed, label_secret=label_secret)
        self._mean = reduction == "mean"
        self._classes = classes
        self._watchers = _several(watch)
        self.ledger = ledger
        self.label_guard = (
            None
            if labels is None
            else LabelGuard(labels, classes=classes, key=label_key(label_secret, seed))
        )
        require(labels is not None or label_secret is None, "label_secret needs labels", "none")
        self._last: Last | None = None

    def __call__(
        self,
        z: Tensor,
        y: Tensor | npt.ArrayLike,
        *,
        ids: Tensor | npt.ArrayLike | None = None,
        probs: Probs | None = None,
    ) -> Tensor:
        """Return ``z`` unchanged; the gradient that flows back through it is a release.

        Labels and ids may be lists or arrays. ``probs`` may be a function without arguments,
        called when the gradient arrives: by then the predictions exist.
        """
        y = as_tensor(y, name="labels")
        ids = None if ids is None else as_tensor(ids, name="ids")
        if y.dim() == 0 or len(y) != len(z) or (y.dim() != 1 and self.label_guard is None):
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

    def labels(self, ids: Ids, y: Tensor | npt.ArrayLike) -> RandomizedLabels:
        """Return the labels randomised once per example, the same whenever they are asked for.

        The loss takes ``.targets`` of what is returned (with ``tacit.objective.corrected`` for
        ``correction=forward``). Pass the data set at once and pick rows, or batch by batch.

        >>> guard = Guard("none", labels="rr(epsilon=1)", seed=7)
        >>> y = guard.labels([3, 1, 2], torch.tensor([0, 1, 1]))
        >>> bool((guard.labels([1, 3], torch.tensor([1, 0])) == y[[1, 0]]).all())
        True
        """
        given = as_tensor(y, name="labels")
        return self._label_guard().randomize(ids, given, ledger=self.ledger)

    def label_certificate(self, *, baseline_auc: float | None = None) -> LabelCertificate:
        """Return what the label mechanism guarantees, also beside what features predict alone."""
        return self._label_guard().certificate(baseline_auc=baseline_auc)

    @property
    def flips(self) -> Flips | None:
        """What ``tacit.objective.corrected`` takes; None where targets need no correction."""
        return None if self.label_guard is None else self.label_guard.flips

    def release(self, cut: Cut) -> Release:
        """Return the protected gradients with their certificate, or raise and release nothing."""
        if self.label_guard is not None:
            cut = self.label_guard.admit(cut)
        seen = self.protection.classes_seen(None if self._last is None else self._last.after)
        try:
            batch = Batch.of(cut, needs=self.protection.needs, classes=self._classes, seen=seen)
        except InputError:
            _check_embeddings(cut)
            raise
        width = batch.rows.shape[1]
        self._check_width(width)
        # Without noise there is nothing to average away or to cancel: any step may come again.
        tags = () if self.protection.identity else self._tags(cut, batch)
        step = self._next_step(cut.step)
        last = self._last
        again = bool(tags) and last is not None and step == last.step
        if again and last is not None and tags != last.tags:
            raise ReplayError(
                "this step was released with another embedding, gradient or label: two releases of "
                "one step would let the noise be cancelled; take the next step"
            )
        memory = None if last is None else last.before if again else last.after
        stream = self._key.stream("noise", step, *tags, self._spec)
        draft = self.protection.apply(batch, stream, memory)
        release = self._checked(cut, batch, draft, step)
        if self._planned():
            # Made in any case: the time must not tell which of the two goes out.
            other = without_signal(self.protection.stages[-1], batch, draft, stream)
            withheld = self._checked(cut, batch, other, step)
            if self._over_plan(release.certificate):
                draft, release = other, withheld
        if again:
            return release
        certificate = release.certificate
        self._charge(cut, certificate)
        self._last = Last(
            step=step,
            width=width,
            tags=tags,
            certificate=certificate,
            before=memory,
            after=draft.memory,  # type: ignore[arg-type]
        )
        self.counts[certificate.how] += 1
        for watcher in self._watchers:
            watcher(cut, release)
        return release

    @property
    def last_certificate(self) -> Certificate | None:
        """The certificate of the last release; it stays at the label party."""
        return None if self._last is None else self._last.certificate

    def to_state(self) -> State:
        """Return a copy of what later releases depend on besides the key, as a checkpoint takes it.

        The last step and digests of its content, what the protection remembers, and ``counts``;
        neither key nor labels. Ledger and label guard have states of their own. Class
        statistics are in it: it stays with the label party.
        """
        return pack(self._last, self.counts, spec=self._spec, key=self._key, types=self._types)

    def load_state(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Go on where the guard of the state was, or raise and change nothing.

        Guarantee: with that guard's key and spec, its last step asked for again and all later ones
        have the bytes that they would have had there. Steps it released after the state may come
        again; that their content is the same is for a journal to check.
        """
        last, counts = unpack(arrays, values, spec=self._spec, key=self._key, types=self._types)
        if last is not None:
            self._check_width(last.width)
        self._last, self.counts = last, counts

    def _check_width(self, width: int) -> None:
        if self._last is not None and self._last.width != width:
            raise InputError(f"a guard protects one cut, of width {self._last.width}, got {width}")

    def _label_guard(self) -> LabelGuard:
        if self.label_guard is None:
            raise InputError("this guard has no label mechanism: pass labels='rr(epsilon=1)'")
        return self.label_guard

    def _checked(self, cut: Cut, batch: Batch, draft: Draft, step: int) -> Release:
        """Return a draft as the release that will be sent, or refuse it."""
        grads, grid = self._rounded(cut, draft)
        certificate = self._certify(batch, draft, grads, grid)
        return Release(grads=grads, certificate=certificate, step=step)

    def _planned(self) -> bool:
        """Whether a ledger has planned what a release may cost."""
        plain = self.label_guard is None and not self.protection.identity
        return plain and self.ledger is not None and self.ledger.per_release is not None

    def _over_plan(self, certificate: Certificate) -> bool:
        return self.ledger is not None and self.ledger.over_plan(certificate)

    def _charge(self, cut: Cut, certificate: Certificate) -> None:
        """Count a release that is about to be handed out, or refuse it."""
        if self.ledger is None:
            return
        if cut.ids is None:
            raise InputError("a ledger counts by example: pass ids= with every batch")
        if len(cut.ids) != len(cut.grads):
            raise InputError(f"ids must be [{len(cut.grads)}], got [{len(cut.ids)}]")
        self.ledger.charge(cut.ids, certificate, covered=self.label_guard is not None)

    def _needed(self, probs: Probs | None) -> Tensor | None:
        """Return the probabilities if the protection takes any; they are not computed in vain."""
        if "probs" not in self.protection.needs:
            return None
        return probs() if callable(probs) else probs

    def _tags(self, cut: Cut, batch: Batch) -> tuple[bytes, ...]:
        """Return keyed digests of everything that the noise depends on."""
        content = (cut.grads, cut.embeddings, self._needed(cut.probs), cut.labels)
        planned = None
        if self.ledger is not None and self._planned():  # it decides what is withheld
            planned = self.ledger.per_release, self.ledger.measured
        setting = repr((float(cut.weight).hex(), batch.classes, planned)).encode()
        tags = (b"" if part is None else self._key.tag(part) for part in content)
        return (*tags, self._key.digest(b"setting" + setting))

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

    def _rounded(self, cut: Cut, draft: Draft) -> tuple[Tensor, float]:
        """Return the gradients as they will be sent, and the step they are multiples of."""
        if self.protection.identity:
            grads = draft.rows.to(cut.grads).view_as(cut.grads)
            check_untouched(grads, cut.grads)
            return grads, 0.0
        rows, grid = to_grid(draft.rows, dtype=cut.grads.dtype)
        return rows.to(cut.grads.device).reshape(cut.grads.shape), grid

    def _certify(self, batch: Batch, draft: Draft, grads: Tensor, grid: float) -> Certificate:
        """Check the release against its plans and return what may be claimed of it."""
        unit = 2.0 ** (batch.exponent or 0)
        plans = draft.plans
        power, measured = 0.0, 0.0
        if not self.protection.identity:
            power, measured = check_release(batch, draft, grads, unit=unit, grid=grid)
        best = strongest(self.protection, plans)
        kl = None if best is None else best.sum_kl
        # It takes a decomposition of the batch: only for a ledger that asks for it.
        asked = self.ledger is not None and self.ledger.measured
        counted = asked and best is plans[-1] and len(plans) == 1
        return Certificate(
            spec=self._spec,
            how=" | ".join(plan.how for plan in plans),
            assumption=EMPIRICAL if best is None else best.assumption,
            sum_kl=kl,
            measured_sum_kl=measured_sum_kl(batch, plans[-1]) if counted else None,
            auc_bound=None if kl is None else auc_bound(kl),
            gaussian_auc=None if kl is None else gaussian_auc(kl),
            power=power * unit * unit,
            measured_power=measured * unit * unit,
        )

    def __repr__(self) -> str:
        return f"Guard({self._spec!r}, releases={self.counts.total()})"


def is_guarded(z: Tensor) -> bool:
    """Whether a tensor is what a guard returned; its own gradient is the clean one.

    >>> z = torch.ones(4, 2, requires_grad=True)
    >>> is_guarded(Guard("none")(z, torch.tensor([0, 0, 1, 1]))), is_guarded(z * 1)
    (True, False)
    """
    return isinstance(z.grad_fn, _Seam._backward_cls)


def _several(watch: Watcher | Sequence[Watcher] | None) -> tuple[Watcher, ...]:
    if watch is None:
        return ()
    watchers = (watch,) if callable(watch) else tuple(watch)
    for watcher in watchers:
        require(callable(watcher), "watch takes what can be called with cut and release", watcher)
    return watchers


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


def _check_embeddings(cut: Cut) -> None:
    """Say that the features are at fault where a gradient that is not finite comes from them."""
    sent = cut.embeddings
    if sent is None or torch.isfinite(sent).all():
        return
    rows = int((~torch.isfinite(sent).flatten(1).all(dim=1)).sum())
    raise InputError(
        f"the embedding has NaN or infinity in {rows} of {len(sent)} rows, before any gradient: "
        f"look for missing values in the features and fill them, with 0 or the column's mean"
    )
