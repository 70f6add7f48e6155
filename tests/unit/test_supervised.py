"""The learning attack: it finds what is there and nothing else, its own labelled rows included."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from supervised_examples import MLP, QUADRATIC, deviation, judged, seeded, shifted
from tacit import Cut, Guard
from tacit.attack import Attack, Supervised
from tacit.errors import InputError, KnowledgeError
from tacit.evaluate import cross_fit, cross_fit_probabilities, reveal
from tacit.measure import auc, null_band
from tacit.monitor import LeakMonitor
from tacit.testing import AttackContract, low_rank_cut
from tacit.types import Known, View

MODELS = [QUADRATIC, MLP]


def released(spec: str, *, seed: int = 0, steps: int = 8, rows: int = 512) -> tuple[Tensor, Tensor]:
    """Consecutive steps of one model, each released on its own."""
    cut, guard = low_rank_cut(steps * rows, 128, seed=seed), Guard(spec, seed=3)
    parts = zip(cut.grads.split(rows), cut.labels.split(rows), strict=True)
    return torch.cat([guard.release(Cut(grads=g, labels=y)).grads for g, y in parts]), cut.labels


# --- finds what it must -------------------------------------------------------------------------


@pytest.mark.parametrize("attack", MODELS, ids=str)
@pytest.mark.parametrize(("spec", "least"), [("none", 0.9999), ("marvell(s=4)", 0.99)])
def test_finds_clean_gradients_and_noise_on_one_class(
    attack: Attack, spec: str, least: float
) -> None:
    """Published Marvell leaves one class without noise in most directions."""
    assert judged(attack, *released(spec)) >= least


def test_best_finds_noise_on_one_class() -> None:
    assert judged(Supervised(), *released("marvell(s=4)", seed=1, steps=4)) >= 0.99


@pytest.mark.parametrize("attack", MODELS, ids=str)
@pytest.mark.parametrize(("width", "delta"), [(8, 1.0), (32, 2.0)])
def test_comes_close_to_the_best_possible_score(attack: Attack, width: int, delta: float) -> None:
    """The best AUC is Phi(delta / sqrt 2); fitting p weights to n rows costs a known part of it.

    A discriminant with estimated means has ``delta^4 / (delta^2 + p (1/n1 + 1/n0))`` in place of
    ``delta^2``; the network keeps a fifth of the rows back.
    """
    grads, labels = shifted(4000, width, delta)
    found = judged(attack, grads, labels)
    fitted = 2 / 3 * 0.8
    ones, zeros = (fitted * int((labels == c).sum()) for c in (1, 0))
    features = 2 * width + 12 * 11 / 2 + 7
    left = delta**4 / (delta**2 + features * (1 / ones + 1 / zeros))
    best = NormalDist().cdf(delta / math.sqrt(2))
    lost = best - NormalDist().cdf(math.sqrt(left / 2))
    assert best - lost - deviation(labels) <= found <= best + deviation(labels, folds=False)


def test_the_network_finds_what_no_second_order_score_does() -> None:
    rng = seeded(6)
    grads = torch.randn(3000, 6, generator=rng) * torch.linspace(2, 1, 6)
    labels = (torch.sin(1.5 * grads[:, 0]) > 0).long()
    assert judged(QUADRATIC, grads, labels) < 0.6
    assert judged(Supervised(), grads, labels) > 0.95


def test_a_shift_in_a_weak_direction_is_found_beside_strong_ones() -> None:
    grads, labels = shifted(2000, 12, 0.0)
    grads = grads * torch.logspace(0, 3, 12)
    grads[:, 0] += 3.0 * labels
    assert judged(QUADRATIC, grads, labels) > NormalDist().cdf(3 / math.sqrt(2)) - 0.02


def test_an_outlier_does_not_hide_the_rest() -> None:
    grads, labels = shifted(2000, 12, 3.0)
    grads[0] *= 1e8
    assert judged(QUADRATIC, grads, labels) > NormalDist().cdf(3 / math.sqrt(2)) - 0.03


def test_embeddings_help_when_only_they_carry_the_label() -> None:
    embeddings, labels = shifted(1500, 8, 2.0)
    grads = torch.randn(1500, 16, generator=seeded(4))
    best = NormalDist().cdf(2 / math.sqrt(2))
    for by in ("best", "both"):
        attack = Supervised(model="quadratic", by=by)  # type: ignore[arg-type]
        assert judged(attack, grads, labels, embeddings=embeddings) > best - 0.03
    blind = judged(Supervised(by="gradient"), grads, labels, embeddings=embeddings)
    assert abs(blind - 0.5) <= deviation(labels)


def test_more_rows_than_dimensions_are_not_needed() -> None:
    cut = low_rank_cut(150, 1600)
    assert judged(Supervised(), cut.grads, cut.labels) > 0.99


def test_the_monitor_can_run_it_and_all_rows_count() -> None:
    monitor = LeakMonitor(["supervised"])
    Guard("none", watch=monitor).release(low_rank_cut(600, 32))
    assert monitor.report()["supervised"].leak_auc > 0.99
    alone = low_rank_cut(40, 8, positive=0.02)
    Guard("none", watch=monitor).release(alone)  # one positive: passed over
    assert monitor.report()["supervised"].batches == 1


# --- finds nothing where there is nothing -------------------------------------------------------


@pytest.mark.parametrize("attack", [*MODELS, Supervised()], ids=str)
def test_pure_noise_stays_in_the_band_of_chance(attack: Attack) -> None:
    grads, labels = shifted(2000, 16, 0.0, seed=5)
    scores = cross_fit(attack, View(grads=grads), labels, rng=seeded(1))
    low, high = null_band(labels, level=1 - 1e-6)
    assert 1 - high <= auc(scores, labels) <= high
    assert low == 0.5


def test_a_labelled_row_is_not_scored_by_its_own_label() -> None:
    """All rows labelled, nothing to learn: a fit scored on its own rows would reach 1.0."""
    grads, labels = shifted(300, 60, 0.0)
    view = View(grads=grads, known=Known(labelled=(torch.arange(300), labels)))
    honest, fitted = QUADRATIC(view, seeded()), QUADRATIC.log_odds(view, seeded(), honest=False)
    assert abs(auc(honest, labels) - 0.5) <= deviation(labels)
    assert auc(fitted, labels) > 0.7


# --- scores that compare, and many classes ------------------------------------------------------


def test_the_share_of_positives_is_not_in_the_score() -> None:
    """Known Gaussians: the score estimates the log-likelihood ratio delta x - delta^2 / 2."""
    grads, labels = shifted(4000, 1, 1.5)
    grads = grads if grads[labels == 1].mean() > 0 else -grads
    scores = cross_fit(QUADRATIC, View(grads=grads), labels, rng=seeded())
    truth = 1.5 * grads[:, 0].double() - 1.5**2 / 2
    assert float((scores - truth).abs().mean()) < 0.25


@pytest.mark.parametrize("attack", MODELS, ids=str)
def test_probabilities_of_many_classes(attack: Supervised) -> None:
    rng = seeded(3)
    labels = torch.randint(4, (1500,), generator=rng)
    centres = 3 * torch.eye(4, 10)
    grads = centres[labels] + torch.randn(1500, 10, generator=rng)
    best = float((torch.cdist(grads, centres).argmin(dim=1) == labels).double().mean())
    probs = cross_fit_probabilities(attack, View(grads=grads), labels, rng=seeded(1))
    assert probs.shape == (1500, 4)
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(1500, dtype=torch.float64))
    assert float((probs.argmax(dim=1) == labels).double().mean()) > best - 0.03


def test_probabilities_of_two_classes_are_the_scores_with_the_shares() -> None:
    grads, labels = shifted(300, 4, 1.0)
    rows = torch.arange(150)
    view = View(grads=grads, known=Known(labelled=(rows, labels[:150]), classes=3))
    probs, scores = QUADRATIC.probabilities(view, seeded()), QUADRATIC(view, seeded())
    share = labels[:150].double().mean()
    torch.testing.assert_close(probs[:, 1], torch.sigmoid(scores + torch.logit(share)))
    assert probs.shape == (300, 3)
    assert (probs[:, 2] == 0).all()


def test_unlabelled_rows_score_the_same_without_honest() -> None:
    grads, labels = shifted(300, 4, 1.0)
    view = View(grads=grads, known=Known(labelled=(torch.arange(150), labels[:150])))
    slow, fast = MLP(view, seeded()), MLP.log_odds(view, seeded(), honest=False)
    assert torch.equal(slow[150:], fast[150:])
    assert not torch.equal(slow[:150], fast[:150])


@pytest.mark.parametrize("check", [c for c in AttackContract.checks() if "finds_nothing" not in c])
def test_contract_of_the_network(check: str) -> None:
    """Batches as small as the contract's leave the network out of ``best``."""
    getattr(AttackContract(MLP), check)()


