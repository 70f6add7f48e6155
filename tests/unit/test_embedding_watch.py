"""Which embeddings the label party reports as unusual, and that trained bottom models are not."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit import Guard
from tacit.errors import PeerError
from tacit.objective import get as get_objective
from tacit.rng import Key
from tacit.training import Embedding, LabelParty, adam
from tacit.training.embedding_watch import (
    FEWEST,
    EmbeddingWatch,
    SampleStatistics,
    repeated,
    statistics_of,
    unusual,
)

ROWS, WIDTH = 256, 64


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def prototypes(count, *, jitter=0.0, seed=0, rows=ROWS, width=WIDTH):
    draw = rng(seed)
    centres = torch.randn(count, width, generator=draw)
    which = torch.randint(count, (rows,), generator=draw)
    return centres[which] + jitter * torch.randn(rows, width, generator=draw)


def honest(seed=0, *, rows=ROWS, width=WIDTH):
    """Embeddings of rows that differ: a few strong directions and many weak ones."""
    draw = rng(seed)
    scales = 0.8 ** torch.arange(width)
    return torch.randn(rows, width, generator=draw) * scales


def watched(*batches, **settings):
    watch = EmbeddingWatch(key=Key.from_seed(0), **settings)
    for step, values in enumerate(batches):
        watch([Embedding(step=step, values=values)])
    return watch


def bottom(seed, *, inputs, width, layers):
    """A ReLU net of random weights, with biases so that some units are dead."""
    draw, parts, size = rng(seed), [], inputs
    for _ in range(layers):
        layer = nn.Linear(size, width)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(width, size, generator=draw) * (2 / size) ** 0.5)
            layer.bias.copy_(torch.randn(width, generator=draw) * 0.5)
        parts += [layer, nn.ReLU()]
        size = width
    return nn.Sequential(*parts)


def table(seed, kind, *, rows, columns=12):
    draw = rng(seed)
    if kind == "numbers":
        return torch.randn(rows, columns, generator=draw)
    if kind == "heavy":
        return torch.exp(1.5 * torch.randn(rows, columns, generator=draw))
    if kind == "counts":  # mostly zero, with rows that repeat, as words in short mails
        return torch.poisson(torch.full((rows, columns), 0.3), generator=draw)
    codes = torch.randint(6, (rows, 5), generator=draw)
    return nn.functional.one_hot(codes, 6).flatten(1).float()


@pytest.mark.parametrize("kind", ["numbers", "heavy", "counts", "categories"])
@pytest.mark.parametrize(("width", "layers"), [(1, 1), (8, 2), (32, 1), (64, 3), (128, 2)])
def test_honest_nets_are_not_warned_of(kind, width, layers):
    for seed in range(15):
        first = table(seed, kind, rows=ROWS)
        net = bottom(seed, inputs=first.shape[1], width=width, layers=layers)
        watch = EmbeddingWatch(key=Key.from_seed(seed))
        for step in range(6):  # the weights change from step to step
            with torch.no_grad():
                values = net(table(100 * seed + step, kind, rows=ROWS))
                for weight in net.parameters():
                    moved = torch.randn(weight.shape, generator=rng(seed + step))
                    weight.add_(moved, alpha=0.02 * float(weight.std(correction=0)))
            watch([Embedding(step=step, values=values)])
        assert watch.warnings == {"odd_embeddings": 0}, (seed, watch.last)


@pytest.mark.parametrize("count", [2, 3, 8, 32, 100])
def test_repeated_prototypes_are_odd(count):
    for seed in range(20):
        assert watched(prototypes(count, seed=seed)).warnings == {
            "odd_embeddings": 1,
            "odd_embeddings_repeats": 1,
            **({"odd_embeddings_rank": 1} if count <= 3 else {}),
        }


@pytest.mark.parametrize("count", [4, 8, 16])
@pytest.mark.parametrize("jitter", [1e-6, 1e-3, 0.1, 0.2])
def test_tight_groups_are_odd(count, jitter):
    for seed in range(20):
        found = watched(prototypes(count, jitter=jitter, seed=seed)).warnings
        assert found["odd_embeddings_repeats"] == 1


def test_signed_zeros_do_not_make_rows_differ():
    values = torch.relu(prototypes(8))
    values[::2] *= -1.0  # 0 becomes -0
    values[::2] = values[::2].abs() * torch.where(values[::2] == 0, -1.0, 1.0)
    assert watched(values).warnings["odd_embeddings_repeats"] == 1


def test_one_frequent_vector_is_not_odd():
    """Dead units and default values: many rows the same, and the others as they are."""
    for share in (0.1, 0.5, 0.9):
        values = honest()
        values[: int(share * ROWS)] = 0.0
        assert (
            watched(values[torch.randperm(ROWS, generator=rng())]).warnings["odd_embeddings"] == 0
        )
        near = honest()
        near[: int(share * ROWS)] *= 1e-4
        assert watched(near[torch.randperm(ROWS, generator=rng())]).warnings["odd_embeddings"] == 0


def test_two_directions_are_odd_and_eight_are_not():
    def of_rank(rank):
        return torch.randn(ROWS, rank, generator=rng(1)) @ torch.randn(
            rank, WIDTH, generator=rng(2)
        )

    assert watched(of_rank(1)).warnings["odd_embeddings_rank"] == 1
    assert watched(of_rank(2)).warnings["odd_embeddings_rank"] == 1
    assert watched(of_rank(8)).warnings == {"odd_embeddings": 0}


def test_a_rank_that_falls_is_odd():
    values = honest(1)
    flat = values @ torch.linalg.svd(values).Vh[:4].T @ torch.linalg.svd(values).Vh[:4]
    assert watched(flat).warnings == {"odd_embeddings": 0}
    assert watched(honest(), flat).warnings["odd_embeddings_rank"] == 1


@pytest.mark.parametrize(
    "changed",
    [
        lambda values: values + 1e3,
        lambda values: values * 1e3,
        lambda values: values * 1e-3,
        lambda values: values.flip(1),
    ],
    ids=["mean", "larger", "smaller", "directions"],
)
def test_a_sudden_change_is_odd_once(changed):
    later = [changed(honest(seed)) for seed in (2, 3)]
    found = watched(honest(0), honest(1), *later).warnings
    assert found == {"odd_embeddings": 1, "odd_embeddings_drift": 1}


def test_prototypes_that_change_with_every_step_are_drift_as_well():
    batches = (prototypes(8, jitter=0.4, seed=seed, width=128) for seed in range(10))
    found = watched(*batches).warnings
    assert found["odd_embeddings_drift"] == 9


def test_each_feature_party_has_a_picture_of_its_own():
    watch = EmbeddingWatch(key=Key.from_seed(0))
    for step in range(3):
        one, other = honest(step), honest(step + 9).flip(1) * 1e3
        watch([Embedding(step=step, values=one), Embedding(step=step, values=other)])
    assert watch.warnings == {"odd_embeddings": 0}
    watch([Embedding(step=3, values=honest(3)), Embedding(step=3, values=prototypes(8))])
    assert watch.warnings["odd_embeddings"] == 1


def test_the_log_hears_of_each_kind_once():
    lines = []
    watch = watched(*[prototypes(8)] * 5, log=lines.append)
    assert watch.warnings["odd_embeddings"] == 5
    (line,) = lines
    assert "step 0" in line
    assert "of the rows repeat others" in line
    assert "bounds about gradients do not hold" in line
    watch([Embedding(step=5, values=honest() * 1e6)])
    assert len(lines) == 2
    assert "drift" in lines[1]


def test_a_refused_batch_leaves_the_picture_as_it_was():
    watch = watched(honest(0), on_odd="refuse")
    for _ in range(2):
        with pytest.raises(PeerError, match="step 1 are unlike those of any bottom model"):
            watch([Embedding(step=1, values=prototypes(8) * 1e4)])
    watch([Embedding(step=1, values=honest(1))])
    assert watch.warnings["odd_embeddings"] == 2


def test_which_rows_are_looked_at_is_secret():
    """Tight groups in all rows but those that one key draws are found by another."""
    values = prototypes(8, jitter=0.01)
    shown = EmbeddingWatch(key=Key.from_seed(1))
    rows = shown._sample(torch.arange(ROWS).float().unsqueeze(1), step=0, party=0)
    values[torch.from_numpy(rows[:, 0]).long()] = honest()[: len(rows)]
    shown([Embedding(step=0, values=values)])
    assert shown.warnings == {"odd_embeddings": 0}
    assert watched(values).warnings["odd_embeddings"] == 1


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(ROWS, WIDTH),
        torch.full((ROWS, WIDTH), math.nan),
        torch.randn(FEWEST - 1, WIDTH),
        torch.randn(ROWS),
        torch.randn(ROWS, 2, 3, 4),
        torch.full((ROWS, WIDTH), 3e38),
        torch.randn(ROWS, WIDTH, dtype=torch.float64),
        torch.randn(ROWS, WIDTH).bfloat16(),
    ],
)
def test_any_batch_can_be_looked_at(values):
    assert watched(values, values).warnings["odd_embeddings"] == 0


def test_counts_go_on_from_a_checkpoint():
    watch = watched(prototypes(8))
    later = EmbeddingWatch()
    later.begin(watch.states())
    assert later.warnings == watch.warnings
    later.begin(None)
    assert later.warnings == watch.warnings


def test_repeated_counts_all_but_the_most_frequent():
    assert repeated(np.arange(8, dtype=np.float32)) == 0
    assert repeated(np.zeros(8, dtype=np.float32)) == 0
    assert repeated(np.array([1, 1, 2, 2], dtype=np.float32)) == 0.25


def test_a_look_knows_no_labels():
    found, _ = statistics_of(honest().numpy())
    assert not unusual(found)
    assert {*SampleStatistics.__dataclass_fields__} == {
        "equal",
        "gap",
        "flat",
        "fall",
        "shift",
        "change",
        "overlap",
    }


def test_a_refused_step_trains_and_charges_nothing():
    labels = (torch.arange(ROWS) % 4 == 0).long()
    top = nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0))
    guard = Guard("marvell(s=4)", seed=0)
    party = LabelParty(
        top,
        labels,
        guard=guard,
        objective=get_objective("bce"),
        optimizer=adam(top, 1e-2),
        watch=EmbeddingWatch(on_odd="refuse"),
    )
    before = [weight.clone() for weight in top.parameters()]
    with pytest.raises(PeerError):
        party.step(torch.arange(ROWS), [Embedding(step=0, values=prototypes(8))])
    assert guard.last_certificate is None
    party.step(torch.arange(ROWS), [Embedding(step=0, values=honest())])
    assert guard.last_certificate.assumption.startswith("for honest batches: ")
    assert all(torch.equal(a, b) for a, b in zip(before, top.parameters(), strict=True))
    party.update()
    assert not all(torch.equal(a, b) for a, b in zip(before, top.parameters(), strict=True))
