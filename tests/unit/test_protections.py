"""The contract over everything registered, and what each protection promises on its own."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from scipy import stats

from guard_examples import SPECS
from tacit import Cut, Guard, measure, protect
from tacit.errors import ParameterError, ReleaseError, ReplayError
from tacit.protect.base import NOISE_ONLY, RUNNING, Batch, Plan, Protection
from tacit.protect.marvell.class_stats import ClassStatistics
from tacit.protect.max_norm import AS_PUBLISHED
from tacit.protect.noise_terms import Along, Isotropic
from tacit.rng import Key
from tacit.testing import ProtectionContract, low_rank_cut
from tacit.training.metrics import RowsWithoutNoise


@pytest.mark.parametrize("check", ProtectionContract.checks())
@pytest.mark.parametrize("spec", SPECS)
def test_contract(spec, check):
    getattr(ProtectionContract(spec), check)()


@dataclass(frozen=True)
class Broken(Protection[None]):
    """A protection with one fault."""

    fault: str = "raw"

    def plan(self, batch: Batch, memory: None) -> Plan[None]:
        if self.fault == "raw":
            return Plan(noise=(), memory=None, how="x")
        if self.fault == "mutates":
            batch.rows.mul_(2.0)
        return Plan(noise=(Isotropic(std=0.5),), memory=None, how="x")

    def apply(self, batch: Batch, stream: Any, memory: Any) -> Any:
        draft = super().apply(batch, stream, memory)
        if self.fault == "forgets":
            return replace(draft, rows=batch.rows.clone())
        if self.fault == "doubles":
            return replace(draft, rows=2 * draft.rows - batch.rows)
        if self.fault == "nan":
            return replace(draft, rows=draft.rows * math.nan)
        return draft


def _run_contract(protection):
    contract = ProtectionContract(protection)
    for check in contract.checks():
        if check != "check_prints_back":  # it is not registered
            getattr(contract, check)()


@pytest.mark.parametrize("fault", ["raw", "mutates", "forgets", "doubles", "nan", "absolute"])
def test_the_contract_catches_a_broken_protection(fault):
    with pytest.raises((AssertionError, ReleaseError)):
        _run_contract(Broken(fault))


@pytest.mark.parametrize("fault", ["raw", "forgets", "doubles", "nan"])
def test_the_guard_releases_nothing_when_a_protection_misbehaves(fault):
    guard = Guard(Broken(fault), seed=1)
    with pytest.raises(ReleaseError):
        guard.release(low_rank_cut())
    assert guard.counts.total() == 0


def test_gaussian_is_in_units_of_one_examples_gradient():
    """With mean reduction autograd shows g / B; the noise shrinks with it."""
    z = torch.zeros(1000, 64, requires_grad=True)
    y = torch.arange(1000) % 2
    for reduction, scale in (("mean", 1 / 1000), ("sum", 1.0)):
        z.grad = None
        out = Guard("gaussian(sigma=0.5)", seed=3, reduction=reduction)(z, y)
        (out.sum() * scale).backward()
        noise = z.grad / scale - 1
        tolerance = stats.norm.isf(1e-9) * math.sqrt(0.5 / noise.numel())
        assert abs(float(noise.std()) / 0.5 - 1) < tolerance


def test_iso_has_the_published_variance():
    cut = low_rank_cut(512, 32)
    plan = protect.Iso(t=3.0).plan(Batch.of(cut), None)
    largest = float(cut.grads.double().norm(dim=1).max())
    assert plan.noise[0].std ** 2 == pytest.approx(3 / 32 * largest**2, rel=1e-6)


def test_max_norm_lifts_every_row_to_the_longest():
    cut = low_rank_cut(256, 16, dtype=torch.float64)
    (part,) = protect.MaxNorm().plan(Batch.of(cut), None).noise
    length = cut.grads.norm(dim=1)
    expected = length**2 + part.std**2
    assert torch.allclose(expected, length.max() ** 2 * torch.ones(256, dtype=torch.float64))
    sigma = (length.max() ** 2 / length**2 - 1).clamp_min(0).sqrt()
    assert torch.allclose(part.std, sigma * length, atol=1e-7)


def test_max_norm_positive_follows_algorithm_5():
    cut = low_rank_cut(256, 16, dtype=torch.float64)
    (part,) = protect.MaxNormPositive().plan(Batch.of(cut), None).noise
    p, y = cut.probs.double(), cut.labels
    p_min = min(float(p[i]) for i in range(256) if y[i] == 1)
    for i in range(256):
        ratio = (1 - p_min) / (1 - float(p[i])) if y[i] == 1 else (1 - p_min) / float(p[i])
        sigma = math.sqrt(max(ratio**2 - 1, 0))
        assert float(part.std[i]) == pytest.approx(sigma * float(cut.grads[i].norm()), abs=1e-6)


def _balanced(rows=64, *, sure=0.0):
    """Predictions on both sides for both classes: about half of the rows get no noise."""
    rng = torch.Generator().manual_seed(3)
    labels = (torch.arange(rows) % 2).long()
    probs = torch.rand(rows, generator=rng, dtype=torch.float64).clamp(0.05, 0.95)
    probs[labels == 1] = probs[labels == 1].clamp_min(0.4 + sure)
    grads = (probs - labels).unsqueeze(1) * torch.randn(1, 8, generator=rng).double()
    return Cut(grads=grads, labels=labels, probs=probs)


def test_algorithm_5_as_published_leaves_rows_as_they_are_and_counts_them():
    cut = _balanced()
    longest = float((1 - cut.probs[cut.labels == 1]).max())
    bare = ((cut.probs - cut.labels).abs() >= longest).nonzero().flatten()
    assert len(bare) > 2
    guard, counted = Guard("max_norm_positive_published", seed=1), RowsWithoutNoise()
    release = guard.release(cut)
    counted(cut, release)
    step = float(release.grads.abs().max()) * 2.0**-15
    same = ((release.grads - cut.grads).abs() <= step).all(dim=1).nonzero().flatten()
    assert torch.equal(same, bare)
    assert guard.counts == {AS_PUBLISHED: 1}
    share = len(bare) / 64
    assert counted.record() == {"count": len(bare), "rows": 64, "share": share, "most": len(bare)}
    # The default form releases noise without signal, or the running length of earlier batches.
    assert not torch.equal(
        Guard("max_norm_positive", seed=1).release(cut).grads[bare], cut.grads[bare]
    )


def test_algorithm_5_as_published_gives_the_other_rows_its_noise():
    cut = _balanced()
    (part,) = protect.PublishedMaxNormPositive().plan(Batch.of(cut), None).noise
    gap = (cut.probs - cut.labels).abs()
    longest = float(gap[cut.labels == 1].max())
    sigma = ((longest / gap) ** 2 - 1).clamp_min(0).sqrt()
    torch.testing.assert_close(part.std, sigma * cut.grads.norm(dim=1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("labels", [0, 1])
def test_algorithm_5_as_published_never_releases_a_whole_batch_as_it_is(labels):
    """Without positives its rule says nothing, and of one probability it gives no row noise."""
    cut = _balanced()
    alone = replace(cut, labels=torch.full((64,), labels), probs=torch.full((64,), 0.5).double())
    for first in (True, False):
        guard = Guard("max_norm_positive_published", seed=1)
        if not first:
            guard.release(cut)
        out = guard.release(alone).grads
        step = float(out.abs().max()) * 2.0**-15
        assert int(((out - alone.grads).abs() <= step).all(dim=1).sum()) <= 1


def test_statistics_match_the_obvious_formula():
    for dtype, scale in ((torch.float32, 1.0), (torch.float64, 1e-200), (torch.float32, 1e-30)):
        cut = low_rank_cut(3000, 100, dtype=dtype)
        cut = replace(cut, grads=cut.grads * scale)
        found = ClassStatistics.of(Batch.of(cut))
        g = cut.grads.double() / 2.0**found.exponent
        one, zero = g[cut.labels == 1], g[cut.labels == 0]
        assert torch.allclose(torch.tensor(found.difference), one.mean(0) - zero.mean(0), rtol=1e-9)
        assert found.v == pytest.approx(float(one.var(0, correction=0).mean()), rel=1e-9)
        assert found.u == pytest.approx(float(zero.var(0, correction=0).mean()), rel=1e-9)
        assert (found.positives, found.negatives) == (len(one), len(zero))


@pytest.mark.parametrize("spec", ["marvell(s=4)", "marvell(sum_kl=0.64)", "marvell(error=0.4)"])
@pytest.mark.parametrize("positives_wider", [True, False])
def test_marvell_certificate_is_the_divergence_of_the_noise_it_drew(spec, positives_wider):
    """Recompute it from the plan with full matrices, by a formula written elsewhere."""
    cut = low_rank_cut(400, 6, dtype=torch.float64)
    if not positives_wider:
        cut = replace(cut, labels=1 - cut.labels)
    batch = Batch.of(cut)
    plan = protect.get(spec).stages[0].plan(batch, None)
    found = ClassStatistics.of(batch)
    unit = 2.0**found.exponent
    covariance = [found.u * torch.eye(6).double(), found.v * torch.eye(6).double()]
    for part in plan.noise:
        for side in (0, 1):
            std = float(part.std[cut.labels == side][0]) / unit
            shape = torch.eye(6).double()
            if isinstance(part, Along):
                shape = part.direction.outer(part.direction)
            covariance[side] = covariance[side] + std**2 * shape
    zero = torch.zeros(6).double()
    expected = measure.sum_kl(found.difference, covariance[1], zero, covariance[0])
    certificate = Guard(spec, seed=1).release(cut).certificate
    assert certificate.sum_kl == pytest.approx(expected, rel=1e-9)
    assert certificate.auc_bound == measure.auc_bound(certificate.sum_kl)
    assert certificate.gaussian_auc == measure.gaussian_auc(certificate.sum_kl)
    if "s=" in spec:
        assert certificate.power == pytest.approx(4 * found.gap * unit**2, rel=1e-9)
    else:
        assert certificate.sum_kl == pytest.approx(0.64 if "sum_kl" in spec else 0.16, rel=1e-9)


def test_marvell_falls_back_on_running_statistics_then_on_noise():
    ordinary, other = low_rank_cut(64, 8), low_rank_cut(64, 8, seed=1)
    lonely = torch.zeros(64, dtype=torch.int64)
    lonely[5] = 1
    for labels in (torch.zeros_like(lonely), torch.ones_like(lonely), lonely, 1 - lonely):
        cut = replace(other, labels=labels)
        guard = Guard("marvell(s=4)", seed=1)
        cold = guard.release(cut)
        assert cold.certificate.how == NOISE_ONLY
        assert cold.certificate.sum_kl == 0
        guard.release(ordinary)
        warm = guard.release(cut)
        assert warm.certificate.how == RUNNING
        assert guard.counts[RUNNING] == guard.counts[NOISE_ONLY] == 1
        # Close to the gradients, but as noisy as an ordinary batch: power s * gap on average.
        assert warm.certificate.measured_power > 0


@pytest.mark.parametrize("spec", ["marvell(s=4)", "marvell(s=4, covariance=full)"])
def test_noise_without_signal_holds_no_signal(spec):
    """Rows of one class and very different lengths: none of it is in the release."""
    rng = torch.Generator().manual_seed(0)
    size = torch.exp(2 * torch.randn(4096, 1, generator=rng))
    cut = Cut(grads=size * (1 + torch.randn(4096, 16, generator=rng)), labels=torch.zeros(4096))
    out = Guard(spec, seed=1).release(cut).grads
    for ours, theirs in ((out.norm(dim=1), size[:, 0]), (out.mean(dim=1), cut.grads.mean(dim=1))):
        assert stats.spearmanr(ours, theirs).pvalue > 1e-9
    aligned = (out * cut.grads).sum(dim=1) > 0
    assert stats.binomtest(int(aligned.sum()), 4096).pvalue > 1e-9


def _steps(positives, count, *, rows=64, width=16):
    """First releases of so many runs with a logistic top model, and their batches' labels."""
    for seed in range(count):
        rng = torch.Generator().manual_seed(seed)
        line = torch.randn(width, generator=rng) / width**0.5
        z = torch.randn(rows, width, generator=rng) + 1
        hidden = torch.sigmoid(z) * line  # the line varies from row to row, as behind two layers
        y = (torch.arange(rows) < positives).float()
        p = torch.sigmoid(0.1 * torch.randn(rows, generator=rng))
        grads = (p - y).unsqueeze(1) * hidden / rows
        yield Cut(grads=grads, labels=y, probs=p, weight=1 / rows)


