"""Each attack: where it must succeed, where it must find nothing, and against an obvious twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from attack_examples import (
    VARIANTS,
    Example,
    leak,
    low_rank,
    one_noisy_class,
    run,
    seeded,
    summed_in_float32,
)
from tacit import attack as attacks
from tacit.attack import Attack, Energy, Hint, Majority, Mean, scoring
from tacit.evaluate import reveal
from tacit.testing.attack_contract import null_band, pooled_auc
from tacit.types import Known, View

# --- every registered attack succeeds where it must, and finds nothing where there is nothing ----

SUCCESS: dict[str, tuple[Callable[[], Example], float]] = {
    "norm": (low_rank, 0.95),
    "cosine": (low_rank, 1.0),
    "majority": (low_rank, 0.999),
    "hint": (low_rank, 0.999),
    "mean": (low_rank, 0.999),
    "median": (low_rank, 0.999),
    "energy": (lambda: one_noisy_class(1024, 128), 0.999),
    "lowbits": (summed_in_float32, 0.95),
    "principal": (low_rank, 0.999),
    "memory": (low_rank, 0.999),
    "kmeans": (low_rank, 0.999),
    "supervised": (low_rank, 0.999),
    "exploit": (lambda: low_rank(256, 16), 0.99),
    "unsplit": (lambda: low_rank(256, 16), 0.9),
    "completion": (lambda: low_rank(256, 16), 0.9),
}

# As published, labels at rate 1e-3 hardly leave their random start: gradients tell more.
STRONGER = {"unsplit": "unsplit(decode=gradient)"}


def test_every_registered_attack_has_a_batch_on_which_it_must_succeed() -> None:
    missing = set(attacks.names()) - set(SUCCESS)
    assert not missing, f"add a batch to SUCCESS on which it must succeed: {sorted(missing)}"


@pytest.mark.parametrize("name", attacks.names())
def test_attack_succeeds_on_its_batch(name: str) -> None:
    example, threshold = SUCCESS[name]
    assert leak(STRONGER.get(name, name), example()) >= threshold


@pytest.mark.parametrize("spec", VARIANTS)
@pytest.mark.parametrize(("rows", "width"), [(256, 16), (32, 100)])
def test_finds_nothing_in_labels_drawn_afterwards(spec: str, rows: int, width: int) -> None:
    """The gradients keep all their structure; the labels are shuffled, so none of it is theirs."""
    attack, rng = attacks.get(spec), seeded(3)
    scores, truth = [], []
    for step in range(6400 // rows):
        grads, other = (low_rank(rows, width, seed=2 * step + i).released for i in (0, 1))
        labels = torch.arange(rows) % 4 == torch.randperm(rows, generator=rng) % 4
        labels[:2] = torch.tensor([False, True])
        labels = labels[torch.randperm(rows, generator=rng)].long()
        known = reveal(attack, clean=other, released=other, labels=labels, rng=rng)
        embeddings = other if "embeddings" in attack.needs else None
        scores.append(attack(View(grads=grads, embeddings=embeddings, known=known), rng))
        truth.append(labels)
    low, high = null_band(torch.cat(truth), level=1e-6)
    slack = hint_handicap(attack, rows // 4)
    assert low - slack <= pooled_auc(torch.cat(scores), torch.cat(truth)) <= high


def hint_handicap(attack: Attack, positives: int) -> float:
    """A drawn hint is the best of ``k - 1``, other rows of ``k``: it wins ``(k - 1)/(2k - 1)``."""
    if not isinstance(attack, Hint) or attack.k == 1:
        return 0.0
    return attack.k / positives * (0.5 - (attack.k - 1) / (2 * attack.k - 1))


def test_majority_and_principal_score_the_positive_class_higher() -> None:
    for name in ("majority", "principal", "norm"):
        assert pooled_auc(run(name, low_rank()), low_rank().labels) > 0.95, name
    above_half = run("majority", low_rank()) > 0.5
    assert (above_half.long() == low_rank().labels).double().mean() > 0.999


@pytest.mark.parametrize(("rows", "width"), [(1024, 128), (128, 1600)])
@pytest.mark.parametrize("noisy", [0, 1])
def test_energy_finds_one_sided_noise_at_both_shapes(rows: int, width: int, noisy: int) -> None:
    for seed in range(3):
        assert leak("energy", one_noisy_class(rows, width, noisy=noisy, seed=seed)) > 0.95


def test_energy_needs_a_larger_share_where_noisy_rows_fill_half_the_directions() -> None:
    """64 of 128 rows with noise: at one half the sign differs from batch to batch."""
    scores: dict[float, list[Tensor]] = {0.5: [], 0.9: []}
    examples = [one_noisy_class(128, 1600, noisy=1, share=0.5, seed=seed) for seed in range(6)]
    for share, found in scores.items():
        found += [run(Energy(share=share), example) for example in examples]
    truth = torch.cat([example.labels for example in examples])
    assert pooled_auc(torch.cat(scores[0.9]), truth) > 0.99
    assert 0.1 < pooled_auc(torch.cat(scores[0.5]), truth) < 0.9


def test_energy_finds_noise_far_below_the_signal() -> None:
    """Noise at 1e-9 of the gradients: eigenvalues alone would take it for zero."""
    example = low_rank(512, 32)
    # Rounding to float32 is noise as well, so the rows are made exactly low-rank first.
    left, values, right = torch.linalg.svd(example.clean.double(), full_matrices=False)
    exact = (left[:, :4] * values[:4]) @ right[:4]
    noise = 1e-9 * torch.randn(exact.shape, generator=seeded(), dtype=torch.float64)
    released = exact + noise * (example.labels == 0).unsqueeze(1)
    assert leak("energy", Example(exact, released, example.labels)) > 0.99


# --- against slow, obvious versions -------------------------------------------------------------


def small(rows: int = 30, width: int = 6) -> Example:
    grads = torch.randn(rows, width, generator=seeded(8), dtype=torch.float64)
    return Example(grads, grads, (torch.arange(rows) % 3 == 0).long())


def test_majority_equals_a_double_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    grads = small().released
    grads[4] = 0.0
    votes = [
        sum(float(a @ b) < 0 for j, b in enumerate(grads) if j != i) / (len(grads) - 1)
        for i, a in enumerate(grads)
    ]
    expected = torch.tensor(votes, dtype=torch.float64)
    assert torch.equal(Majority()(View(grads=grads), seeded()), expected)
    for block in (1, 45, 100):
        monkeypatch.setattr(scoring, "_BLOCK", block)
        assert torch.equal(Majority()(View(grads=grads), seeded()), expected)


def test_majority_ignores_orthogonal_rows() -> None:
    rows = torch.linalg.qr(torch.randn(16, 16, generator=seeded(), dtype=torch.float64))[0]
    assert Majority()(View(grads=rows), seeded()).tolist() == [0.0] * 16


def test_the_longest_hint_alone_is_compared_with() -> None:
    grads = torch.tensor([[2.0, 0.0], [3.0, 0.0], [-1.0, 5.0], [0.0, 4.0]], dtype=torch.float64)
    view = View(grads=grads, known=Known(hints=torch.tensor([0, 1])))
    assert Hint(use="longest")(view, seeded()).tolist() == [6.0, 6.0, -3.0, 0.0]
    assert Hint()(view, seeded()).tolist() == [6.0, 6.0, -2.0, 0.0]


@pytest.mark.parametrize(("rows", "width"), [(40, 8), (41, 7), (8, 40), (9, 9)])
def test_energy_equals_the_lower_half_of_the_svd(rows: int, width: int) -> None:
    grads = torch.randn(rows, width, generator=seeded(2), dtype=torch.float64).numpy()
    centred = grads - grads.mean(axis=0)
    _, values, directions = np.linalg.svd(centred)
    rank = int((values > 1e-9).sum())
    weak = directions[(rank + 1) // 2 : rank]
    expected = torch.from_numpy(((centred @ weak.T) ** 2).sum(axis=1))
    found = Energy()(View(grads=torch.from_numpy(grads)), seeded())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(40, 8), (8, 40)])
def test_principal_equals_the_top_singular_vector(rows: int, width: int) -> None:
    grads = torch.randn(rows, width, generator=seeded(2), dtype=torch.float64)
    centred = (grads - grads.mean(dim=0)).numpy()
    top = centred @ np.linalg.svd(centred)[2][0]
    found = run("principal", Example(grads, grads, torch.zeros(rows))).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(top), rtol=1e-8)
    assert (found**3).sum() >= 0


@pytest.mark.parametrize("name", ["mean", "median"])
def test_mean_and_median_equal_a_loop(name: str) -> None:
    example = small()
    rows = example.released.numpy()
    middle = np.mean if name == "mean" else np.median
    centres = [middle(rows[example.labels.numpy() == c], axis=0) for c in (0, 1)]
    far = np.array([[np.sqrt(((row - c) ** 2).sum()) for c in centres] for row in rows])
    found = run(name, example)
    np.testing.assert_allclose(found.numpy(), far[:, 0] - far[:, 1], rtol=1e-12)
    hard = run(f"{name}(hard=true)", example)
    np.testing.assert_array_equal(hard.numpy(), (far[:, 1] <= far[:, 0]).astype(float))


def test_the_released_median_attack_cuts_at_the_median_of_all() -> None:
    example = small()
    rows, labels = example.released.numpy(), example.labels.numpy()
    first, second = (np.median(rows[labels == c], axis=0) for c in (0, 1))
    middle = np.median(rows, axis=0)
    expected = np.array([sum((row - middle) * (second - first)) for row in rows])
    found = run("median(split=all)", example)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    hard = run("median(hard=true, split=all)", example)
    np.testing.assert_array_equal(hard.numpy(), (expected >= 0).astype(float))


@pytest.mark.parametrize(
    ("positives", "expected"), [(394, 0.9125), (221, 0.821), (500, 1.0), (779, 0.821)]
)
def test_the_released_median_attack_on_classes_wholly_apart(
    positives: int, expected: float
) -> None:
    """The numbers that GAFM's table 1 has for Vanilla: half of the rows, however many are rare."""
    labels = (torch.arange(1000) < positives).long()
    grads = (-labels + 0.1 * torch.rand(1000, generator=seeded(1))).double().unsqueeze(1)
    example = Example(grads, grads, labels)
    assert leak("median(hard=true, split=all)", example) == pytest.approx(expected, abs=2e-3)
    assert leak("median(hard=true)", example) == 1.0