@pytest.mark.parametrize("attack", [*MODELS, Supervised()], ids=str)
def test_degenerate_rows_are_scored(attack: Attack) -> None:
    """Zero rows, constant columns, two different rows only, one column."""
    labels = torch.arange(60) % 2
    rows = torch.zeros(60, 5, dtype=torch.float64)
    known = Known(labelled=(torch.arange(40), labels[:40]))
    assert attack(View(grads=rows, known=known), seeded()).std() == 0
    rows[:, 1] = 7.0
    rows[:, 2] = labels.double() * 1e-200
    assert auc(attack(View(grads=rows, known=known), seeded()), labels) == 0.5  # lost in rounding
    rows[:, 1] = 0.0
    assert auc(attack(View(grads=rows, known=known), seeded()), labels) == 1.0
    assert auc(attack(View(grads=rows[:, 2], known=known), seeded()), labels) == 1.0


def test_two_examples_of_a_class_are_enough_however_often_they_repeat() -> None:
    ids = torch.arange(4).repeat(10)
    grads, labels = torch.randn(40, 3, generator=seeded()), ids % 2
    known = Known(labelled=(torch.arange(40), labels))
    for seed in range(8):
        for attack in (QUADRATIC, MLP):
            assert attack(View(grads=grads, ids=ids, known=known), seeded(seed)).isfinite().all()