@pytest.mark.parametrize(
    "spec",
    ["marvell(s=4)", "marvell(sum_kl=0.16)", "marvell(s=4, covariance=full)", "max_norm_positive"],
)
def test_a_first_release_without_signal_looks_like_one_with_it(spec):
    """Size and shape of first releases, of batches with and without positives, over 60 runs.

    The isotropic noise at a fixed scale that stood here was told from the others every time.
    """

    def looks(positives):
        found = []
        for seed, cut in enumerate(_steps(positives, 60)):
            rows = Guard(spec, seed=seed).release(cut).grads.double() / cut.weight
            spectrum = torch.linalg.svdvals(rows)
            found.append((float(rows.norm()), float(spectrum[0] / spectrum.norm())))
        return list(zip(*found, strict=True))

    for with_them, without in zip(looks(20), looks(0), strict=True):
        told = measure.leak_auc([*with_them, *without], [0] * 60 + [1] * 60)
        assert told < 0.95
        middle = sorted(without)[30]
        assert min(with_them) / 4 < middle < 4 * max(with_them)


def test_a_later_stage_may_withhold_what_earlier_ones_made():
    cut = replace(low_rank_cut(64, 8), labels=torch.zeros(64))
    certificate = Guard("iso(1) | marvell(s=4)", seed=1).release(cut).certificate
    assert NOISE_ONLY in certificate.how
    assert certificate.sum_kl == 0


