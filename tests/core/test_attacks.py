"""Each attack: where it must succeed, where it must find nothing, and against an obvious twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit import attack as attacks
from tacit.attack import (
    ATTACKS,
    Attack,
    Energy,
    Hint,
    Majority,
    Mean,
    Median,
    Norm,
    Sight,
    reveal,
    scoring,
)
from tacit.errors import InputError, KnowledgeError, ParameterError, SpecError
from tacit.spec import Entry
from tacit.testing.attack_contract import null_band, pooled_auc
from tacit.types import Known, View

VARIANTS = [
    *ATTACKS.names(),
    *("hint(by=cosine)", "hint(by=distance)", "hint(k=1)", "hint(k=2)"),
    *("mean(hard=true)", "median(hard=true)", "energy(share=0.9)"),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Example:
    """Gradients as they were, as they were released, and the truth."""

    clean: Tensor
    released: Tensor
    labels: Tensor


def low_rank(rows: int = 1024, width: int = 128, *, share: float = 0.25, seed: int = 1) -> Example:
    """``g = (p - y) w`` with a little curvature in ``w``; positives are less well predicted."""
    rng = seeded(seed)
    labels = (torch.rand(rows, generator=rng) < share).long()
    probs = torch.sigmoid(-1.5 + 0.8 * torch.randn(rows, generator=rng) + 0.5 * labels)
    bend = torch.randn(rows, 3, generator=rng) @ torch.randn(3, width, generator=rng)
    grads = (probs - labels).unsqueeze(1) * (torch.randn(width, generator=rng) + 0.1 * bend)
    return Example(grads, grads, labels)


def one_noisy_class(
    rows: int, width: int, *, noisy: int = 0, share: float = 0.25, seed: int = 1
) -> Example:
    """The low-rank batch with isotropic noise of the gradients' own length on one class only."""
    example = low_rank(rows, width, share=share, seed=seed)
    std = example.clean.norm(dim=1).mean() / math.sqrt(width)
    noise = std * torch.randn(rows, width, generator=seeded(seed + 100))
    hit = (example.labels == noisy).unsqueeze(1)
    return Example(example.clean, example.clean + noise * hit, example.labels)


def run(attack: Attack | str, example: Example, *, seed: int = 0) -> Tensor:
    """The scores of an attack that was given what it declares."""
    attack, rng = attacks.get(attack), seeded(seed)
    known = reveal(
        attack, clean=example.clean, released=example.released, labels=example.labels, rng=rng
    )
    return attack(View(grads=example.released, known=known), rng)


def leak(attack: Attack | str, example: Example) -> float:
    found = pooled_auc(run(attack, example), example.labels)
    return max(found, 1 - found)


# --- every registered attack succeeds where it must, and finds nothing where there is nothing ----

SUCCESS: dict[str, tuple[Callable[[], Example], float]] = {
    "norm": (low_rank, 0.95),
    "cosine": (low_rank, 1.0),
    "majority": (low_rank, 0.999),
    "hint": (low_rank, 0.999),
    "mean": (low_rank, 0.999),
    "median": (low_rank, 0.999),
    "energy": (lambda: one_noisy_class(1024, 128), 0.999),
    "principal": (low_rank, 0.999),
}


def test_every_registered_attack_has_a_batch_on_which_it_must_succeed() -> None:
    missing = set(attacks.names()) - set(SUCCESS)
    assert not missing, f"add a batch to SUCCESS on which it must succeed: {sorted(missing)}"


@pytest.mark.parametrize("name", attacks.names())
def test_succeeds(name: str) -> None:
    example, threshold = SUCCESS[name]
    assert leak(name, example()) >= threshold


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
        scores.append(attack(View(grads=grads, known=known), rng))
        truth.append(labels)
    low, high = null_band(torch.cat(truth), level=1e-6)
    slack = hint_handicap(attack, rows // 4)
    assert low - slack <= pooled_auc(torch.cat(scores), torch.cat(truth)) <= high


def hint_handicap(attack: Attack, positives: int) -> float:
    """A drawn hint is the best of ``k - 1``, other rows of ``k``: it wins ``(k - 1)/(2k - 1)``."""
    if not isinstance(attack, Hint) or attack.k == 1:
        return 0.0
    return attack.k / positives * (0.5 - (attack.k - 1) / (2 * attack.k - 1))


def test_majority_and_principal_say_which_class_is_positive() -> None:
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


def test_majority_is_the_double_loop(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_orthogonal_rows_do_not_vote() -> None:
    rows = torch.linalg.qr(torch.randn(16, 16, generator=seeded(), dtype=torch.float64))[0]
    assert Majority()(View(grads=rows), seeded()).tolist() == [0.0] * 16


@pytest.mark.parametrize(("rows", "width"), [(40, 8), (41, 7), (8, 40), (9, 9)])
def test_energy_is_the_lower_half_of_the_svd(rows: int, width: int) -> None:
    grads = torch.randn(rows, width, generator=seeded(2), dtype=torch.float64).numpy()
    centred = grads - grads.mean(axis=0)
    _, values, directions = np.linalg.svd(centred)
    rank = int((values > 1e-9).sum())
    weak = directions[(rank + 1) // 2 : rank]
    expected = torch.from_numpy(((centred @ weak.T) ** 2).sum(axis=1))
    found = Energy()(View(grads=torch.from_numpy(grads)), seeded())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(40, 8), (8, 40)])
def test_principal_is_the_top_singular_vector(rows: int, width: int) -> None:
    grads = torch.randn(rows, width, generator=seeded(2), dtype=torch.float64)
    centred = (grads - grads.mean(dim=0)).numpy()
    top = centred @ np.linalg.svd(centred)[2][0]
    found = run("principal", Example(grads, grads, torch.zeros(rows))).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(top), rtol=1e-8)
    assert (found**3).sum() >= 0


