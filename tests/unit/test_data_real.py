"""The real files, where TACIT_DATA names a directory that has them."""

import os
from pathlib import Path

import numpy as np
import pytest

from tacit.data import find, load, split

ROOT = os.environ.get("TACIT_DATA")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def needs(place):
    here = ROOT is not None and (Path(ROOT) / place).exists()
    return pytest.mark.skipif(not here, reason=f"TACIT_DATA names no directory with {place}")


CRITEO = "criteo/train_sample_137139.txt.gz"
AVAZU = "avazu/train_sample_20000.csv.gz"
CASES = [
    pytest.param("criteo", 137_139, 0.2568, 13, 26, marks=needs(CRITEO)),
    pytest.param("avazu", 43_256, 0.1694, 0, 22, marks=needs(AVAZU)),
    pytest.param("credit", 30_000, 0.2212, 23, 0, marks=needs("UCI_Credit_Card.csv")),
    pytest.param("spambase", 4_601, 0.3940, 57, 0, marks=needs("spambase.data")),
    pytest.param("imdb", 50_000, 0.5, 500, 0, marks=needs("imdb/imdb_bow500.npz")),
]


@pytest.mark.parametrize(("name", "rows", "positives", "numeric", "categorical"), CASES)
def test_counts(name, rows, positives, numeric, categorical):
    table = load(name)
    assert len(table) == rows
    assert round(table.positives, 4) == positives
    assert table.numeric.shape == (rows, numeric)
    assert table.categorical.shape == (rows, categorical)
    codes = np.asarray(table.categorical)
    for column, size in zip(codes.T, table.cardinalities, strict=True):
        assert np.array_equal(np.unique(column), np.arange(size))
    assert np.isfinite(table.numeric).all()
    train, test = split(table, seed=0)
    assert len(test) == round(rows * table.test_fraction)
    assert len(train) + len(test) == rows


@needs(CRITEO)
def test_criteo_numbers_lie_between_zero_and_one():
    numeric = np.asarray(load("criteo").numeric)
    assert np.array_equal(numeric.min(axis=0), np.zeros(13))
    assert np.array_equal(numeric.max(axis=0), np.ones(13))


@needs(AVAZU)
def test_avazu_is_in_time_order_over_ten_days():
    table = load("avazu")
    assert (np.diff(table.day) >= 0).all()
    assert len(np.unique(table.day)) == 10
    assert table.cardinalities[0] == 24
    assert len(np.unique(table.ids)) == len(table)


@pytest.mark.slow
@needs("imdb/imdb_reviews.csv.xz")
@needs("imdb/imdb_bow500.npz")
def test_the_reviews_give_the_ready_matrix(tmp_path):
    (tmp_path / "imdb").mkdir()
    (ready,) = find("imdb")
    raw = ready.with_name("imdb_reviews.csv.xz")
    (tmp_path / "imdb" / raw.name).symlink_to(raw)
    ours, theirs = load("imdb", data_dir=tmp_path), load("imdb")
    assert ours.fixed_test.sum() == 25_000
    for part in ("numeric", "labels", "fixed_test"):
        assert np.array_equal(getattr(ours, part), getattr(theirs, part))


IMAGES = [
    pytest.param("mnist", (70_000, 10, 1, 28), [0.1307], [0.3081], marks=needs("mnist")),
    pytest.param(
        "fashion_mnist", (70_000, 10, 1, 28), [0.2860], [0.3530], marks=needs("fashion-mnist")
    ),
]


@pytest.mark.parametrize(("name", "facts", "mean", "spread"), IMAGES)
def test_images_have_their_published_mean_and_spread(name, facts, mean, spread):
    table = load(name)
    rows, classes, channels, side = facts
    assert (len(table), table.classes, table.image.shape) == (rows, classes, (channels, side, side))
    train, test = split(table, seed=0)
    assert (len(train), len(test)) == (60_000, 10_000)
    # Published of the training part; here of all 70,000 images.
    assert table.image.mean == pytest.approx(mean, abs=1e-3)
    assert table.image.spread == pytest.approx(spread, abs=1e-3)


@needs("cifar-10-batches-bin/data_batch_1.bin.gz")
def test_the_first_batch_of_cifar10_is_the_published_one():
    table = load("cifar10")
    first = np.asarray(table.labels)[~np.asarray(table.fixed_test)][:10_000]
    assert first[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    counts = [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert np.bincount(first).tolist() == counts


@needs("ham10000/ham10000_7017_32x32.npz")
def test_no_lesion_of_ham10000_is_on_both_sides():
    table = load("ham10000")
    assert (len(table), table.image.shape) == (7_017, (3, 84, 84))
    assert round(table.positives, 4) == 0.1008
    train, test = split(table, seed=0)
    assert not set(table.groups[train]) & set(table.groups[test])
    assert len(test) == pytest.approx(7_017 / 5, rel=0.05)