def test_running_noise_is_not_too_small_for_a_larger_batch():
    """Also where the largest value lies between a half and one, whose exponent is zero."""
    for spec in ("marvell(s=4)", "marvell(s=4, covariance=full)"):
        for peak in (0.4, 0.75, 1.5):
            cut, guard = low_rank_cut(64, 8), Guard(spec, seed=1)
            guard.release(replace(cut, grads=cut.grads * 1e-4))
            grads = cut.grads / cut.grads.abs().max() * peak
            release = guard.release(replace(cut, grads=grads, labels=torch.zeros(64)))
            assert release.certificate.how == RUNNING
            relative = (release.grads - grads).norm() / grads.norm()
            assert float(relative) > 0.2


def test_running_noise_leaves_no_class_as_it_is():
    """Where the optimum gives the wider class none, a batch of that class alone still gets some."""
    rng = torch.Generator().manual_seed(0)
    labels = (torch.arange(64) < 32).long()
    spread = torch.where(labels == 1, 0.3, 2.0).unsqueeze(1)
    grads = labels.unsqueeze(1) * 1.0 + spread * torch.randn(64, 16, generator=rng)
    for left in (torch.zeros(64), (torch.arange(64) == 5).long()):
        guard = Guard("marvell(s=4)", seed=1)
        guard.release(Cut(grads=grads, labels=labels))
        out = guard.release(Cut(grads=grads, labels=left)).grads
        assert ((out - grads).abs() > 1e-2).any(dim=1).all()