@pytest.mark.parametrize("name", ["mean", "median"])
def test_centres_attacks_are_the_loop(name: str) -> None:
    example = small()
    rows = example.released.numpy()
    middle = np.mean if name == "mean" else np.median
    centres = [middle(rows[example.labels.numpy() == c], axis=0) for c in (0, 1)]
    far = np.array([[np.sqrt(((row - c) ** 2).sum()) for c in centres] for row in rows])
    found = run(name, example)
    np.testing.assert_allclose(found.numpy(), far[:, 0] - far[:, 1], rtol=1e-12)
    hard = run(f"{name}(hard=true)", example)
    np.testing.assert_array_equal(hard.numpy(), (far[:, 1] <= far[:, 0]).astype(float))


def test_a_tie_is_positive_when_hard_and_zero_when_not() -> None:
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
def test_hint_is_the_loop_and_leaves_out_the_hint_itself(by: str) -> None:
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


def test_a_hint_does_not_find_itself() -> None:
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


@pytest.mark.parametrize("spec", VARIANTS)
@pytest.mark.parametrize("factor", [1e-300, 1e-160, 1e-24, 1e20, 1e160, 1e300])
def test_ranking_survives_any_scale(spec: str, factor: float) -> None:
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
        *(("hint", 2), ("hint(by=cosine)", 0), ("hint(by=distance)", 1)),
        *(("mean", 1), ("median", 1), ("mean(hard=true)", 0), ("median(hard=true)", 0)),
    ],
)
def test_scores_of_different_batches_are_in_the_same_units(spec: str, degree: int) -> None:
    """A pooled AUC compares scores across batches: the rescaling must not show."""
    example = small()
    tripled = Example(example.clean * 3, example.released * 3, example.labels)
    torch.testing.assert_close(run(spec, tripled), 3.0**degree * run(spec, example))


def test_known_gradients_move_with_the_released_ones() -> None:
    """A clean gradient far larger or smaller than the release keeps its distance."""
    for far in (1e-30, 1e30):
        centres = torch.tensor([[0.0], [far]], dtype=torch.float64)
        view = View(grads=torch.tensor([[0.0], [1.0]]), known=Known(centres=centres))
        nearer = Mean()(view, seeded())
        assert nearer[0] < 0
        torch.testing.assert_close(nearer[0], torch.tensor(-far, dtype=torch.float64))


# --- what the evaluator reveals -----------------------------------------------------------------


@pytest.mark.parametrize("spec", VARIANTS)
def test_reveal_gives_what_is_declared_and_nothing_else(spec: str) -> None:
    example, attack = low_rank(64, 5), attacks.get(spec)
    known = reveal(
        attack, clean=example.clean, released=example.released, labels=example.labels, rng=seeded()
    )
    given = {name for name, value in vars(known).items() if value is not None}
    assert given == attack.needs


def test_reveal_takes_the_positive_from_the_clean_and_centres_from_the_released() -> None:
    clean, released = torch.arange(4.0).unsqueeze(1), -torch.arange(4.0).unsqueeze(1)
    labels = torch.tensor([0, 1, 1, 0])

    def seen(name: str, seed: int = 0) -> Known:
        return reveal(
            attacks.get(name), clean=clean, released=released, labels=labels, rng=seeded(seed)
        )

    drawn = {float(seen("cosine", seed).positive) for seed in range(20)}  # type: ignore[arg-type]
    assert drawn == {1.0, 2.0}
    centres = seen("mean").centres
    assert centres is not None
    assert centres.tolist() == [[-1.5], [-1.5]]
    assert torch.equal(centres, seen("median").centres)  # type: ignore[arg-type]