def test_a_tie_scores_one_if_hard_and_zero_otherwise() -> None:
    view = View(grads=torch.zeros(1, 2), known=Known(centres=torch.tensor([[1.0, 0.0], [0.0, 1]])))
    assert Mean(hard=True)(view, seeded()).tolist() == [1.0]
    assert Mean()(view, seeded()).tolist() == [0.0]


def test_continuous_scores_rank_where_hard_ones_only_split() -> None:
    rng = seeded(4)
    labels = (torch.arange(600) % 4 == 0).long()
    grads = torch.randn(600, 4, generator=rng) + labels.unsqueeze(1) * 0.5
    example = Example(grads, grads, labels)
    soft, hard = run("mean", example), run("mean(hard=true)", example)
    assert torch.equal(hard == 1, soft >= 0)
    assert pooled_auc(soft, labels) > pooled_auc(hard, labels) + 0.02


@pytest.mark.parametrize("by", ["inner", "cosine", "distance"])
def test_hint_equals_a_loop_that_leaves_out_the_hint_itself(by: str) -> None:
    rows = small().released
    hints = [1, 5, 7]
    similar: Callable[[Tensor, Tensor], Tensor] = {
        "inner": lambda a, b: a @ b,
        "cosine": lambda a, b: a @ b / (a.norm() * b.norm()),
        "distance": lambda a, b: -(a - b).norm(),
    }[by]
    expected = [max(similar(a, rows[h]) for h in hints if h != i) for i, a in enumerate(rows)]
    view = View(grads=rows, known=Known(hints=torch.tensor(hints)))
    found = attacks.get(f"hint(by={by})")(view, seeded())
    torch.testing.assert_close(found, torch.stack(expected))


