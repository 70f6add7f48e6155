"""The contract every protection keeps, ready to run against a new one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from scipy import stats
from torch import Tensor

from tacit.errors import InputError, ReleaseError
from tacit.guard import Guard
from tacit.protect import Chain, Protection
from tacit.protect import get as get_protection
from tacit.protect.base import Batch, draw
from tacit.protect.noise_terms import Isotropic, Part, Shaped
from tacit.rng import Key
from tacit.testing.checks import Contract
from tacit.testing.gradients import low_rank_cut, many_class_cut
from tacit.types import Cut

_RARE = 1e-9  # probability with which a correct protection may fail a statistical check
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@final
class ProtectionContract(Contract):
    """Checks a protection through the guard, as users meet it, and its noise by its moments.

    With ``classes`` above 2, by batches of so many. Every ``check_*`` method raises
    ``AssertionError`` with a reason; ``check_all`` runs them all and names the one that failed.

    >>> ProtectionContract("iso(t=1)").check_all()
    """

    def __init__(self, spec: str | Protection[Any], *, classes: int = 2) -> None:
        self.protection: Chain = get_protection(spec)
        self.classes = classes

    @property
    def subject(self) -> str:
        """The spec of the protection."""
        return str(self.protection)

    def check_prints_back(self) -> None:
        """The spec string describes the same object."""
        assert get_protection(str(self.protection)) == self.protection, str(self.protection)

    def check_shapes_and_dtypes(self) -> None:
        """Any trailing shape, any float type, d = 1: the release has the form of the input."""
        for dtype in _DTYPES:
            for shape in ((64, 12), (64, 2, 3, 2), (64, 1), (64,)):
                cut = self._cut(64, math.prod(shape[1:]), dtype=dtype)
                cut = replace(cut, grads=cut.grads.reshape(shape))
                grads = self._release(cut)
                assert grads.shape == cut.grads.shape, f"shape {grads.shape}, not {shape}"
                assert grads.dtype == dtype, f"dtype {grads.dtype}, not {dtype}"
                assert bool(torch.isfinite(grads).all()), f"not finite at {dtype} {shape}"

    def check_trailing_shape_is_a_row(self) -> None:
        """Trailing dimensions are one row: flattening first changes nothing."""
        cut = self._cut(32, 12)
        folded = replace(cut, grads=cut.grads.reshape(32, 2, 6))
        assert torch.equal(self._apply(cut), self._apply(folded)), "the shape changed the noise"

    def check_does_not_touch_its_input(self) -> None:
        """Gradients, labels and probabilities are left as they were."""
        for dtype in _DTYPES:
            cut = self._cut(64, 8, dtype=dtype)
            before = [t.clone() for t in (cut.grads, cut.labels, cut.probs) if t is not None]
            self._release(cut)
            after = [t for t in (cut.grads, cut.labels, cut.probs) if t is not None]
            assert all(map(torch.equal, before, after)), f"an input was changed at {dtype}"

    def check_same_stream_same_release(self) -> None:
        """The same key and step give the same bytes; another step or key gives other noise."""
        cut = self._cut(64, 8)
        first, again = self._release(cut, step=3), self._release(cut, step=3)
        assert torch.equal(first, again), "the same key and step gave another release"
        if not self.protection.identity:
            assert not torch.equal(first, self._release(cut, step=4)), "two steps share noise"
            assert not torch.equal(first, self._release(cut, step=3, seed=8)), (
                "two keys share noise"
            )

    def check_scale_free(self) -> None:
        """Gradients of 1e-24 or 1e+20 get exactly the protection of gradients of one."""
        cut = self._cut(64, 8)
        plain = self._apply(cut)
        for factor in (2.0**-80, 2.0**66):
            scaled = replace(cut, grads=cut.grads * factor, weight=factor)
            same = torch.equal(self._apply(scaled), plain * factor)
            assert same, f"gradients times {factor:g} are protected differently"

    def check_one_grid(self) -> None:
        """All values are multiples of one power of two, 16 bits below the largest or coarser."""
        for dtype in _DTYPES * (not self.protection.identity):
            grads = self._release(self._cut(64, 8, dtype=dtype)).double()
            step = 2.0 ** (math.frexp(float(grads.abs().max()))[1] - 16)
            assert torch.equal(grads / step, (grads / step).round()), f"finer bits at {dtype}"

    def check_zero_rows_beside_huge_ones(self) -> None:
        """Rows of zero next to rows of 1e8: finite, and no zero row stays zero.

        Noise in absolute units may be lost in such rows; then the guard must refuse.
        """
        cut = self._cut(64, 8)
        grads = cut.grads * 1e8
        grads[::2] = 0.0
        try:
            out = self._release(replace(cut, grads=grads))
        except ReleaseError:
            assert not self.protection.scale_free, "refused a batch that has a scale"
            return
        assert bool(torch.isfinite(out).all()), "not finite"
        if not self.protection.identity:
            assert bool((out[::2] != 0).any(dim=1).all()), "a zero row was released as zero"

    def check_every_row_is_perturbed(self) -> None:
        """In an ordinary batch no more rows stay as they are than the published rule leaves."""
        self._check_not_raw(self._guard(1), self._cut(64, 8), "ordinary batch")

    def check_hard_batches_cold(self) -> None:
        """Batches that support no statistics, at the very start: never the raw gradient."""
        for name, cut in _hard_batches(self._cut(32, 8, seed=2), self.classes).items():
            self._check_not_raw(self._guard(1), cut, f"{name}, nothing seen before")

    def check_hard_batches_warm(self) -> None:
        """The same batches after an ordinary one: never the raw gradient."""
        for name, cut in _hard_batches(self._cut(32, 8, seed=2), self.classes).items():
            guard = self._guard(1)
            guard.release(self._cut(64, 8, seed=5))
            self._check_not_raw(guard, cut, f"{name}, after an ordinary batch")

    def check_goes_on_after_a_restart(self) -> None:
        """A guard that is stored and loaded again releases the bytes that the first one would."""
        cuts = [self._cut(32, 8, seed=seed) for seed in range(6)]
        hard = list(_hard_batches(cuts[0], self.classes).values())
        first, second = self._guard(1), self._guard(1)
        for cut in cuts[:3]:
            first.release(cut)
        arrays, values = first.to_state()
        second.load_state(arrays, json.loads(json.dumps(values)))
        for cut in (*hard, *cuts[3:]):
            same = torch.equal(first.release(cut).grads, second.release(cut).grads)
            assert same, "a guard that was stored and loaded releases something else"

    def check_moments(self) -> None:
        """Over many draws the noise has mean zero and exactly the planned covariance."""
        for stage in self.protection.stages:
            _check_moments(stage, self._cut(24, 6, dtype=torch.float64))

    def check_what_a_budget_is_planned_from(self) -> None:
        """No release claims more than is declared for all, and noise is of the declared kind."""
        for stage in self.protection.stages:
            limit = stage.largest_sum_kl()
            assert limit is None or 0 < limit < math.inf, f"{stage} declares a sum_kl of {limit}"
            assert stage.why_unplanned(), f"{stage} does not say why nothing can be planned"
            guard = Guard(stage, seed=1, classes=self.classes)
            ordinary = [self._cut(64, 8, seed=seed) for seed in range(4)]
            for cut in (*ordinary, *_hard_batches(ordinary[0], self.classes).values()):
                found = guard.release(cut).certificate.sum_kl
                if limit is not None and found is not None:
                    assert found <= limit * (1 + 1e-9), f"{stage}: {found} is above {limit}"
            noise = stage.plan(Batch.of(ordinary[0]), None).noise
            alike = all(isinstance(p, Isotropic) and isinstance(p.std, float) for p in noise)
            assert alike or not stage.keeps_gaussian, f"{stage}: rows get different noise"

    def check_refuses_bad_input(self) -> None:
        """NaN, infinity, unequal lengths, labels or probabilities out of range."""
        cut = self._cut(16, 4)
        for value in (math.nan, math.inf, -math.inf):
            grads = cut.grads.clone()
            grads[3, 2] = value
            self._must_refuse(replace(cut, grads=grads), InputError)
        self._must_refuse(replace(cut, labels=cut.labels[:-1]), InputError)
        self._must_refuse(replace(cut, grads=cut.grads.to(torch.int64)), InputError)
        if "labels" in self.protection.needs:
            self._must_refuse(replace(cut, labels=cut.labels + 1), InputError)
        if "probs" in self.protection.needs:
            self._must_refuse(replace(cut, probs=None), InputError)
            self._must_refuse(replace(cut, probs=torch.full((16,), 1.5)), InputError)

    def _cut(self, batch: int, width: int, **more: Any) -> Cut:  # noqa: ANN401
        if self.classes == 2:
            return low_rank_cut(batch, width, **more)
        return many_class_cut(batch, width, classes=self.classes, **more)

    def _guard(self, seed: int) -> Guard:
        return Guard(self.protection, seed=seed, classes=self.classes)

    def _release(self, cut: Cut, *, step: int = 0, seed: int = 7) -> Tensor:
        return self._guard(seed).release(replace(cut, step=step)).grads

    def _apply(self, cut: Cut) -> Tensor:
        stream = Key.from_seed(7).stream("contract")
        return self.protection.apply(Batch.of(cut), stream, None).rows

    def _must_refuse(self, cut: Cut, error: type[Exception]) -> None:
        guard = self._guard(7)
        try:
            guard.release(cut)
        except error:
            assert guard.counts.total() == 0, "a refused release was counted"
            return
        raise AssertionError(f"{self.protection} released what it must refuse with {error}")

    def _check_not_raw(self, guard: Guard, cut: Cut, case: str) -> None:
        out = guard.release(cut).grads
        assert bool(torch.isfinite(out).all()), f"not finite: {case}"
        if not self.protection.identity:
            step = float(out.abs().max()) * 2.0**-15  # rounding alone changes less
            raw = int(((out - cut.grads).abs() <= step).all(dim=1).sum())
            assert raw <= self.protection.raw_rows, f"{raw} raw rows were released: {case}"


def _hard_batches(cut: Cut, classes: int) -> dict[str, Cut]:
    zeros, ones = torch.zeros_like(cut.labels), torch.ones_like(cut.labels)
    single = replace(cut, grads=cut.grads[:1], labels=ones[:1], probs=_head(cut.probs))
    two, rare = cut.labels % 2, cut.labels.clamp(max=1)
    rare[5] = classes - 1
    few = {"two of many classes": two, "a class of one row": rare} if classes > 2 else {}
    return {
        **{name: replace(cut, labels=labels) for name, labels in few.items()},
        "a batch of one": single,
        "only negatives": replace(cut, labels=zeros, grads=_equal_rows(cut)),
        "only positives": replace(cut, labels=ones, grads=_equal_rows(cut)),
        "all gradients zero": replace(cut, grads=torch.zeros_like(cut.grads)),
        "equal rows in both classes": replace(cut, grads=_equal_rows(cut)),
    }


def _equal_rows(cut: Cut) -> Tensor:
    return cut.grads[:1].expand_as(cut.grads).contiguous()


def _head(probs: Tensor | None) -> Tensor | None:
    return None if probs is None else probs[:1]


def _check_moments(stage: Protection[Any], cut: Cut, *, draws: int = 400) -> None:
    batch = Batch.of(cut)
    plan = stage.plan(batch, None)
    key = Key.from_seed(11)
    noise = torch.stack(
        [draw(plan, batch.rows, key.stream("moments", i)) - batch.rows for i in range(draws)]
    )
    if not plan.noise:
        assert not noise.any(), "noise without a plan"
        return
    for probe in (*torch.eye(6, dtype=torch.float64), torch.full((6,), 6**-0.5).double()):
        planned = _variance_along(plan.noise, probe, len(batch.rows))
        _check_projection(noise @ probe, planned)


def _variance_along(parts: tuple[Part, ...], probe: Tensor, count: int) -> Tensor:
    """Return the planned variance of each row's noise along a unit vector."""
    total = torch.zeros(count, dtype=torch.float64)
    for part in parts:
        if isinstance(part, Isotropic):
            total += part.std**2
        elif isinstance(part, Shaped):
            seen = probe if part.basis is None else part.basis.double() @ probe
            total += (part.scale * (part.cores @ seen)).square().sum(dim=1)[part.owner]
        else:
            total += (part.std * (part.direction.double() @ probe)).square()
    return total


def _check_projection(values: Tensor, planned: Tensor) -> None:
    """Compare ``[draws, rows]`` with their planned variance: mean and variance, exact quantiles."""
    draws, rows = values.shape
    noisy = planned > 1e-12 * planned.max()
    still: Callable[[Tensor], bool] = lambda x: bool((x.abs() < 1e-6).all())  # noqa: E731
    assert still(values[:, ~noisy]), "noise in a row that should get none"
    tail = _RARE / rows
    z = values.mean(0)[noisy] / (planned[noisy] / draws).sqrt()
    assert float(z.abs().max()) < stats.norm.isf(tail), f"biased: {float(z.abs().max()):.1f} sigma"
    ratio = values.square().sum(0)[noisy] / planned[noisy]
    low, high = stats.chi2.ppf(tail, draws), stats.chi2.isf(tail, draws)
    assert low < float(ratio.min()), f"variance too small: {float(ratio.min()) / draws:.2f}"
    assert float(ratio.max()) < high, f"variance too large: {float(ratio.max()) / draws:.2f}"