def test_reveal_hands_over_no_more_hints_than_the_attack_uses() -> None:
    example = low_rank(200, 4)
    picks = set()
    for seed in range(5):
        hints = reveal(
            Hint(k=3),
            clean=example.clean,
            released=example.released,
            labels=example.labels,
            rng=seeded(seed),
        ).hints
        assert hints is not None
        assert len(hints) == 3
        assert (example.labels[hints] == 1).all()
        picks.add(tuple(hints.tolist()))
    assert len(picks) > 1


def test_reveal_has_a_centre_per_class_prior_and_classes() -> None:
    @dataclass(frozen=True)
    class ManyClasses(Attack):
        needs = frozenset({"centres", "prior", "classes", "embeddings"})
        centre = "median"

        def score(self, sight: Sight, _rng: torch.Generator, /) -> Tensor:
            return sight.rows[:, 0]

    grads = torch.tensor([[[1.0]], [[2.0]], [[9.0]], [[3.0]], [[5.0]]])
    labels = torch.tensor([0, 0, 0, 1, 2])
    known = reveal(ManyClasses(), clean=grads, released=grads, labels=labels, rng=seeded())
    assert known.classes == 3
    assert known.prior is not None
    assert known.prior.tolist() == [0.6, 0.2, 0.2]
    assert known.centres is not None
    assert known.centres.tolist() == [[[2.0]], [[3.0]], [[5.0]]]
    with pytest.raises(KnowledgeError, match="centre of class 1"):
        reveal(
            ManyClasses(),
            clean=grads,
            released=grads,
            labels=torch.tensor([0, 0, 0, 2, 2]),
            rng=seeded(),
        )


@pytest.mark.parametrize("name", ["cosine", "hint", "mean", "median"])
def test_reveal_says_when_the_batch_has_no_positive(name: str) -> None:
    grads = torch.ones(3, 2)
    with pytest.raises(KnowledgeError, match=name):
        reveal(attacks.get(name), clean=grads, released=grads, labels=torch.zeros(3), rng=seeded())


@pytest.mark.parametrize(
    ("labels", "rows", "words"),
    [
        (torch.zeros(4), 3, r"labels must be \[3\]"),
        (torch.tensor([0.0, 0.5, 1.0]), 3, "class indices"),
        (torch.tensor([0, -1, 1]), 3, "class indices"),
        (torch.tensor([0, 1, 2]), 3, "class 1 from class 0"),
        (torch.tensor([0, 1, 1]), 2, "clean must have 3 rows"),
    ],
)
def test_reveal_checks_its_input(labels: Tensor, rows: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        reveal(
            Hint(),
            clean=torch.ones(rows, 2),
            released=torch.ones(3, 2),
            labels=labels,
            rng=seeded(),
        )


def test_reveal_refuses_what_it_cannot_draw() -> None:
    @dataclass(frozen=True)
    class NeedsLabelled(Attack):
        needs = frozenset({"labelled"})

        def score(self, sight: Sight, _rng: torch.Generator, /) -> Tensor:
            return sight.rows[:, 0]

    grads = torch.ones(3, 2)
    with pytest.raises(KnowledgeError, match=r"known\.labelled"):
        reveal(NeedsLabelled(), clean=grads, released=grads, labels=torch.ones(3), rng=seeded())


# --- errors, one by one -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nrom", "did you mean 'norm'"),
        ("", "needs a name"),
        ("  ", "needs a name"),
        ("hint(j=3)", "no parameter 'j'"),
        ("hint(by=angle)", r"inner \| cosine \| distance"),
        ("mean(hard=1)", "true or false"),
        ("norm | cosine", "one attack is expected"),
    ],
)
def test_a_wrong_spec_is_refused(spec: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        attacks.get(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hint(k=0)", "k must be at least 1, got 0"),
        ("energy(share=1)", "share must lie between 0 and 1, got 1"),
        ("energy(share=0)", "share must lie between 0 and 1, got 0"),
    ],
)
def test_a_parameter_outside_its_range_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        attacks.get(spec)


@pytest.mark.parametrize("spec", VARIANTS)
def test_specs_print_back(spec: str) -> None:
    assert str(attacks.get(spec)) == spec
    assert attacks.get(attacks.get(spec)) == attacks.get(spec)


@pytest.mark.parametrize("entry", list(ATTACKS), ids=lambda entry: entry.name)
def test_docstrings_say_what_the_attacker_needs(entry: Entry[Attack]) -> None:
    assert entry.summary.endswith(".")
    assert "Needs:" in (entry.cls.__doc__ or "")
    assert "References:" in (entry.cls.__doc__ or "")