# --- what the hint attack knows does not count --------------------------------------------------


def test_a_hint_is_not_scored_against_itself() -> None:
    """In noise, a hint compared with itself would score far above every other row."""
    grads = torch.randn(200, 500, generator=seeded(1))
    for k in (1, 5):
        hints = torch.arange(k) * 7
        scores = Hint(k=k)(View(grads=grads, known=Known(hints=hints)), seeded())
        assert scores[hints].max() < scores.max()
        assert scores[hints].max() < grads.square().sum(dim=1).min() / 2


def test_a_single_hint_gets_the_mean_of_the_others() -> None:
    grads = torch.tensor([[2.0], [1.0], [3.0], [-1.0]])
    view = View(grads=grads, known=Known(hints=torch.tensor([0])))
    assert Hint()(view, seeded()).tolist() == [2.0, 2.0, 6.0, -2.0]
    alone = View(grads=grads[:1], known=Known(hints=torch.tensor([0])))
    assert Hint()(alone, seeded()).tolist() == [0.0]


def test_hint_draws_k_of_the_hints_and_others_with_another_generator() -> None:
    grads = torch.eye(12)
    probe = View(grads=torch.cat([grads, grads]), known=Known(hints=torch.arange(10)))
    picks = {tuple(Hint(k=3)(probe, seeded(s))[12:].nonzero().flatten().tolist()) for s in range(8)}
    assert all(len(pick) == 3 for pick in picks)
    assert len(picks) > 1


