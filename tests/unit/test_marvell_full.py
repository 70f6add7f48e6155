"""Marvell for classes of any covariance: equal covariances, exact claims, known limits."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

from tacit import Cut, Guard, measure, protect
from tacit.errors import ReleaseError
from tacit.protect.base import BATCH, NOISE_ONLY, RUNNING, Batch, draw
from tacit.protect.class_blocks import ClassBlocks
from tacit.protect.marvell.full import FullNoise
from tacit.protect.marvell.full_solver import Shares, solve_full
from tacit.protect.marvell.measured_kl import measured_sum_kl
from tacit.protect.marvell.subspace import ClassCovariances
from tacit.protect.noise_terms import Isotropic, Shaped
from tacit.rng import Key
from tacit.testing import low_rank_cut

FULL = "marvell(s=4, covariance=full)"
SPECS = [
    FULL,
    "marvell(s=0.02, covariance=full)",
    "marvell(sum_kl=0.16, covariance=full)",
    "marvell(error=0.4, covariance=full)",
]
SHAPES = [(400, 6), (64, 20), (40, 100), (12, 400)]
BARE = Shares(surplus=0.0, cover=0.0, floor=0.0)


def _cut(batch, width, *, spread=0.02, seed=0):
    """A low-rank cut with a little of every direction in it, in float64."""
    cut = low_rank_cut(batch, width, seed=seed, dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed + 1)
    noise = spread * torch.randn(batch, width, generator=rng, dtype=torch.float64)
    return replace(cut, grads=cut.grads + noise / width**0.5)


def _plan(spec, cut, memory=None):
    return protect.get(spec).stages[0].plan(Batch.of(cut), memory)


def _noise_covariances(plan, cut):
    """Both classes' noise covariance in all dimensions, from the parts that are drawn."""
    width = cut.grads.shape[1]
    found = [np.zeros((width, width)), np.zeros((width, width))]
    for part in plan.noise:
        if isinstance(part, Isotropic):
            found = [noise + part.std**2 * np.eye(width) for noise in found]
            continue
        assert isinstance(part, Shaped)
        assert torch.equal(part.owner, cut.labels)
        for side, core in enumerate(part.cores):
            factor = part.scale * (core if part.basis is None else core @ part.basis)
            found[side] = found[side] + (factor.T @ factor).numpy()
    return found


def _samples(cut):
    """Mean difference and both sample covariances, by numpy."""
    one, zero = (cut.grads[cut.labels == side].double().numpy() for side in (1, 0))
    difference = one.mean(axis=0) - zero.mean(axis=0)
    return difference, np.cov(zero.T, bias=True), np.cov(one.T, bias=True)