@pytest.mark.parametrize(
    ("spec", "known", "kind", "words"),
    [
        ("cosine", Known(), KnowledgeError, r"cosine needs known\.positive"),
        ("mean", Known(), KnowledgeError, r"mean needs known\.centres"),
        ("median", Known(), KnowledgeError, r"median needs known\.centres"),
        ("hint", Known(), KnowledgeError, r"hint needs known\.hints"),
        ("hint", Known(hints=torch.tensor([], dtype=torch.int64)), KnowledgeError, "got none"),
        ("hint", Known(hints=torch.zeros(3, dtype=torch.bool)), KnowledgeError, "got none"),
        ("hint", Known(hints=torch.zeros(4, dtype=torch.bool)), InputError, r"mask \[3\]"),
        ("hint", Known(hints=torch.tensor([0.0, 1.0])), InputError, "indices or a mask"),
        ("hint", Known(hints=torch.tensor([[0]])), InputError, "indices or a mask"),
        ("hint", Known(hints=torch.tensor([3])), InputError, r"0\.\.2"),
        ("hint", Known(hints=torch.tensor([-1])), InputError, r"0\.\.2"),
        ("cosine", Known(positive=torch.ones(3)), InputError, "2 values per gradient"),
        ("cosine", Known(positive=torch.tensor([1, 2])), InputError, r"known\.positive"),
        ("cosine", Known(positive=torch.tensor([1, math.nan])), InputError, r"known\.positive"),
        ("mean", Known(centres=torch.ones(2, 3)), InputError, "2 values per gradient"),
        ("mean", Known(centres=torch.ones(3, 2)), InputError, "two centres, got 3"),
        ("median", Known(centres=torch.full((2, 2), math.inf)), InputError, r"known\.centres"),
    ],
)
def test_wrong_side_information(spec: str, known: Known, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        attacks.get(spec)(View(grads=torch.ones(3, 2), known=known), seeded())


@pytest.mark.parametrize(
    ("grads", "words"),
    [
        (torch.ones(3, 2, dtype=torch.int64), "floating point"),
        (torch.ones(0, 2), "at least one value"),
        (torch.tensor(1.0), r"\[batch, \.\.\.\]"),
        (torch.tensor([[1.0, math.nan]]), "finite"),
        (torch.tensor([[-math.inf]]), "finite"),
    ],
)
def test_wrong_gradients(grads: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Norm()(View(grads=grads), seeded())


def test_a_seed_is_not_a_generator() -> None:
    with pytest.raises(InputError, match=r"torch\.Generator, got int"):
        Norm()(View(grads=torch.ones(2, 2)), 0)  # type: ignore[arg-type]


def test_side_information_that_is_not_declared_stays_out_of_sight() -> None:
    @dataclass(frozen=True)
    class Nosy(Attack):
        def score(self, sight: Sight, _rng: torch.Generator, /) -> Tensor:
            return sight.rows @ sight.positive

    with pytest.raises(KnowledgeError, match=r"known\.positive was not declared"):
        Nosy()(View(grads=torch.ones(2, 2), known=Known(positive=torch.ones(2))), seeded())


@pytest.mark.parametrize(
    ("embeddings", "kind", "words"),
    [
        (None, KnowledgeError, "needs embeddings"),
        (torch.ones(3, 2), InputError, "2 rows like grads, got 3"),
        (torch.full((2, 2), math.nan), InputError, "embeddings must be finite"),
    ],
)
def test_embeddings_are_checked_where_they_are_declared(
    embeddings: Tensor | None, kind: type[Exception], words: str
) -> None:
    @dataclass(frozen=True)
    class Looker(Attack):
        needs = frozenset({"embeddings"})

        def score(self, sight: Sight, _rng: torch.Generator, /) -> Tensor:
            return sight.rows[:, 0]

    with pytest.raises(kind, match=words):
        Looker()(View(grads=torch.ones(2, 2), embeddings=embeddings), seeded())


@pytest.mark.parametrize("scores", [torch.ones(3), torch.ones(2, 1), torch.tensor([0.0, math.nan])])
def test_scores_of_the_wrong_form_are_refused(scores: Tensor) -> None:
    @dataclass(frozen=True)
    class Sloppy(Attack):
        def score(self, _sight: Sight, _rng: torch.Generator, /) -> Tensor:
            return scores

    with pytest.raises(InputError, match="finite score for each of 2 rows"):
        Sloppy()(View(grads=torch.ones(2, 2)), seeded())


def test_median_attack_shrugs_off_an_outlier_that_moves_the_mean() -> None:
    example = low_rank(256, 16)
    released = example.released.clone()
    released[(example.labels == 0).nonzero()[0]] *= -1e4
    spoilt = Example(released, released, example.labels)
    assert leak(Median(), spoilt) > 0.98 > leak(Mean(), spoilt)