def test_hints_come_as_indices_or_as_a_mask() -> None:
    rows = small().released
    mask = torch.zeros(30, dtype=torch.bool)
    mask[[3, 4, 9]] = True
    as_mask = Hint()(View(grads=rows, known=Known(hints=mask)), seeded())
    as_rows = Hint()(View(grads=rows, known=Known(hints=torch.tensor([9, 3, 4, 3]))), seeded())
    assert torch.equal(as_mask, as_rows)


# --- scale --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [spec for spec in VARIANTS if attacks.get(spec).scale_free])
@pytest.mark.parametrize("factor", [2.0**-996, 2.0**-531, 2.0**-80, 2.0**66, 2.0**531, 2.0**996])
def test_ranking_does_not_depend_on_scale(spec: str, factor: float) -> None:
    example = small()
    scaled = Example(example.clean * factor, example.released * factor, example.labels)
    plain, other = run(spec, example), run(spec, scaled)
    ties = (plain.unsqueeze(0) - plain.unsqueeze(1)).abs() <= 1e-12 * plain.abs().max()
    swapped = (plain.unsqueeze(0) < plain.unsqueeze(1)) != (other.unsqueeze(0) < other.unsqueeze(1))
    assert not (swapped & ~ties).any()


@pytest.mark.parametrize(
    ("spec", "degree"),
    [
        *(("norm", 1), ("cosine", 0), ("majority", 0), ("energy", 2), ("principal", 1)),
        ("supervised", 0),
        *(("hint", 2), ("hint(by=cosine)", 0), ("hint(by=distance)", 1)),
        *(("mean", 1), ("median", 1), ("mean(hard=true)", 0), ("median(hard=true)", 0)),
    ],
)
def test_scores_of_different_batches_are_in_the_same_units(spec: str, degree: int) -> None:
    """A pooled AUC compares scores across batches: the rescaling must not show."""
    example = small()
    tripled = Example(example.clean * 3, example.released * 3, example.labels)
    torch.testing.assert_close(run(spec, tripled), 3.0**degree * run(spec, example))


def test_known_gradients_are_scaled_with_the_released_ones() -> None:
    """A clean gradient far larger or smaller than the release keeps its distance."""
    for far in (1e-30, 1e30):
        centres = torch.tensor([[0.0], [far]], dtype=torch.float64)
        view = View(grads=torch.tensor([[0.0], [1.0]]), known=Known(centres=centres))
        nearer = Mean()(view, seeded())
        assert nearer[0] < 0
        torch.testing.assert_close(nearer[0], torch.tensor(-far, dtype=torch.float64))
