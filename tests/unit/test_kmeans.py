"""K-means: groups of one view and of many epochs, by embeddings, directions or both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attack_examples import seeded
from tacit import attack as attacks
from tacit.attack import KMeans, Scored, StreamingAttack, clustering
from tacit.errors import InputError, KnowledgeError, ParameterError, SpecError
from tacit.measure import auc, clustering_accuracy, leak_auc, null_band
from tacit.testing import low_rank_cut
from tacit.testing.attack_contract import AttackContract
from tacit.types import Known, View

BY = ["embedding", "direction", "both"]


def blobs(labels: Tensor, *, width: int = 6, apart: float = 8.0, seed: int = 0) -> Tensor:
    """One round cloud per class; the centres have nothing to do with the order of the classes."""
    rng = seeded(seed)
    centres = apart * torch.linalg.qr(torch.randn(width, 3, generator=rng)).Q.T
    return centres[labels] + torch.randn(len(labels), width, generator=rng)


def looks(rows: Tensor, ids: Tensor | None = None, *, epoch: int = 0, classes: int = 3) -> View:
    """A view whose gradients and embeddings are the same rows."""
    ids = torch.arange(len(rows)) if ids is None else ids
    return View(grads=rows, embeddings=rows, ids=ids, epoch=epoch, known=Known(classes=classes))


def shown(labels: Tensor, *, epochs: int = 1, batch: int = 200) -> Iterator[View]:
    """Epochs of shuffled batches, in clouds that jump about from epoch to epoch."""
    rng = seeded()
    for epoch in range(epochs):
        rows = blobs(labels, seed=epoch)
        for ids in torch.randperm(len(labels), generator=rng).split(batch):
            yield looks(rows[ids], ids, epoch=epoch)


def stream_of(by: str = "embedding") -> StreamingAttack:
    return KMeans(by=by).streaming(seeded())


def streamed(views: Iterable[View], by: str = "embedding") -> Scored:
    stream = stream_of(by)
    for view in views:
        stream.add(view)
    return stream.result()


def three_classes(rows: int = 600) -> Tensor:
    return torch.tensor([0, 0, 0, 1, 2, 2])[torch.arange(rows) % 6]


def accuracy(found: Scored, labels: Tensor) -> float:
    return clustering_accuracy(found.clusters, labels[found.ids])


# --- one view -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
def test_three_classes_are_told_apart(by: str) -> None:
    labels = three_classes()
    view = next(shown(labels, batch=len(labels)))
    truth, attack = labels[view.ids], KMeans(by=by)
    clusters = attack.clusters(view, seeded())
    assert clusters.dtype == torch.int64
    assert clustering_accuracy(clusters, truth) > 0.99
    # Numbered by size: classes 0, 2 and 1 have 300, 200 and 100 rows.
    assert torch.bincount(clusters).tolist() == pytest.approx([300, 200, 100], abs=3)
    assert auc(attack(view, seeded()), truth == 1) > 0.999


@pytest.mark.parametrize("share", [0.02, 0.25, 0.7])
def test_directions_of_unprotected_gradients_form_two_clusters(share: float) -> None:
    cut = low_rank_cut(1024, 128, positive=share, seed=3)
    threads = torch.get_num_threads()
    scores = KMeans(by="direction")(View(grads=cut.grads), seeded())
    assert auc(scores, cut.labels == int(share < 0.5)) > 0.999
    assert torch.get_num_threads() == threads


def test_lengths_count_by_embedding_and_not_by_direction() -> None:
    labels = torch.arange(400) % 4 == 0
    rows = torch.randn(400, 8, generator=seeded()) * (1 + 99 * labels.unsqueeze(1))
    low, high = null_band(labels, level=1 - 1e-6)
    view = View(
        grads=rows, embeddings=labels.unsqueeze(1) * 100 + torch.rand(400, 3, generator=seeded())
    )
    assert low <= leak_auc(KMeans(by="direction")(view, seeded()), labels) <= high
    assert auc(KMeans()(view, seeded()), labels) == 1.0


def test_both_finds_what_gradients_or_embeddings_show() -> None:
    """Noise in one half, clouds in the other; columns of any scale count alike."""
    labels = torch.arange(600) % 3 == 0
    noise, clouds = torch.randn(600, 6, generator=seeded(1)), blobs(labels.long(), seed=2)
    scale = 10.0 ** torch.arange(-3, 3)
    for grads, embeddings in ((clouds - clouds.mean(dim=0), noise), (noise, clouds * scale)):
        view = View(grads=grads, embeddings=embeddings)
        assert leak_auc(KMeans(by="both")(view, seeded()), labels) > 0.95


def test_scores_are_the_difference_of_distances() -> None:
    rows = torch.tensor([0.0, 1.0, 2.0, 10.0, 12.0])
    expected = (rows - 1).abs() - (rows - 11).abs()
    torch.testing.assert_close(KMeans()(looks(rows, classes=2), seeded()), expected.double())
    # The smallest group is one of two with one row: the one farther out.
    expected = torch.minimum((rows - 1).abs(), (rows - 10).abs()) - (rows - 12).abs()
    torch.testing.assert_close(KMeans()(looks(rows), seeded()), expected.double())


@pytest.mark.parametrize("by", BY)
def test_finds_nothing_in_noise(by: str) -> None:
    rng, labels = seeded(5), torch.arange(2000) % 4 == 0
    grads, embeddings = torch.randn(2, 2000, 8, generator=rng)
    view = View(grads=grads, embeddings=embeddings)
    found = leak_auc(KMeans(by=by)(view, rng), labels)
    assert found <= null_band(labels, level=1 - 1e-6).high


@pytest.mark.parametrize("by", ["direction", "both"])
@pytest.mark.parametrize("check", AttackContract.checks())
def test_contract(by: str, check: str) -> None:
    getattr(AttackContract(KMeans(by=by)), check)()


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    "rows",
    [
        torch.ones(1, 3),
        torch.eye(3)[:2],
        torch.full((20, 3), 0.1),
        torch.zeros(20, 3),
        torch.eye(3)[torch.arange(20) % 2],
        0.1 + 1e-17 * torch.arange(60, dtype=torch.float64).reshape(20, 3),
        torch.eye(20, 3),
        torch.tensor([1e300, 1e-300], dtype=torch.float64).repeat(10, 3).T.reshape(20, 3),
        1.0 + torch.finfo(torch.float64).eps * torch.eye(20, 3, dtype=torch.float64),
    ],
    ids=lambda rows: "x".join(map(str, rows.shape)) + f" {float(rows.flatten()[0]):g}",
)
def test_degenerate_rows_get_finite_scores_and_no_warning(by: str, rows: Tensor) -> None:
    view, attack = looks(rows, classes=5), KMeans(by=by)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores, clusters = attack(view, seeded()), attack.clusters(view, seeded())
        found = streamed([view, view], by)
    same = rows.unique(dim=0, return_inverse=True)[1]
    for group in range(int(same.max()) + 1):
        assert scores[same == group].unique().numel() == 1
        assert clusters[same == group].unique().numel() == 1
    assert int(clusters.max()) < min(5, len(rows))
    assert found.scores.isfinite().all()


# --- many epochs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY)
def test_every_epoch_is_clustered_by_itself(by: str) -> None:
    """Clouds jump about, and every epoch has ids of its own, so that all stay in the result."""
    labels, stream = three_classes(1800), stream_of(by)
    for view in shown(labels, epochs=3):
        stream.add(looks(view.grads, view.ids + 1800 * (view.epoch or 0), epoch=view.epoch or 0))
    found = stream.result()
    assert len(found.ids) == 5400
    for epoch in range(3):
        mine = found.ids // 1800 == epoch
        assert clustering_accuracy(found.clusters[mine], labels[found.ids[mine] % 1800]) > 0.99


def test_groups_that_drift_keep_their_numbers() -> None:
    labels, stream, numbers = three_classes(1200), stream_of(), []
    for epoch in range(6):
        ids = torch.arange(1200) + 1200 * epoch
        stream.add(looks(blobs(labels) + 2.0 * epoch, ids, epoch=epoch))
        numbers.append(stream.result().clusters[-1200:])
    assert all(torch.equal(number, numbers[0]) for number in numbers)


def test_the_last_epoch_counts() -> None:
    """Nothing in the first epoch, everything in the second, which shows only half the examples."""
    labels, rng = three_classes(1200), seeded(1)
    noise, clouds = torch.randn(1200, 6, generator=rng), blobs(labels, seed=2)
    stream = stream_of()
    stream.add(looks(noise))
    first = stream.result()
    assert accuracy(first, labels) < 0.6
    late = torch.randperm(1200, generator=rng)[:600]
    stream.add(looks(clouds[late], late, epoch=1))
    second = stream.result()
    assert torch.equal(second.ids, torch.arange(1200))
    assert clustering_accuracy(second.clusters[late], labels[late]) > 0.99
    early = ~torch.isin(second.ids, late)
    assert torch.equal(second.clusters[early], first.clusters[early])
    assert torch.equal(second.scores[early], first.scores[early])


def test_a_bad_first_epoch_does_not_spoil_later_ones() -> None:
    """Ten classes that come apart: from the first epoch's centres alone, it would stay at 0.87."""
    rng, stream = seeded(1), stream_of()
    labels = torch.randint(10, (1000,), generator=rng)
    centres = torch.randn(10, 32, generator=rng)
    for epoch in range(3):
        rows = (0.1 + 0.8 * epoch) * centres[labels] + torch.randn(1000, 32, generator=rng)
        stream.add(looks(rows, epoch=epoch, classes=10))
    assert accuracy(stream.result(), labels) > 0.99


