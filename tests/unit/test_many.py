"""Marvell for many classes: the optimum, the limit of two, what is claimed and what is not."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from guard_examples import KEY, SPECS, released, same, stored
from tacit import Cut, Guard, measure, protect
from tacit.accounting import Ledger
from tacit.errors import BudgetError, InputError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.monitor import LeakMonitor, MemoryMonitor
from tacit.protect import solve_marvell
from tacit.protect.base import BATCH, NOISE_ONLY, RUNNING, Batch
from tacit.protect.marvell.full_solver import Shares, solve_full
from tacit.protect.marvell.measured_kl import measured_sum_kl
from tacit.protect.marvell.multiclass import plan_many
from tacit.protect.marvell.multiclass_solver import (
    between,
    fill,
    pair_divergences,
    reach,
    solve_many_full,
    worst_pair,
)
from tacit.protect.noise_terms import Shaped
from tacit.testing import ProtectionContract, many_class_cut

FULL = "marvell(s=4, covariance=full)"
MANY = [spec for spec in SPECS if "binary" not in protect.get(spec).needs]


def generator(seed):
    return np.random.default_rng(seed)


def tensor(values):
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def random_psd(rng, size, scale=1.0):
    half = rng.normal(size=(size, size)) * scale
    return half @ half.T / size


# --- the optimum -------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ProtectionContract.checks())
@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("spec", MANY)
def test_contract(spec, classes, check):
    getattr(ProtectionContract(spec, classes=classes), check)()


@pytest.mark.parametrize("seed", range(12))
def test_water_filling_beats_a_general_optimiser(seed):
    rng = generator(seed)
    size = int(rng.integers(2, 9))
    roots = 10.0 ** rng.uniform(-2, 1, size)
    there, power = float(10.0 ** rng.uniform(-2, 1)), float(10.0 ** rng.uniform(-2, 2))
    noise = fill(
        tensor(roots), torch.full((size,), there, dtype=torch.float64), power=power
    ).numpy()
    assert noise.min() >= 0
    assert noise.sum() == pytest.approx(power, rel=1e-12)

    def cost(n):
        return float((roots**2 / (there + n)).sum())

    # Karush, Kuhn and Tucker: the same slope wherever there is noise, and none steeper elsewhere.
    slope = (roots / (there + noise)) ** 2
    live = noise > 0
    assert np.ptp(slope[live]) < 1e-9 * slope[live].max()
    assert slope.max() <= slope[live].max() * (1 + 1e-9)
    found = optimize.minimize(
        cost,
        np.full(size, power / size),
        jac=lambda n: -((roots / (there + n)) ** 2),
        method="SLSQP",
        bounds=[(0, None)] * size,
        options={"maxiter": 500, "ftol": 1e-14},
        constraints={"type": "eq", "fun": lambda n: n.sum() - power},
    )
    feasible = np.maximum(found.x, 0) * (power / np.maximum(found.x, 0).sum())
    assert cost(noise) <= cost(feasible) * (1 + 1e-12)
    assert cost(noise) == pytest.approx(cost(feasible), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_no_noise_of_any_shape_is_better(seed):
    """Over all covariances of this trace, also outside of the span of the means."""
    rng = generator(seed)
    means, weights, u, power = rng.normal(size=(3, 4)), rng.dirichlet([3, 3, 3]), 0.3, 2.0
    gap = between(tensor(means), tensor(weights))
    pairs = [(weights[a] * weights[b], means[a] - means[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    share = sum(w for w, _ in pairs)

    def mean_kl(cov):
        return sum(w * d @ np.linalg.solve(cov, d) for w, d in pairs) / share

    def cost(values):
        half = values.reshape(4, 4)
        return mean_kl(u * np.eye(4) + half @ half.T * (power / np.square(half).sum()))

    core = fill(gap.roots, torch.full_like(gap.roots, u), power=power)
    ours = gap.basis.T @ torch.diag(core) @ gap.basis
    starts = [optimize.minimize(cost, rng.normal(size=16)).fun for _ in range(4)]
    assert mean_kl(u * np.eye(4) + ours.numpy()) <= min(starts) * (1 + 1e-7)
    assert min(starts) == pytest.approx(mean_kl(u * np.eye(4) + ours.numpy()), rel=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_water_filling_over_what_varies_any_way(seed):
    """Where what is there does not share the directions: the optimum for large power."""
    rng = generator(seed)
    roots, there = rng.uniform(0.5, 2, 4), random_psd(rng, 4)
    for power in (50.0, 0.3):
        noise = fill(tensor(roots), tensor(there), power=power).numpy()
        assert np.trace(noise) == pytest.approx(power, rel=1e-9)
        assert np.linalg.eigvalsh(noise).min() > -1e-12

        def cost(values, power=power):
            half = values.reshape(4, 4)
            added = half @ half.T * (power / np.square(half).sum())
            return float((np.linalg.inv(there + added) * np.diag(roots**2)).sum())

        ours = float((np.linalg.inv(there + noise) * np.diag(roots**2)).sum())
        best = min(optimize.minimize(cost, rng.normal(size=16)).fun for _ in range(3))
        assert ours <= best * (1 + (1e-6 if power > 1 else 0.05))


def test_between_is_the_sum_over_pairs():
    rng = generator(0)
    means, weights = rng.normal(size=(6, 5)), rng.dirichlet(np.ones(6))
    found = between(tensor(means), tensor(weights))
    slow, share = np.zeros((5, 5)), 0.0
    for a, b in itertools.combinations(range(6), 2):
        d = means[a] - means[b]
        slow += weights[a] * weights[b] * np.outer(d, d)
        share += weights[a] * weights[b]
    fast = found.basis.T @ torch.diag(found.roots**2) @ found.basis
    assert np.allclose(fast, slow / share, atol=1e-12)
    assert found.gap == pytest.approx(np.trace(slow) / share)


# --- two classes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("u", "gap", "power"), [(0.0, 1.0, 4.0), (0.2, 3.0, 1.5), (5.0, 0.1, 0.2)])
def test_two_classes_are_the_binary_solution(u, gap, power):
    """Equal spreads and as many of each; else the binary noise differs by class and is better."""
    for p in (0.5, 0.07):
        means = tensor([[0.0, 0.0, 0.0], [math.sqrt(gap), 0.0, 0.0]])
        found = between(means, tensor([1 - p, p]))
        assert found.gap == pytest.approx(gap)
        there = torch.full((1,), u, dtype=torch.float64)
        along = found.coordinates(means)
        noise = fill(found.roots, there, power=power)
        shared = worst_pair(along, there + noise)[0]
        binary = solve_marvell(d=3, p=p, u=u, v=u, gap=gap, power=power)
        target = 0.4 * gap / (u + 0.1)
        reached = solve_marvell(d=3, p=p, u=u, v=u, gap=gap, sum_kl=target)
        least = float(reach(found.roots, there, along, sum_kl=target))
        if p == 0.5:
            assert (binary.lam10, binary.lam11) == pytest.approx((power, power))
            assert binary.lam20 == pytest.approx(0, abs=1e-12)
            assert shared == pytest.approx(binary.sum_kl)
            assert least == pytest.approx(reached.power, rel=1e-9)
        else:
            assert binary.sum_kl <= shared * (1 + 1e-9) < 1.5 * binary.sum_kl
            assert reached.power <= least * (1 + 1e-9) < 1.5 * reached.power


def mirrored_cut():
    """Two classes of equal spread in every direction: the second repeats the first's residuals."""
    rng = generator(3)
    rest = rng.normal(size=(40, 6))
    rest -= rest.mean(axis=0)
    grads = np.concatenate([rest, rest[:20] + 0.7, rest[20:] + 0.7]) * 0.1
    labels = torch.tensor([0] * 40 + [1] * 40)
    return Cut(grads=torch.from_numpy(grads), labels=labels)


