import numpy as np
import pytest
import scipy.sparse
from pyarrow import parquet
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from tacit.data import CEILING, ads_rows, bayes_auc, load, split, write_ads_parquet
from tacit.errors import InputError, SpecError


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def auc_deviation(auc, labels):
    """Return the standard deviation of an AUC (Hanley and McNeil, 1982)."""
    up, down = labels.sum(), len(labels) - labels.sum()
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (up - 1) * (q1 - auc**2) + (down - 1) * (q2 - auc**2)
    return np.sqrt(spread / (up * down))


def gathered(rows, **more):
    blocks = list(ads_rows(rows, **more))
    return np.concatenate([b.probability for b in blocks]), np.concatenate(
        [b.labels for b in blocks]
    )


def test_the_seed_decides_everything():
    one, two, other = load("ads", rows=3000), load("ads", rows=3000), load("ads", rows=3000, seed=1)
    for part in ("numeric", "categorical", "labels"):
        assert np.array_equal(getattr(one, part), getattr(two, part))
        assert not np.array_equal(getattr(one, part), getattr(other, part))


def test_a_short_table_is_the_start_of_a_long_one():
    short, long = gathered(70_000), gathered(140_000)
    assert np.array_equal(short[0], long[0][:70_000])
    assert np.array_equal(short[1], long[1][:70_000])


@pytest.mark.parametrize("positive", [0.02, 0.1, 0.5])
def test_the_share_of_positives(positive):
    n = 200_000
    eta, labels = gathered(n, positive=positive)
    # The bias is fitted on 65,536 rows: its own scatter is added to that of the sample.
    assert labels.mean() == pytest.approx(eta.mean(), abs=5 * np.sqrt(0.25 / n))
    assert eta.mean() == pytest.approx(positive, abs=5 * eta.std() * np.sqrt(1 / n + 1 / 65_536))


def test_the_true_probability_has_the_stated_auc():
    eta, labels = gathered(200_000, seed=5)
    # The ceiling of a sample of features scatters less than an AUC of drawn labels.
    scatter = auc_deviation(CEILING, labels)
    assert bayes_auc(eta) == pytest.approx(CEILING, abs=4 * scatter)
    assert roc_auc_score(labels, eta) == pytest.approx(CEILING, abs=4 * scatter)


def test_labels_are_calibrated():
    eta, labels = gathered(200_000, seed=2)
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 1.0)):
        chosen = (eta >= low) & (eta < high)
        expected, scatter = eta[chosen].mean(), np.sqrt(0.25 / chosen.sum())
        assert labels[chosen].mean() == pytest.approx(expected, abs=4 * scatter)


def test_a_linear_model_stays_below_the_bayes_auc():
    table = load("ads", rows=30_000)
    train, test = split(table, seed=0)
    eta, _ = gathered(30_000)
    coder = OneHotEncoder(categories=[range(size) for size in table.cardinalities])
    features = scipy.sparse.hstack([table.numeric, coder.fit_transform(table.categorical)]).tocsr()
    model = LogisticRegression(max_iter=300, C=0.05).fit(features[train], table.labels[train])
    linear = roc_auc_score(table.labels[test], model.decision_function(features[test]))
    best = roc_auc_score(table.labels[test], eta[test])
    scatter = auc_deviation(best, table.labels[test])
    assert abs(best - CEILING) < 4 * scatter
    assert 0.5 + 4 * scatter < linear < best - 2 * scatter


def test_bayes_auc_is_the_sum_over_pairs():
    eta = np.round(np.random.default_rng(0).random(60), 1)
    above = (eta[:, None] > eta[None]) + (eta[:, None] == eta[None]) / 2
    weight = eta[:, None] * (1 - eta[None])
    assert bayes_auc(eta) == pytest.approx((weight * above).sum() / weight.sum())


def test_categories_are_skewed_and_below_their_cardinality():
    table = load("ads", rows=50_000)
    for column, size in zip(table.categorical.T, table.cardinalities, strict=True):
        counts = np.bincount(column, minlength=size)
        assert len(counts) == size
        assert counts[0] == counts.max() or size == 7
    assert table.day.tolist() == sorted(table.day)
    assert (table.day.min(), table.day.max()) == (0, 29)


def test_numbers_are_standardised():
    table = load("ads", rows=70_000)
    assert np.allclose(table.numeric.mean(axis=0, dtype=np.float64), 0.0, atol=1e-5)
    assert np.allclose(table.numeric.std(axis=0, dtype=np.float64), 1.0, atol=1e-5)


def test_a_parquet_file_loads_as_the_same_table(tmp_path):
    path = write_ads_parquet(tmp_path / "ads.parquet", 70_000, 3)
    read, made = load(str(path)), load("ads", rows=70_000, seed=3)
    assert parquet.ParquetFile(path).num_row_groups == 2
    assert np.allclose(read.numeric, made.numeric, atol=1e-5)
    for part in ("labels", "ids", "day"):
        assert np.array_equal(getattr(read, part), getattr(made, part))
    assert read.numeric_names == made.numeric_names
    assert read.categorical_names == made.categorical_names
    for ours, theirs in zip(read.categorical.T, made.categorical.T, strict=True):
        # Codes differ only by the values that never occur.
        assert np.array_equal(np.unique(theirs, return_inverse=True)[1], ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "at least 2 rows, got 1"),
        ({"rows": -5}, "at least 2 rows, got -5"),
        ({"positive": 0.0}, "between 0 and 1, got 0.0"),
        ({"positive": 1.5}, "between 0 and 1, got 1.5"),
        ({"seed": -1}, "whole number from 0, got -1"),
    ],
)
def test_impossible_tables_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        load("ads", **options)


def test_an_unknown_option_is_refused():
    with pytest.raises(SpecError, match="ads has no option 'positives': did you mean 'positive'"):
        load("ads", positives=0.2)
