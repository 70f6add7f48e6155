"""The attacks that learn, on a small split network that is trained here, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attack_examples import seeded
from tacit import attack as attacks
from tacit.attack import Completion, Exploit, Unsplit
from tacit.attack.learned._trials import held_out_margin
from tacit.audit import run_audit
from tacit.errors import InputError, KnowledgeError, ParameterError, SpecError
from tacit.measure import clustering_accuracy, leak_auc
from tacit.tape import ColumnTape
from tacit.types import Known, View

QUICK = "trials=1, epochs=90, examples=600"


@cache
def split_training(classes: int, *, epochs: int = 6, rows: int = 800) -> list[tuple[View, Tensor]]:
    """The views of each epoch of a small split network on clouds that overlap, and the labels.

    Embeddings have two dimensions behind the batch; with two classes there is one logit.
    """
    rng = seeded(classes)
    labels = torch.randint(classes, (rows,), generator=rng)
    x = 1.2 * torch.randn(classes, 10, generator=rng)[labels]
    x = x + torch.randn(rows, 10, generator=rng)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bottom = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Unflatten(1, (3, 4)))
        outputs = classes if classes > 2 else 1
        top = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, outputs))
    steps = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-2)
    views = []
    for epoch in range(epochs):
        for ids in torch.randperm(rows, generator=rng).split(100):
            z = bottom(x[ids])
            z.retain_grad()
            out, y = top(z), labels[ids]
            loss = (
                nn.functional.cross_entropy(out, y)
                if classes > 2
                else (nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.float()))
            )
            steps.zero_grad()
            loss.backward()
            steps.step()
            known = Known(classes=classes, prior=torch.full((classes,), 1 / classes))
            views.append(
                (
                    View(
                        grads=z.grad.clone(),
                        embeddings=z.detach().clone(),
                        ids=ids,
                        epoch=epoch,
                        known=known,
                    ),
                    y,
                )
            )
    return views


def one_view(classes: int, epoch: int = 5) -> tuple[View, Tensor]:
    """All rows of an epoch as one view, with the labels."""
    parts = [(v, y) for v, y in split_training(classes) if v.epoch == epoch]
    views, labels = zip(*parts, strict=True)
    joined = View(
        grads=torch.cat([v.grads for v in views]),
        embeddings=torch.cat([v.embeddings for v in views]),
        ids=torch.cat([v.ids for v in views]),
        known=views[0].known,
    )
    return joined, torch.cat(labels)


def accuracy(spec: str, classes: int) -> float:
    view, labels = one_view(classes)
    return clustering_accuracy(attacks.get(spec).clusters(view, seeded()), labels)


# --- they find labels -----------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["cold", "kmeans"])
def test_exploit_finds_the_labels_of_four_classes(start: str) -> None:
    assert accuracy(f"exploit({QUICK}, start={start})", 4) > 0.95


def test_exploit_finds_two_classes_of_a_model_with_one_logit() -> None:
    view, labels = one_view(2)
    attack = attacks.get(f"exploit({QUICK})")
    assert clustering_accuracy(attack.clusters(view, seeded()), labels) > 0.97
    assert leak_auc(attack(view, seeded()), labels) > 0.97


def test_exploit_needs_no_prior() -> None:
    view, labels = one_view(4)
    blind = replace(view, known=Known(classes=4))
    for spec in (f"exploit({QUICK})", f"exploit({QUICK}, prior=uniform)"):
        assert clustering_accuracy(attacks.get(spec).clusters(blind, seeded()), labels) > 0.9


@pytest.mark.parametrize("off", ["lambda_ce=0", "lambda_p=0", "lambda_ce=0, lambda_p=0"])
def test_a_regulariser_can_be_left_out(off: str) -> None:
    view, labels = one_view(4)
    found = attacks.get(f"exploit({QUICK}, {off})").clusters(view, seeded())
    assert clustering_accuracy(found, labels) > 0.4  # chance is about 0.28


def test_unsplit_and_exploit_differ_as_published() -> None:
    assert accuracy("unsplit(epochs=5)", 4) < accuracy(f"exploit({QUICK})", 4) - 0.1


def test_completion_learns_from_four_labels_of_each_class() -> None:
    view, labels = one_view(4)
    rows = torch.cat([(labels == c).nonzero().flatten()[:4] for c in range(4)])
    known = Known(classes=4, labelled=(rows, labels[rows]))
    probs = Completion(epochs=20).probabilities(replace(view, known=known), seeded())
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(len(labels)).double())
    others = torch.ones(len(labels), dtype=torch.bool)
    others[rows] = False
    assert (probs.argmax(dim=1) == labels)[others].double().mean() > 0.8


# --- which trial is believed ----------------------------------------------------------------------


def test_the_margin_prefers_a_replay_that_explains_held_out_rows() -> None:
    """Ordered by the rule, replays are ordered by accuracy; by the gradient loss they are not."""
    from tacit.attack.learned._gradient_replay import ReplayData, Settings, replay
    from tacit.attack.learned._surrogate import Rows, RowTransform, unit

    view, labels = one_view(4)
    rows = Rows(view.embeddings.flatten(1), unit(view.grads.flatten(1)))
    transform, mine = RowTransform.fit(rows), torch.arange(600)
    data = ReplayData(
        rows=transform(rows[mine]),
        group=mine,
        prior=torch.full((4,), 0.25),
        start=None,
        hidden=(32, 16),
    )
    held = transform(rows[torch.arange(600, 800)])
    right, rule = [], []
    for ce, p in ((3.0, 10.0), (0.0, 0.0), (0.0, 10.0), (3.0, 0.0)):
        settings = Settings(lambda_ce=ce, lambda_p=p, epochs=25)
        found = replay(data, settings, rng=seeded(1))
        right.append(clustering_accuracy(found.costs(held).argmin(dim=1), labels[600:]))
        rule.append(held_out_margin(found, held))
    assert right[int(np.argmax(rule))] > max(right) - 0.03


def test_trials_are_searched_and_may_run_in_processes() -> None:
    view, labels = one_view(4)
    few = "trials=2, epochs=6, examples=200"
    alone = attacks.get(f"exploit({few})").clusters(view, seeded())
    again = attacks.get(f"exploit({few})").clusters(view, seeded())
    assert torch.equal(alone, again)
    for rule in ("gradient", "objective"):
        found = attacks.get(f"exploit({few}, choose={rule}, ranges=paper)").clusters(view, seeded())
        assert found.shape == labels.shape


# --- over a tape ----------------------------------------------------------------------------------


def test_every_epoch_is_fitted_and_groups_keep_their_numbers() -> None:
    stream = attacks.get(f"exploit({QUICK})").streaming(seeded())
    truth = torch.zeros(800, dtype=torch.int64)
    assert len(stream.result().clusters) == 0
    for view, labels in split_training(4):
        truth[view.ids] = labels
        if view.epoch == 4:
            stream.add(view)
    before = stream.result()
    for view, _ in split_training(4):
        if view.epoch == 5:
            stream.add(view)
    last = stream.result()
    assert torch.equal(before.ids, last.ids)
    assert (before.clusters == last.clusters).double().mean() > 0.9
    assert clustering_accuracy(last.clusters, truth[last.ids]) > 0.95
    assert not stream.late


@pytest.mark.slow
def test_memory_averages_out_the_noise_of_many_releases() -> None:
    """The same rows released eight times, each time under noise as large as the gradients.

    The share of 800 rows that is right has a standard error of 0.013 at 0.84, the mean difference
    of three draws one of 0.011 at most; the gain is 0.045.
    """
    view, labels = one_view(2)
    length = view.grads.flatten(1).norm(dim=1).median()
    gains = []
    for seed in (3, 4, 5):
        rng, right = seeded(seed), []
        for spec in (f"exploit({QUICK})", f"exploit({QUICK}, memory=true)"):
            stream = attacks.get(spec).streaming(seeded())
            for epoch in range(8):
                noise = torch.randn(view.grads.shape, generator=rng) * length / 2
                stream.add(replace(view, grads=view.grads + noise, epoch=epoch))
            found = stream.result()
            right.append(clustering_accuracy(found.clusters, _by_id(view, labels)[found.ids]))
        once, all_of_them = right
        gains.append(all_of_them - once)
    assert sum(gains) > 0
    assert attacks.get("exploit(memory=true)").adds_up
    assert not attacks.get("exploit").adds_up


def _by_id(view: View, labels: Tensor) -> Tensor:
    truth = torch.zeros(800, dtype=torch.int64)
    truth[view.ids] = labels
    return truth


def test_a_time_limit_holds_and_is_reported() -> None:
    stream = Exploit(epochs=100_000, seconds=0.3).streaming(seeded())
    for view, _ in split_training(4):
        if view.epoch == 5:
            stream.add(view)
    stream.result()  # without the budget it would go on for hours
    assert stream.late


def tape_of(classes: int, **drop: bool) -> tuple[ColumnTape, np.ndarray]:
    parts = split_training(classes)
    columns = {
        "grads": torch.cat([v.grads for v, _ in parts]).numpy(),
        "embeddings": torch.cat([v.embeddings for v, _ in parts]).numpy(),
        "ids": torch.cat([v.ids for v, _ in parts]).numpy(),
        "epoch": np.concatenate([np.full(len(v.ids), v.epoch) for v, _ in parts]),
    }
    kept = {name: value for name, value in columns.items() if not drop.get(name)}
    return ColumnTape.of(kept), torch.cat([y for _, y in parts]).numpy()


@pytest.mark.slow
def test_an_audit_runs_learned_attacks_within_its_time() -> None:
    tape, labels = tape_of(4)
    wanted = [f"exploit({QUICK})", "unsplit(epochs=2)", "completion(epochs=3)"]
    result = run_audit(tape, labels, wanted, seconds=60)
    rows = {row["attack"].split("(")[0]: row for row in result.table}
    assert rows["exploit"]["clustering_accuracy"] > 0.9
    assert rows["exploit"]["state"] == "leaks"
    points = result.record["epochs"][str(attacks.get(wanted[0]))]
    assert [point["epoch"] for point in points] == list(range(6))
    assert all(0 < point["clustering_accuracy"] <= 1 for point in points)
    short = run_audit(tape, labels, ["exploit(epochs=100000)"], seconds=0.5)
    assert "stopped when its time was up" in short.table[0]["verdict"]


def test_an_audit_without_embeddings_says_what_is_missing() -> None:
    tape, labels = tape_of(4, embeddings=True)
    for spec in ("exploit", "unsplit", "completion"):
        with pytest.raises(KnowledgeError, match=f"{spec}: the tape has no embeddings"):
            run_audit(tape, labels, [spec])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (Known(classes=3, prior=torch.full((4,), 0.25)), "one share for each of 3 classes"),
        (Known(classes=1), "classes must be 2 or more, got 1"),
        (Known(prior=torch.tensor([1.0])), r"got shape \(1,\)"),
        (Known(prior=torch.tensor([1.0, 0.0])), "positive shares"),
    ],
)
def test_a_prior_that_does_not_match_is_refused(known: Known, words: str) -> None:
    view, _ = one_view(4)
    with pytest.raises(InputError, match=words):
        attacks.get(f"exploit({QUICK})").clusters(replace(view, known=known), seeded())


def test_gradients_of_another_cut_are_refused() -> None:
    view, _ = one_view(4)
    for attack in (Exploit(), Unsplit()):
        with pytest.raises(InputError, match="12 wide like grads, got 5: record both"):
            attack.clusters(replace(view, embeddings=torch.ones(800, 5)), seeded())
        with pytest.raises(KnowledgeError, match="needs embeddings"):
            attack.clusters(replace(view, embeddings=None), seeded())
        stream = attack.streaming(seeded())
        stream.add(view)
        with pytest.raises(InputError, match="must stay 12 wide, got 2: attack each cut"):
            stream.add(
                View(grads=torch.ones(3, 2), embeddings=torch.ones(3, 2), ids=torch.arange(3))
            )


def test_too_few_labels_are_refused() -> None:
    view, labels = one_view(4)
    rows = torch.arange(100)[labels[:100] != 3]
    some = replace(view, known=Known(classes=4, labelled=(rows, labels[rows])))
    with pytest.raises(KnowledgeError, match="4 rows of each class, got 0 of class 3"):
        Completion().probabilities(some, seeded())
    with pytest.raises(KnowledgeError, match="call its `probabilities`"):
        Completion(labelled=1, epochs=1)(
            replace(view, known=Known(labelled=(torch.arange(100), labels[:100]))), seeded()
        )


@pytest.mark.parametrize(
    "spec",
    [
        "exploit(trials=-1)",
        "exploit(epochs=0)",
        "exploit(seconds=0)",
        "exploit(lambda_p=-1)",
        "unsplit(epochs=0)",
        "completion(labelled=0)",
        "completion(seconds=0)",
    ],
)
def test_parameters_outside_their_range_are_refused(spec: str) -> None:
    with pytest.raises(ParameterError, match=spec.split("(", 1)[0]):
        attacks.get(spec)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(SpecError, match=r"cold \| kmeans"):
        attacks.get("exploit(start=warm)")
    with pytest.raises(ParameterError, match="choose must be one of"):
        Exploit(choose="luck")