def _random_case(d, seed=0):
    rng = torch.Generator().manual_seed(seed)
    root0, root1 = (torch.randn(d, d, generator=rng, dtype=torch.float64) for _ in range(2))
    difference = torch.randn(d, generator=rng, dtype=torch.float64).numpy()
    covs = torch.stack([root0 @ root0.T / d, 0.3 * root1 @ root1.T])
    return {"difference": difference, "covs": covs}


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("spec", [FULL, "marvell(sum_kl=0.16, covariance=full)"])
def test_both_perturbed_covariances_agree(spec, shape):
    cut = _cut(*shape)
    noise0, noise1 = _noise_covariances(_plan(spec, cut), cut)
    _, cov0, cov1 = _samples(cut)
    after0, after1 = cov0 + noise0, cov1 + noise1
    assert np.abs(cov0 - cov1).max() > 0.01 * np.abs(cov1).max()
    assert np.abs(after0 - after1).max() < 1e-7 * np.abs(after0).max()


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("spec", SPECS)
def test_the_certificate_is_the_divergence_of_the_perturbed_samples(spec, shape):
    cut = _cut(*shape)
    noise0, noise1 = _noise_covariances(_plan(spec, cut), cut)
    difference, cov0, cov1 = _samples(cut)
    zero = np.zeros_like(difference)
    expected = measure.sum_kl(difference, cov1 + noise1, zero, cov0 + noise0)
    certificate = Guard(spec, seed=1).release(cut).certificate
    assert certificate.how == BATCH
    assert certificate.sum_kl == pytest.approx(expected, rel=1e-6)
    assert certificate.auc_bound == measure.auc_bound(certificate.sum_kl)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_power_is_what_was_asked_for(shape):
    cut = _cut(*shape)
    difference, _, _ = _samples(cut)
    for s in (4.0, 0.02):
        plan = _plan(f"marvell(s={s}, covariance=full)", cut)
        certificate = Guard(f"marvell(s={s}, covariance=full)", seed=1).release(cut).certificate
        assert certificate.power == pytest.approx(s * (difference @ difference), rel=1e-8)
        assert plan.limit == pytest.approx(math.sqrt(s * (difference @ difference)), rel=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", [1e-4, 0.16, 1.0])
def test_a_target_is_reached(shape, target):
    spec = f"marvell(sum_kl={target}, covariance=full)"
    certificate = Guard(spec, seed=1).release(_cut(*shape)).certificate
    assert certificate.sum_kl == pytest.approx(target, rel=1e-9)


def test_a_loose_target_still_gets_noise():
    cut = _cut(400, 6)
    difference, _, _ = _samples(cut)
    release = Guard("marvell(sum_kl=1e6, covariance=full)", seed=1).release(cut)
    assert release.certificate.sum_kl < 1e6
    assert release.certificate.power > 0.02 * (difference @ difference)


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_equal_covariances_recover_the_published_optimum(p):
    """Noise along the mean difference alone: the one-dimensional problem."""
    for d in (1, 5):
        case = {"difference": np.arange(1.0, d + 1), "width": d, "p": p}
        gap = float(case["difference"] @ case["difference"])
        for u in (0.1, 3.0):
            case["covs"] = u * torch.eye(d, dtype=torch.float64).expand(2, d, d)
            ours = solve_full(**case, power=4 * gap, shares=BARE)
            best = protect.solve_marvell(d=d, p=p, u=u, v=u, gap=gap, power=4 * gap)
            assert torch.allclose(*ours.noise, rtol=1e-12)
            assert ours.power == pytest.approx(best.power, rel=1e-12)
            assert ours.sum_kl == pytest.approx(gap / (u + 4 * gap), rel=1e-12)
            # The published optimum may favour a class: with equal weights it does not.
            assert ours.sum_kl >= best.sum_kl * (1 - 1e-12)
            if p == 0.5:
                assert ours.sum_kl == pytest.approx(best.sum_kl, rel=1e-9)
                target = solve_full(**case, sum_kl=0.2, shares=BARE)
                least = protect.solve_marvell(d=d, p=p, u=u, v=u, gap=gap, sum_kl=0.2)
                assert target.power == pytest.approx(least.power, rel=1e-9)


def test_isotropic_classes_approach_the_published_optimum_as_power_grows():
    d, gap, u, v = 4, 1.0, 0.2, 0.5
    eye = torch.eye(d, dtype=torch.float64)
    difference = np.full(d, d**-0.5)
    ratios = []
    for power in (2.0, 20.0, 2000.0):
        known = {"p": 0.5, "power": power}
        case = {"difference": difference, "covs": torch.stack([u * eye, v * eye]), "width": d}
        ours = solve_full(**case, **known, shares=replace(BARE, surplus=1.0)).sum_kl
        ratios.append(ours / protect.solve_marvell(d=d, u=u, v=v, gap=gap, **known).sum_kl)
    assert min(ratios) >= 1 - 1e-12
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 1.01


@pytest.mark.parametrize("seed", range(5))
def test_no_other_direction_is_better(seed):
    """Random common noise of the same power never gives less, by an independent formula."""
    case = _random_case(6, seed)
    gap = float(case["difference"] @ case["difference"])
    found = solve_full(**case, p=0.3, width=6, power=20 * gap, shares=Shares(cover=0, floor=1e-6))
    cov0, cov1 = case["covs"].numpy()
    both = cov0 + found.noise[0].numpy()
    along = _random_case(6, seed + 100)["covs"][0].numpy()
    power = 20 * gap - 0.7 * np.trace(cov1) - 0.3 * np.trace(cov0)
    base = cov0 + cov1
    zero, difference = np.zeros(6), case["difference"]
    rival = base + power * along / np.trace(along)
    assert measure.sum_kl(difference, rival, zero, rival) > found.sum_kl
    straight = base + power * np.outer(difference, difference) / gap
    assert measure.sum_kl(difference, straight, zero, straight) > found.sum_kl * (1 - 1e-6)
    assert measure.sum_kl(difference, both, zero, both) == pytest.approx(found.sum_kl, rel=1e-9)


def test_scarce_power_is_shared_and_the_claim_follows():
    """Covariances that stay apart are counted: the claim is far above that of the means alone."""
    case = _random_case(6)
    gap = float(case["difference"] @ case["difference"])
    found = solve_full(**case, p=0.3, width=6, power=0.1 * gap)
    after = (case["covs"] + found.noise).numpy()
    expected = measure.sum_kl(case["difference"], after[1], np.zeros(6), after[0])
    assert found.sum_kl == pytest.approx(expected, rel=1e-9)
    assert found.power == pytest.approx(0.1 * gap, rel=1e-12)
    assert np.abs(after[0] - after[1]).max() > 0.01


@pytest.mark.parametrize("shape", [(40, 100), (12, 400)])
def test_the_thin_path_is_exact(shape):
    cut = _cut(*shape)
    found = ClassCovariances.of(Batch.of(cut))
    basis, unit = found.basis.numpy(), 2.0**found.exponent
    assert len(basis) <= shape[0]
    assert np.abs(basis @ basis.T - np.eye(len(basis))).max() < 1e-9
    difference, cov0, cov1 = _samples(cut)
    assert np.allclose(found.difference @ basis * unit, difference, atol=1e-12)
    for ours, full in zip(found.covs, (cov0, cov1), strict=True):
        assert np.allclose(basis.T @ ours.numpy() @ basis * unit**2, full, atol=1e-12)


@pytest.mark.parametrize("shape", [(256, 32), (1024, 128), (300, 224)])
def test_one_numeric_path_whatever_the_type(shape):
    """The same values in float32 and float64 get the same plan, bit for bit."""
    cut = _cut(*shape)
    cut = replace(cut, grads=cut.grads.float())
    narrow, wide = _plan(FULL, cut), _plan(FULL, replace(cut, grads=cut.grads.double()))
    assert torch.equal(narrow.noise[0].cores, wide.noise[0].cores)
    assert (narrow.sum_kl, narrow.limit) == (wide.sum_kl, wide.limit)
    assert measured_sum_kl(Batch.of(cut), narrow) == pytest.approx(narrow.sum_kl, rel=1e-6)


def test_each_row_takes_the_core_of_its_class():
    rng = torch.Generator().manual_seed(0)
    cores = torch.randn(3, 4, 4, generator=rng, dtype=torch.float64)
    owner, base = torch.arange(60) % 3, torch.zeros(60, 4, dtype=torch.float64)
    part, out = Shaped(scale=0.5, cores=cores, owner=owner), torch.empty(60, 4).double()
    normals = torch.randn(60, 4, generator=rng, dtype=torch.float64)
    part.write(base, out, slice(0, 60), normals.flatten())
    expected = torch.stack([0.5 * n @ cores[k] for n, k in zip(normals, owner, strict=True)])
    assert torch.allclose(out, expected, rtol=1e-12)
    trace, spread, _ = part.size(out.shape, 1.0)
    covariances = 0.25 * cores.mT @ cores
    assert trace == pytest.approx(20 * sum(float(c.trace()) for c in covariances))
    assert spread**2 == pytest.approx(20 * float(covariances.square().sum()))


def test_a_batch_as_wide_as_long_takes_either_path_to_the_same_claim():
    """One row more or less decides between the paths; the claim may not jump."""
    claims = []
    for rows in (56, 57, 58, 59, 60, 61):
        cut = _cut(90, 60)
        cut = Cut(grads=cut.grads[:rows], labels=cut.labels[:rows])
        thin = ClassCovariances.of(Batch.of(cut)).basis is not None
        claims.append((thin, Guard(FULL, seed=1).release(cut).certificate.sum_kl))
    assert {thin for thin, _ in claims} == {True, False}
    values = [value for _, value in claims]
    assert max(values) < 1.05 * min(values)


@pytest.mark.parametrize("shape", [(256, 12), (256, 32), (24, 64)])
@pytest.mark.parametrize("factor", [2.0**-80, 2.0**66])
def test_scale_changes_nothing(shape, factor):
    cut = low_rank_cut(*shape)
    scaled = replace(cut, grads=cut.grads * factor, weight=factor)
    plain, other = (_plan(FULL, c) for c in (cut, scaled))
    assert other.sum_kl == plain.sum_kl
    pairs = ((plain, cut), (other, scaled))
    drawn = [draw(p, c.grads.double(), Key.from_seed(1).stream("x")) for p, c in pairs]
    assert torch.equal(drawn[0] * factor, drawn[1])


def test_the_noise_has_the_planned_covariance_also_over_several_blocks():
    """3000 rows of 128 are two blocks; thousands of draws are one batch of equal rows per class."""
    cut = low_rank_cut(3000, 128, dtype=torch.float64)
    batch, plan = Batch.of(cut), _plan(FULL, cut)
    noise = draw(plan, batch.rows, Key.from_seed(1).stream("x")) - batch.rows
    planned = _noise_covariances(plan, cut)
    rng = np.random.default_rng(0)
    for side in (0, 1):
        rows = noise[cut.labels == side].numpy()
        for probe in rng.standard_normal((20, 128)):
            ratio = np.square(rows @ probe).sum() / (probe @ planned[side] @ probe)
            tail = 1e-9
            assert stats.chi2.ppf(tail, len(rows)) < ratio < stats.chi2.isf(tail, len(rows))


def test_batches_without_statistics_take_the_last_ones_noise_then_noise_alone():
    ordinary, other = low_rank_cut(64, 8), low_rank_cut(64, 8, seed=1)
    lonely = torch.zeros(64, dtype=torch.int64)
    lonely[5] = 1
    for labels in (torch.zeros_like(lonely), torch.ones_like(lonely), lonely, 1 - lonely):
        cut = replace(other, labels=labels)
        guard = Guard(FULL, seed=1)
        cold = guard.release(cut)
        assert cold.certificate.how == NOISE_ONLY
        assert cold.certificate.sum_kl == 0
        power = guard.release(ordinary).certificate.power
        warm = guard.release(cut)
        assert warm.certificate.how == RUNNING
        assert warm.certificate.sum_kl is None
        assert warm.certificate.power > 0.3 * power
        huge = guard.release(replace(cut, grads=cut.grads * 2.0**13))
        assert huge.certificate.measured_power > power * 2.0**20


def test_what_is_remembered_does_not_grow():
    memory = None
    for seed in range(4):
        memory = _plan(FULL, low_rank_cut(40, 100, seed=seed), memory).memory
        assert isinstance(memory, FullNoise)
        assert memory.basis.numel() + sum(core.numel() for core in memory.cores) <= 41 * (100 + 82)


@pytest.mark.parametrize("width", [1, 2, 7, 50])
def test_hardly_any_rows(width):
    """Two rows of each class, and classes that do not vary at all."""
    for spread in (0.0, 0.1):
        rng = torch.Generator().manual_seed(3)
        labels = torch.tensor([0, 0, 1, 1])
        grads = labels.unsqueeze(1) * torch.ones(4, width)
        grads = grads + spread * torch.randn(4, width, generator=rng)
        for spec in SPECS:
            release = Guard(spec, seed=1).release(Cut(grads=grads, labels=labels))
            assert release.certificate.how == BATCH
            assert math.isfinite(release.certificate.sum_kl)
            assert not (release.grads == grads).all(dim=1).any()


def _faint(difference):
    """Classes whose means differ by so much and whose rows are zero in half of the directions."""
    rng = torch.Generator().manual_seed(0)
    grads = torch.randn(64, 8, generator=rng, dtype=torch.float64)
    grads[:, 4:] = 0.0
    labels = (torch.arange(64) % 2).long()
    for side in (0, 1):
        grads[labels == side] -= grads[labels == side].mean(dim=0)
    grads[labels == 1] += difference
    return Cut(grads=grads, labels=labels)


def test_a_difference_lost_in_the_spread_claims_nothing_it_cannot_resolve():
    """In the empty directions the noise is all there is, far below the rounding of the rest."""
    found = ClassCovariances.of(Batch.of(_faint(1e-9)))
    solved = solve_full(
        difference=found.difference, covs=found.covs, p=0.5, width=8, power=4 * found.gap
    )
    assert solved.sum_kl == math.inf


def test_a_difference_finer_than_the_release_is_none():
    """Noise in proportion to it would vanish in rounding: the batch counts as one without."""
    for spec in (FULL, "marvell(s=4)"):
        certificate = Guard(spec, seed=1).release(_faint(1e-6)).certificate
        assert certificate.how == NOISE_ONLY
        assert Guard(spec, seed=1).release(_faint(1e-3)).certificate.how == BATCH


def test_the_assumption_is_named():
    certificate = Guard(FULL, seed=1).release(low_rank_cut(64, 8)).certificate
    for words in ("Gaussian", "sample covariance", "48 negatives", "16 positives", "one release"):
        assert words in certificate.assumption
    assert str(protect.get("marvell(4,covariance=full)")) == FULL


def test_claims_in_a_chain():
    cut = low_rank_cut(512, 16)

    def claim(spec):
        return Guard(spec, seed=1).release(cut).certificate.sum_kl

    full = "marvell(sum_kl=0.1, covariance=full)"
    assert claim(f"{full} | gaussian(1)") == pytest.approx(0.1)
    assert claim(f"iso(1) | {full}") == pytest.approx(0.1)
    # Noise by class of any shape leaves Gaussian classes Gaussian; noise along each row does not.
    assert claim(f"marvell(s=1) | {full}") == pytest.approx(0.1)
    assert claim(f"max_norm | {full}") is None
    # And what follows may undo it: another look at labels, or a claim for isotropic classes.
    assert claim(f"{full} | max_norm_positive") is None
    assert claim(f"{full} | marvell(s=4)") is None


def test_an_overspent_plan_is_refused():
    cut = low_rank_cut(64, 8)

    @dataclass(frozen=True)
    class Overspent(protect.Protection):
        def plan(self, batch, memory):
            plan = _plan(FULL, cut)
            return replace(plan, limit=plan.limit * 0.99)

    with pytest.raises(ReleaseError, match="budget"):
        Guard(Overspent(), seed=1).release(cut)


def test_shaped_noise_that_was_not_drawn_is_refused():
    """The size check sees shaped noise that was planned and not drawn."""
    cut = low_rank_cut(1024, 8)

    @dataclass(frozen=True)
    class Silent(protect.Protection):
        def plan(self, batch, memory):
            return _plan(FULL, cut)

        def apply(self, batch, stream, memory):
            draft = super().apply(batch, stream, memory)
            return replace(draft, rows=batch.rows + 1e-3 * (draft.rows - batch.rows))

    with pytest.raises(ReleaseError, match="noise in the release"):
        Guard(Silent(), seed=1).release(cut)


@pytest.mark.parametrize("classes", [2, 5])
def test_products_by_class_are_those_of_the_rows_picked(classes):
    rng = np.random.default_rng(0)
    for owner in (rng.integers(0, classes, 300), np.zeros(130, np.int64), np.arange(3) % classes):
        rows = torch.from_numpy(rng.normal(size=(len(owner), 7)))
        matrices = torch.from_numpy(rng.normal(size=(classes, 7, 4)))
        blocks = ClassBlocks.of(owner, classes=classes)
        squares, times = blocks.squares(rows), blocks.times(rows, matrices)
        for one in range(classes):
            own = rows[owner == one]
            assert torch.allclose(squares[one], own.T @ own)
            assert torch.allclose(times[owner == one], own @ matrices[one])