@pytest.mark.parametrize("parameter", ["s=4", "s=0.3", "sum_kl=0.2", "error=0.4"])
def test_a_batch_of_two_classes_gets_the_binary_noise(parameter):
    batch = Batch.of(mirrored_cut())
    spec = protect.get(f"marvell({parameter})").stages[0]
    binary = spec.plan(batch, None)
    many = plan_many(batch, None, s=spec.s, target=spec.target, full=False)
    assert many.sum_kl == pytest.approx(binary.sum_kl, rel=1e-9)
    covs = []
    for plan in (binary, many):
        size = torch.zeros(6, 6).double()
        for part in plan.noise:
            if isinstance(part, Shaped):
                half = part.scale * part.cores[0] @ part.basis
                size += half.T @ half
            elif hasattr(part, "direction"):
                size += part.std[0] ** 2 * torch.outer(part.direction, part.direction)
            else:
                size += part.std[0] ** 2 * torch.eye(6)
        covs.append(size)
    assert torch.allclose(*covs, rtol=1e-7, atol=1e-9 * float(covs[0].trace()))


def test_full_noise_of_two_classes_is_the_binary_one_where_directions_agree():
    """Where the mean difference is an axis of both covariances; elsewhere it has no less sumKL."""
    rng = generator(1)
    for turned in (False, True):
        cov0, cov1 = (np.diag(rng.uniform(0.1, 1, 4)) for _ in range(2))
        if turned:
            cov0 = random_psd(rng, 4)
        difference = np.array([1.5, 0, 0, 0])
        means, p = tensor([np.zeros(4), difference]), 0.3
        binary = solve_full(
            difference=difference,
            covs=tensor([cov0, cov1]),
            p=p,
            width=4,
            power=1.0,
            shares=Shares(),
        )
        many = solve_many_full(
            gap=between(means, tensor([1 - p, p])),
            means=means,
            covs=tensor([cov0, cov1]),
            fractions=tensor([1 - p, p]),
            width=4,
            power=1.0,
            shares=Shares(),
        )
        assert many.power == pytest.approx(1.0, rel=1e-9)
        if turned:
            assert binary.sum_kl <= many.sum_kl * (1 + 1e-9) < 1.2 * binary.sum_kl
        else:
            assert many.sum_kl == pytest.approx(binary.sum_kl, rel=1e-9)
            for ours, other in zip(many.noise, binary.noise, strict=True):
                assert torch.allclose(ours, other, atol=1e-12)