def test_rows_beyond_the_sample_are_assigned_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, sizes, run = three_classes(3000), [], clustering._k_means
    monkeypatch.setattr(clustering, "_SAMPLE", 500)
    monkeypatch.setattr(
        clustering, "_k_means", lambda *a, **k: sizes.append(len(a[0])) or run(*a, **k)
    )
    views, stream = list(shown(labels)), stream_of()
    for view in views[:2]:
        stream.add(view)
    assert accuracy(stream.result(), labels) > 0.99
    for view in views[2:]:
        stream.add(view)
    assert accuracy(stream.result(), labels) > 0.99
    assert sizes == [400, 600]


def test_an_intermediate_result_does_not_change_the_final_one() -> None:
    quiet, asked = stream_of(), stream_of()
    for view in shown(three_classes(), epochs=2):
        quiet.add(view)
        asked.add(view)
        asked.result()
    assert torch.equal(quiet.result().scores, asked.result().scores)
    assert torch.equal(quiet.result().clusters, asked.result().clusters)


def test_views_without_an_epoch_are_one_epoch() -> None:
    views = (replace(view, epoch=None) for view in shown(three_classes()))
    assert accuracy(streamed(views), three_classes()) > 0.99


def test_embeddings_may_grow_by_a_factor_of_a_million() -> None:
    labels, stream = three_classes(), stream_of()
    for epoch, scale in enumerate((1e-100, 1.0, 1e6)):
        stream.add(looks(scale * blobs(labels).double(), epoch=epoch))
        assert accuracy(stream.result(), labels) > 0.99