# --- what is refused ----------------------------------------------------------------------------


def pair(rows: list[int], classes: list[int]) -> Known:
    return Known(labelled=(torch.tensor(rows), torch.tensor(classes)))


@pytest.mark.parametrize(
    ("known", "kind", "words"),
    [
        (Known(), KnowledgeError, r"supervised needs known\.labelled"),
        (pair([0, 1, 2], [1, 1, 1]), KnowledgeError, "only class 1: label rows of another"),
        (pair([0, 1, 2], [0, 0, 1]), KnowledgeError, "got one of class 1: label another"),
        (pair([0, 1, 2, 3], [0, 0, 2, 2]), KnowledgeError, "`probabilities`"),
        (pair([0, 1, 2, 6], [0, 0, 1, 1]), InputError, r"rows in 0\.\.5, got 6"),
        (pair([-1, 1, 2, 3], [0, 0, 1, 1]), InputError, r"rows in 0\.\.5, got -1"),
        (pair([0, 0, 2, 3], [0, 0, 1, 1]), InputError, "each row once"),
        (pair([0, 1, 2, 3], [0, 0, -1, -1]), InputError, "classes 0, 1, ..., got -1"),
        (pair([0, 1, 2], [0, 1]), InputError, "row indices .* and classes"),
        (Known(labelled=(torch.rand(4), torch.ones(4))), InputError, "whole numbers"),
        (Known(labelled=(torch.arange(0), torch.arange(0))), KnowledgeError, "got no row"),
    ],
)
def test_wrong_labelled_rows(known: Known, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Supervised()(View(grads=torch.eye(6), known=known), seeded())


def test_wrong_embeddings_and_ids() -> None:
    view = View(grads=torch.eye(6), known=pair([0, 1, 2, 3], [0, 0, 1, 1]))
    with pytest.raises(KnowledgeError, match=r"both.* needs embeddings: .* by=gradient"):
        Supervised(by="both")(view, seeded())
    for bad, words in ((torch.ones(5, 2), "6 rows"), (torch.full((6, 2), math.nan), "finite")):
        with pytest.raises(InputError, match=f"embeddings must .*{words}"):
            Supervised()(replace(view, embeddings=bad), seeded())
    with pytest.raises(InputError, match=r"ids must be \[6\]"):
        Supervised()(replace(view, ids=torch.arange(5)), seeded())
    with pytest.raises(InputError, match="one id different classes"):
        Supervised()(replace(view, ids=torch.tensor([0, 1, 2, 0, 4, 5])), seeded())
    with pytest.raises(KnowledgeError, match="one of class 1"):
        Supervised()(replace(view, ids=torch.tensor([0, 1, 2, 2, 4, 5])), seeded())


def test_reveal_draws_half_of_each_class() -> None:
    grads, labels = torch.randn(40, 2, generator=seeded()), (torch.arange(40) < 5).long()
    drawn = set()
    for seed in range(5):
        known = reveal(Supervised(), clean=grads, released=grads, labels=labels, rng=seeded(seed))
        assert known.labelled is not None
        rows, classes = known.labelled
        assert torch.equal(classes, labels[rows])
        assert torch.equal(rows, rows.unique())
        assert torch.bincount(classes).tolist() == [17, 2]
        drawn.add(tuple(rows.tolist()))
    assert len(drawn) == 5
    few = (torch.arange(40) < 1).long()
    with pytest.raises(KnowledgeError, match=r"known\.labelled .*\[39, 1\]"):
        reveal(Supervised(), clean=grads, released=grads, labels=few, rng=seeded())