# --- what is claimed ---------------------------------------------------------------------------


def noise_covariance(plan, row, width):
    total = np.zeros((width, width))
    for part in plan.noise:
        if isinstance(part, Shaped):
            half = part.scale * part.cores[part.owner[row]]
            half = (half if part.basis is None else half @ part.basis).numpy()
            total += half.T @ half
        else:
            total += part.std**2 * np.eye(width)
    return total


@pytest.mark.parametrize("size", [(120, 12), (40, 60)], ids=str)
@pytest.mark.parametrize(
    "spec",
    [
        "marvell(s=4)",
        "marvell(sum_kl=0.7)",
        FULL,
        "marvell(s=0.2, covariance=full)",
        "marvell(sum_kl=0.7, covariance=full)",
    ],
)
def test_the_claim_is_the_worst_pair_by_a_slow_count(spec, size):
    cut = many_class_cut(*size, classes=4, dtype=torch.float64)
    batch, rows, width = Batch.of(cut), cut.grads.numpy(), size[1]
    plan = protect.get(spec).stages[0].plan(batch, None)
    labels = cut.labels.numpy()
    groups = [rows[labels == c] for c in range(4)]
    u = sum(np.square(g - g.mean(0)).sum() for g in groups) / rows.size
    found = {}
    for a, b in itertools.combinations(range(4), 2):
        covs = []
        for c in (a, b):
            own = np.cov(groups[c].T, bias=True) if "full" in spec else u * np.eye(width)
            covs.append(own + noise_covariance(plan, int(np.argmax(labels == c)), width))
        found[a, b] = measure.sum_kl(groups[a].mean(0), covs[0], groups[b].mean(0), covs[1])
    worst = max(found, key=found.get)
    assert plan.sum_kl == pytest.approx(found[worst], rel=1e-6)
    assert f"classes {worst[0]} and {worst[1]}" in plan.assumption
    assert "4 classes in this batch" in plan.assumption
    if "sum_kl" in spec:
        assert plan.sum_kl == pytest.approx(0.7, rel=1e-6)
    if "full" in spec:
        assert measured_sum_kl(batch, plan) == pytest.approx(plan.sum_kl, rel=1e-6)


def test_classes_that_share_no_covariance_measure_as_more_than_claimed():
    cut = many_class_cut(64, 80, classes=4)
    plan = protect.get("marvell(s=4)").stages[0].plan(Batch.of(cut), None)
    assert measured_sum_kl(Batch.of(cut), plan) > 5 * plan.sum_kl


def test_pair_divergences_are_those_of_each_pair():
    rng = generator(0)
    covs = np.stack([random_psd(rng, 3) + 0.1 * np.eye(3) for _ in range(3)])
    means = rng.normal(size=(3, 3))
    table = pair_divergences(tensor(covs), tensor(means))
    for a, b in itertools.combinations(range(3), 2):
        slow = measure.sum_kl(means[a], covs[a], means[b], covs[b])
        assert float(table[a, b]) == pytest.approx(slow, rel=1e-9)
    covs[1] = np.outer([1, 0, 0], [1, 0, 0])
    assert pair_divergences(tensor(covs), tensor(means)).max() == math.inf