def test_equal_rows_of_two_classes_do_not_crash():
    for spec in ("marvell(s=4)", "marvell(s=4, covariance=full)"):
        for labels in (torch.arange(16) % 2, torch.zeros(16)):
            cut = Cut(grads=torch.full((16, 40), 0.3), labels=labels)
            assert not (Guard(spec, seed=1).release(cut).grads == cut.grads).all(dim=1).any()


def test_another_weight_is_another_content():
    """Two releases of one step under one noise at two sizes would show the gradient."""
    cut, guard = replace(low_rank_cut(64, 8), step=0), Guard("gaussian(1)", seed=1)
    guard.release(cut)
    with pytest.raises(ReplayError):
        guard.release(replace(cut, weight=0.5))


def test_running_statistics_are_averaged_whatever_their_scale():
    a, b = low_rank_cut(64, 8), low_rank_cut(64, 8, seed=1)
    b = replace(b, grads=b.grads * 2.0**20)
    one, two = (ClassStatistics.of(Batch.of(c)) for c in (a, b))
    mixed = ClassStatistics.average([one, two])
    unit = 4.0**mixed.exponent
    for name in ("u", "v", "gap"):
        each = [getattr(s, name) * 4.0**s.exponent for s in (one, two)]
        assert getattr(mixed, name) * unit == pytest.approx(sum(each) / 2, rel=1e-12)
    assert mixed.positives == one.positives + two.positives


def test_running_statistics_do_not_cancel():
    """Two batches with opposite mean differences, then one of a single class: still noise."""
    cut = low_rank_cut(64, 8)
    guard = Guard("marvell(s=4)", seed=1)
    guard.release(cut)
    power = guard.release(replace(cut, grads=-cut.grads)).certificate.power
    alone = guard.release(replace(cut, labels=torch.zeros_like(cut.labels)))
    assert alone.certificate.how == RUNNING
    assert alone.certificate.sum_kl is None
    assert alone.certificate.power > 0.1 * power
    huge = replace(cut, labels=torch.zeros_like(cut.labels), grads=cut.grads * 1e4)
    assert guard.release(huge).certificate.measured_power > power * 1e6