# --- what is refused ------------------------------------------------------------------------------


def test_specs() -> None:
    assert attacks.get("kmeans") == attacks.get("kmeans(by=embedding)") == KMeans()
    assert str(KMeans(by="both")) == "kmeans(by=both)"
    assert KMeans.needs == KMeans(by="both").needs == frozenset({"embeddings"})
    assert KMeans(by="direction").needs == frozenset()
    with pytest.raises(SpecError, match=r"embedding \| direction \| both"):
        attacks.get("kmeans(by=norm)")
    with pytest.raises(ParameterError, match="by must be one of"):
        KMeans(by="norm")


@pytest.mark.parametrize("by", ["embedding", "both"])
def test_missing_embeddings_are_refused_by_name(by: str) -> None:
    view, attack = View(grads=torch.ones(4, 2), ids=torch.arange(4)), KMeans(by=by)
    for call in (attack, attack.clusters, lambda view, _rng: streamed([view], by)):
        with pytest.raises(KnowledgeError, match="needs embeddings"):
            call(view, seeded())


@pytest.mark.parametrize("count", [1, 0, -2])
def test_fewer_than_two_classes_are_refused(count: int) -> None:
    view = looks(torch.ones(4, 2), classes=count)
    for call in (KMeans(), KMeans().clusters, lambda view, _rng: streamed([view])):
        with pytest.raises(InputError, match=rf"classes must be 2 or more, got {count}"):
            call(view, seeded())


def test_wrong_views_are_refused_and_change_no_state() -> None:
    stream = stream_of("both")
    assert len(stream.result().ids) == len(stream.result().clusters) == 0
    with pytest.raises(InputError, match="by their id"):
        stream.add(replace(looks(torch.ones(4, 2)), ids=None))
    with pytest.raises(InputError, match="embeddings must be finite"):
        stream.add(replace(looks(torch.ones(4)), embeddings=torch.full((4,), math.nan)))
    assert len(stream.result().ids) == 0
    stream.add(looks(torch.eye(4), classes=2))
    for changed in ({"embeddings": torch.ones(4, 3)}, {"grads": torch.ones(4, 3)}):
        view = replace(looks(torch.eye(4), torch.arange(4) + 9, epoch=1, classes=2), **changed)
        with pytest.raises(InputError, match=r"must stay \(2, 4, 4\).*attack each cut by itself"):
            stream.add(view)
    assert stream.result().ids.tolist() == [0, 1, 2, 3]
