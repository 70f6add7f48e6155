"""The two sample files: what they share, and that they can be learned from."""

import numpy as np
import pytest

from tacit.data import ads_rows, load_party, write_party_sample
from tacit.errors import InputError


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def test_the_two_files_overlap_by_the_given_share(tmp_path):
    paths = write_party_sample(tmp_path / "a", rows=1000, overlap=0.8)
    mine, theirs = (load_party(p, role=r) for p, r in zip(paths, ("feature", "label"), strict=True))
    common, here, there = np.intersect1d(mine.ids, theirs.ids, return_indices=True)
    assert (len(mine), len(theirs), len(common)) == (900, 900, 800)
    assert (mine.inputs[0], len(mine.cardinalities), theirs.inputs[0]) == (7, 11, 1)
    assert (theirs.categorical_names, theirs.classes) == (("segment",), 2)
    # neither the order nor the id of a row tells anything about the other file or the label
    assert abs(np.corrcoef(here, there)[0, 1]) < 0.15
    assert abs(np.corrcoef(theirs.labels[there], np.arange(800))[0, 1]) < 0.15


def test_the_features_of_an_id_belong_to_its_label(tmp_path):
    features, labels = write_party_sample(tmp_path, rows=100, seed=3, overlap=1.0)
    mine, theirs = load_party(features, role="feature"), load_party(labels, role="label")
    (rows,) = ads_rows(100, seed=3)
    _, here, there = np.intersect1d(mine.ids, theirs.ids, return_indices=True)
    price = np.round(rows.numeric[:, 0], 4)
    assert len(here) == len(np.unique(price)) == 100
    rank = np.argsort(np.argsort(mine.numeric[here, 0]))
    assert np.array_equal(rows.labels[np.argsort(price)][rank], theirs.labels[there])


def test_a_seed_gives_the_same_files_and_nothing_is_overwritten(tmp_path):
    first = write_party_sample(tmp_path / "a", rows=50, seed=1)
    again = write_party_sample(tmp_path / "b", rows=50, seed=1)
    other = write_party_sample(tmp_path / "c", rows=50, seed=2)
    for a, b, c in zip(first, again, other, strict=True):
        assert a.read_bytes() == b.read_bytes() != c.read_bytes()
    with pytest.raises(InputError, match=r"features.csv exists already: remove it or"):
        write_party_sample(tmp_path / "a", rows=50)
    with pytest.raises(InputError, match="at least 20 rows, got 2"):
        write_party_sample(tmp_path / "d", rows=2)
    with pytest.raises(InputError, match=r"above 0 and at most 1, got 1.5"):
        write_party_sample(tmp_path / "d", overlap=1.5)