def test_no_class_against_the_rest_has_more_than_the_worst_pair():
    """KL divergence is convex: against a mixture it is at most the mean over its parts."""
    rng = generator(5)
    for _ in range(5):
        means, weights = rng.normal(size=4), rng.dirichlet(np.ones(4))
        worst = float(np.ptp(means)) ** 2
        grid = np.linspace(means.min() - 9, means.max() + 9, 4001)
        each = stats.norm.pdf(grid, means[:, None])
        for c in range(4):
            others = [k for k in range(4) if k != c]
            mixed = weights[others] @ each[others] / weights[others].sum()
            both = (each[c] - mixed) * np.log(each[c] / mixed)
            assert integrate.trapezoid(both, grid) <= worst * (1 + 1e-6)


def test_a_ledger_composes_the_worst_pair_and_a_budget_stops_it():
    cut = replace(many_class_cut(256, 8, classes=5), ids=torch.arange(256))
    ledger = Ledger(run="r", budget="sum_kl=1.0")
    guard = Guard("marvell(sum_kl=0.3, covariance=full)", seed=0, ledger=ledger)
    for _ in range(3):
        certificate = guard.release(cut).certificate
        assert certificate.sum_kl == pytest.approx(0.3)
        assert certificate.measured_sum_kl == pytest.approx(0.3, rel=1e-5)
    assert ledger.summary().sum_kl == pytest.approx(0.9, rel=1e-4)
    with pytest.raises(BudgetError, match=r"budget sum_kl=1: example \d+ stands at sumKL 0.9"):
        guard.release(cut)
    lone = cut.labels.clone()
    lone[lone == 4] = 3
    lone[7] = 4  # a class of one row has no certificate: it counts as infinite
    roomy = Ledger(run="r", budget="sum_kl=9")
    guard = Guard("marvell(s=4, covariance=full)", seed=0, ledger=roomy)
    guard.release(cut)
    with pytest.raises(BudgetError, match="no certificate that holds"):
        guard.release(replace(cut, labels=lone))


# --- batches that show too little ---------------------------------------------------------------


@pytest.mark.parametrize("spec", ["marvell(s=4)", FULL])
def test_absent_classes_are_hidden_by_what_is_remembered(spec):
    guard = Guard(spec, seed=0)
    whole = many_class_cut(200, 12, classes=5, dtype=torch.float64)
    assert guard.release(whole).certificate.how == BATCH
    part = whole.labels < 2
    cut = Cut(grads=whole.grads[part], labels=whole.labels[part])
    away = [whole.grads[whole.labels == c].mean(0) for c in range(5)]
    line = torch.nn.functional.normalize(away[4] - (away[0] + away[1]) / 2, dim=0)
    plan = guard.protection.stages[0].plan(Batch.of(cut, seen=5), guard._last.after[0])
    alone = protect.get(spec).stages[0].plan(Batch.of(cut, classes=5), None)
    with_memory, without = (
        float(line @ tensor(noise_covariance(p, 0, 12)) @ line) for p in (plan, alone)
    )
    assert with_memory > 1.7 * without
    assert plan.how == BATCH
    assert "2 classes in this batch" in plan.assumption
    # A batch of a single class takes all other means from memory, and claims nothing.
    one = Cut(grads=whole.grads[whole.labels == 3], labels=torch.full((40,), 3))
    certificate = guard.release(one).certificate
    assert (certificate.how, certificate.sum_kl) == (RUNNING, None)
    assert certificate.power > 0


@pytest.mark.parametrize("spec", ["marvell(s=4)", "marvell(sum_kl=0.5)", FULL])
def test_a_class_of_one_row_waits_until_it_is_known(spec):
    whole = many_class_cut(200, 12, classes=5)
    labels = whole.labels.clone()
    labels[labels == 4] = 0
    labels[0] = 4
    rare = replace(whole, labels=labels)
    guard = Guard(spec, seed=0, classes=5)
    first = guard.release(rare)
    assert first.certificate.how == NOISE_ONLY
    assert first.certificate.sum_kl == 0
    guard.release(whole)
    second = guard.release(rare).certificate
    assert (second.how, second.sum_kl, second.auc_bound) == (RUNNING, None, None)
    # The means that the first batch did show were kept, though it released no signal.
    cold = Guard(spec, seed=0, classes=5)
    cold.release(rare)
    assert cold._last.after[0].counts.tolist()[:4] == torch.bincount(labels)[:4].tolist()
    assert cold._last.after[0].counts[4] == 0


