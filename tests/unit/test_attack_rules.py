"""What an attacker is handed, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attack_examples import VARIANTS, Example, leak, low_rank, seeded
from tacit import attack as attacks
from tacit.attack import ATTACKS, Attack, Hint, Mean, Median, Norm, PreparedView
from tacit.errors import InputError, KnowledgeError, ParameterError, SpecError
from tacit.evaluate import reveal
from tacit.spec import Entry
from tacit.types import Known, View

# --- what the evaluator reveals -----------------------------------------------------------------


@pytest.mark.parametrize("spec", VARIANTS)
def test_reveal_gives_what_is_declared_and_nothing_else(spec: str) -> None:
    example, attack = low_rank(64, 5), attacks.get(spec)
    known = reveal(
        attack, clean=example.clean, released=example.released, labels=example.labels, rng=seeded()
    )
    given = {name for name, value in vars(known).items() if value is not None}
    assert given == attack.needs - {"embeddings"}


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

        def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
            return prepared.rows[:, 0]

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

        def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
            return prepared.rows[:, 0]

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


def test_side_information_that_is_not_declared_cannot_be_read() -> None:
    @dataclass(frozen=True)
    class Nosy(Attack):
        def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
            return prepared.rows @ prepared.positive

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

        def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
            return prepared.rows[:, 0]

    with pytest.raises(kind, match=words):
        Looker()(View(grads=torch.ones(2, 2), embeddings=embeddings), seeded())


@pytest.mark.parametrize("scores", [torch.ones(3), torch.ones(2, 1), torch.tensor([0.0, math.nan])])
def test_scores_of_the_wrong_form_are_refused(scores: Tensor) -> None:
    @dataclass(frozen=True)
    class Sloppy(Attack):
        def score(self, _prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
            return scores

    with pytest.raises(InputError, match="finite score for each of 2 rows"):
        Sloppy()(View(grads=torch.ones(2, 2)), seeded())


def test_median_attack_resists_an_outlier_that_moves_the_mean() -> None:
    example = low_rank(256, 16)
    released = example.released.clone()
    released[(example.labels == 0).nonzero()[0]] *= -1e4
    spoilt = Example(released, released, example.labels)
    assert leak(Median(), spoilt) > 0.98 > leak(Mean(), spoilt)