def test_several_rows_as_long_as_the_longest_do_not_go_out_raw():
    """Clipped gradients: every positive at the maximum would otherwise stand out by its silence."""
    rows = torch.nn.functional.normalize(torch.randn(32, 8), dim=1)
    labels = (torch.arange(32) < 16).long()
    rows[labels == 0] *= 0.5
    cut = Cut(grads=rows, labels=labels, probs=torch.full((32,), 0.5))
    for spec in ("max_norm", "max_norm_positive"):
        guard = Guard(spec, seed=1)
        for _ in range(2):
            out = guard.release(cut).grads
            assert int((out == rows).all(dim=1).sum()) <= 1, spec


def test_bool_labels_are_labels():
    cut = low_rank_cut(64, 8)
    for spec in ("marvell(s=4)", "max_norm_positive"):
        out = Guard(spec, seed=1).release(replace(cut, labels=cut.labels.bool())).grads
        assert torch.isfinite(out).all()


def test_the_weighted_error_is_a_sum_kl_of_its_own():
    cut = low_rank_cut(512, 16)

    def claim(spec):
        return Guard(spec, seed=1).release(cut).certificate.sum_kl

    assert claim("marvell(error=0.05, share=0.1)") == pytest.approx(4 * (1 - 0.5) ** 2)
    assert claim("marvell(error=0.05, share=0.9)") == pytest.approx(1.0)
    assert claim("marvell(error=0.4, share=0.5)") == claim("marvell(error=0.4)")


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("marvell(error=0.1, share=0.1)", "error must be at least 0 and below 0.1, got 0.1"),
        ("marvell(error=0.1, share=0)", "share must be above 0 and below 1, got 0"),
        ("marvell(s=4, share=0.1)", "which must be given, got 0.1"),
    ],
)
def test_a_weighted_error_has_its_limits(spec, rule):
    with pytest.raises(ParameterError, match=rule):
        protect.get(spec)


def test_chain_keeps_the_best_certificate_and_adds_up_the_power():
    cut = low_rank_cut(512, 16)
    alone = Guard("marvell(s=4)", seed=1).release(cut).certificate
    chained = Guard("marvell(s=4) | gaussian(1)", seed=1).release(cut).certificate
    assert chained.sum_kl == pytest.approx(alone.sum_kl, rel=1e-9)
    assert chained.power == pytest.approx(alone.power + 16, rel=1e-6)
    assert Guard("max_norm | iso(1)", seed=1).release(cut).certificate.sum_kl is None


def test_a_later_stage_that_looks_at_labels_voids_earlier_claims():
    cut = low_rank_cut(512, 16)

    def claim(spec):
        certificate = Guard(spec, seed=1).release(cut).certificate
        assert (certificate.sum_kl is None) == (certificate.auc_bound is None)
        return certificate.sum_kl

    assert claim("marvell(sum_kl=0.01)") == pytest.approx(0.01)
    assert claim("marvell(sum_kl=0.01) | max_norm_positive") is None
    assert claim("marvell(sum_kl=0.01) | max_norm | iso(1)") == pytest.approx(0.01)
    # Marvell assumes isotropic classes: not after noise along a direction.
    assert claim("marvell(sum_kl=0.01) | marvell(sum_kl=0.5)") is None
    assert claim("max_norm | marvell(sum_kl=0.5)") is None
    assert claim("iso(1) | marvell(sum_kl=0.5)") == pytest.approx(0.5)


def test_a_target_that_is_met_already_still_gets_noise():
    grads = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(512) % 4 == 0).long()
    release = Guard("marvell(sum_kl=100)", seed=1).release(Cut(grads=grads, labels=labels))
    assert release.certificate.power > 0
    assert release.certificate.sum_kl < 100
    assert not torch.equal(release.grads, grads)


@pytest.mark.parametrize("spec", ["gaussian(1) | max_norm", "iso(t=25) | max_norm"])
def test_every_stage_of_a_chain_is_checked_on_its_own(spec):
    """The second stage's noise follows the first's: together they are no independent Gaussians."""
    for seed in range(20):
        Guard(spec, seed=seed).release(low_rank_cut(16, 2000, seed=seed))
    assert Guard(spec, seed=0).release(low_rank_cut(16, 20)).certificate.power > 0


def test_streams_of_two_stages_are_not_the_same_numbers():
    cut = low_rank_cut(64, 8)
    draft = protect.get("gaussian(1) | gaussian(1)").apply(
        Batch.of(cut), Key.from_seed(1).stream("x"), None
    )
    noise = draft.rows - cut.grads
    # Two independent unit normals: variance 2. The same one twice would give 4.
    assert float(noise.var()) == pytest.approx(2, abs=6 * 2 * math.sqrt(2 / noise.numel()))