def test_remembered_means_grow_with_the_gradients_and_never_shrink():
    for factor, grown in ((2.0**12, 2.0**12), (2.0**-12, 1.0)):
        guard = Guard("marvell(s=4)", seed=0)
        cut = many_class_cut(60, 6, classes=3)
        guard.release(cut)
        alone = Cut(grads=cut.grads[cut.labels == 1] * factor, labels=torch.full((20,), 1))
        base = Cut(grads=cut.grads[cut.labels == 1], labels=torch.full((20,), 1))
        same_scale = Guard("marvell(s=4)", seed=0)
        same_scale.release(cut)
        small, large = same_scale.release(base), guard.release(alone)
        ratio = math.sqrt(large.certificate.power / small.certificate.power)
        assert ratio == pytest.approx(grown, rel=1.0)


def test_a_class_that_shows_up_later_is_taken_in():
    guard = Guard("marvell(s=4)", seed=0)
    three, ten = many_class_cut(90, 8, classes=3), many_class_cut(100, 8, classes=10)
    for cut in (three, ten, three, replace(three, labels=three.labels + 1)):
        assert guard.release(cut).certificate.how == BATCH
    assert len(guard._last.after[0].counts) == 10


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "classes", "said"),
    [
        (
            lambda y: y % 2 + 1,
            2,
            r"labels must be 0 or 1 here, got 2: map them first, or say how many",
        ),
        (lambda y: y + 1, 5, r"labels must lie in 0..4 for 5 classes, got 5"),
        (lambda y: y - 1, 5, r"class indices 0, 1, ..., got -1"),
        (lambda y: y + 0.5, 2, r"class indices 0, 1, ..., got"),
        (lambda y: y.double().where(y > 0, math.nan), 2, r"class indices 0, 1, ..., got nan"),
        (lambda y: y * 10**6, 2, r"class indices 0, 1, ..., got"),
    ],
)
@pytest.mark.parametrize("spec", ["marvell(s=4)", FULL])
def test_labels_that_are_no_classes_are_refused(spec, change, classes, said):
    cut = many_class_cut(50, 6, classes=5)
    guard = Guard(spec, seed=0, classes=classes)
    with pytest.raises(InputError, match=said):
        guard.release(replace(cut, labels=change(cut.labels)))
    assert not guard.counts


def test_what_knows_two_classes_only_says_so():
    cut = replace(many_class_cut(50, 6, classes=5), probs=torch.full((50,), 0.5))
    with pytest.raises(InputError, match="labels must be 0 or 1 here, got"):
        Guard("max_norm_positive", seed=0).release(cut)


# --- going on ----------------------------------------------------------------------------------


def course(batch, width, dtype):
    """Cuts of every kind: all classes, two of them, one, zeros, a class of one row."""
    plain = [many_class_cut(batch, width, classes=5, seed=n, dtype=dtype) for n in range(6)]
    plain = [replace(c, grads=c.grads * 2.0 ** (n % 4)) for n, c in enumerate(plain)]
    two = replace(plain[0], labels=plain[0].labels % 2)
    alone = replace(plain[1], labels=torch.full_like(plain[1].labels, 3))
    zero = replace(plain[1], grads=torch.zeros_like(plain[1].grads))
    rare = replace(plain[2], labels=plain[2].labels.clamp(max=3).index_fill(0, torch.tensor(0), 4))
    cuts = [alone, rare, *plain[:3], two, alone, zero, rare, *plain[3:], alone]
    return [replace(cut, step=step, embeddings=cut.grads + step) for step, cut in enumerate(cuts)]


@pytest.mark.parametrize("shape", [(60, 8, torch.float32), (30, 40, torch.float64)], ids=str)
@pytest.mark.parametrize("spec", ["marvell(s=4)", FULL, "max_norm | marvell(sum_kl=0.5) | iso(1)"])
def test_releases_go_on_bit_for_bit(spec, shape, tmp_path):
    cuts = course(*shape)
    whole, states, expected = Guard(spec, key=KEY, classes=5), [], []
    for cut in cuts:
        states.append(whole.to_state())
        expected.append(whole.release(cut))
    assert {BATCH, RUNNING, NOISE_ONLY} <= {
        part for how in whole.counts for part in how.split(" | ")
    }
    stops = (0, 1, 2, 5, 6, len(cuts) - 1)
    held = stored(tmp_path, **{f"after_{stop}": states[stop] for stop in stops})
    for stop in stops:
        guard = Guard(spec, key=KEY, classes=5)
        guard.load_state(*held[f"after_{stop}"])
        same(released(guard, cuts[max(0, stop - 1) :]), expected[max(0, stop - 1) :])
        assert guard.counts == whole.counts
        assert str(guard.to_state()) == str(whole.to_state())


# --- attacks and measures ------------------------------------------------------------------------


def test_leak_auc_of_many_classes_is_the_mean_against_the_rest():
    rng = generator(0)
    labels = rng.integers(0, 4, size=300)
    scores = rng.normal(size=300) + (labels == 2)
    each = [measure.leak_auc(scores, (labels == c).astype(int)) for c in range(4)]
    assert measure.leak_auc(scores, labels) == pytest.approx(np.mean(each))
    meter = measure.OneVsRest(4)
    meter.add(scores, labels)
    pooled = meter.compute(rng=rng)
    assert pooled.leak_auc == pytest.approx(np.mean(each))
    assert pooled.examples == 300
    assert pooled.null_low <= pooled.low <= pooled.leak_auc <= pooled.high
    assert each[2] > 0.7
    with pytest.raises(InputError, match="labels must be 0 or 1, got 2"):
        measure.leak_auc([0.1, 0.2], [1, 2])
    with pytest.raises(InputError, match="a batch with two classes, got none"):
        measure.OneVsRest(3).compute(rng=rng)


def test_noise_stays_in_the_band_of_noise():
    rng = generator(1)
    inside = 0
    for _ in range(40):
        meter = measure.OneVsRest(10)
        for _ in range(5):
            meter.add(rng.normal(size=200), rng.integers(0, 10, size=200))
        found = meter.compute(rng=rng, resamples=2)
        inside += found.leak_auc <= found.null_high
    assert inside >= 38  # at a level of 0.95 or more, 35 or fewer of 40 has probability 0.04


@pytest.mark.parametrize("classes", [3, 10])
def test_attacks_are_watched_for_many_classes(classes):
    attacks = ["norm", "energy", "principal", "memory", "cosine", "hint", "mean"]
    found = {}
    for spec in ("none", "max_norm", "iso(4)", "gaussian(1)", "marvell(s=4)", FULL):
        monitor, memory = LeakMonitor(attacks, classes=classes), MemoryMonitor(every=4)
        guard = Guard(
            spec,
            seed=0,
            classes=classes,
            watch=lambda c, r, m=(monitor, memory): [one(c, r) for one in m],
        )
        for step in range(12):
            cut = many_class_cut(120, 24, classes=classes, seed=step)
            guard.release(replace(cut, ids=torch.arange(120)))
        found[spec] = {name: leak.leak_auc for name, leak in monitor.report().items()}
        assert set(found[spec]) == set(map(str, monitor.attacks))
        assert memory.leak() >= 0.5
    assert found["none"]["cosine"] > 0.9
    assert found["none"]["mean"] > 0.9
    for spec in ("marvell(s=4)", FULL):
        assert found[spec]["cosine"] < 0.85
        assert found[spec]["norm"] < 0.56
        assert found[spec]["energy"] < 0.6


def test_a_memory_of_more_classes_than_a_byte_holds():
    monitor = MemoryMonitor()
    cut = replace(many_class_cut(600, 4, classes=200), ids=torch.arange(600))
    Guard("none", seed=0, watch=monitor).release(cut)
    restored = MemoryMonitor()
    restored.load_state(*monitor.to_state())
    assert restored.leak() == monitor.leak() >= 0.5
    assert restored._labels.max() == 199


def test_a_run_of_many_classes_reports_leaks_and_a_claim():
    values = {
        "dataset": "digits",
        "model": "mlp",
        "epochs": 2,
        "batch_size": 128,
        "lr": 1e-3,
        "protect": "marvell(s=4)",
        "monitor_every": 2,
    }
    _, result = run(TrainConfig.of(values))
    assert set(result["leak"]) >= {"norm", "cosine", "energy"}
    assert 0.5 <= result["memory_leak"] <= 1
    assert "classes in this batch" in result["certificate"]["assumption"]
    assert result["certificate"]["sum_kl"] > 0
