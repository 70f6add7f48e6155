"""The defaults of a training: what they reach on an embedded table, and who does not take them."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from tacit import _config as defaults
from tacit import data
from tacit.cli.app import main
from tacit.cli.init import make_pair
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig, read_config
from tacit.experiment.run import run
from tacit.experiment.sweep_store import key_of
from tacit.papers import studies
from tacit.party.config import PartyConfig, read_party_config
from tacit.training.features import FrequentValues, TableReader

SEEDS = (0, 1, 2, 3)
ROWS = 12_000


def logistic_auc(seed):
    """What logistic regression reaches with the same rows: one-hot categories, plain numbers."""
    table = data.load("ads", rows=ROWS, seed=seed)
    train, test = data.split(table, seed=seed)
    truth = np.asarray(table.labels)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoder.fit(np.asarray(table.categorical)[train])
    seen, unseen = (
        np.hstack([np.asarray(table.numeric)[rows], encoder.transform(table.categorical[rows])])
        for rows in (train, test)
    )
    model = LogisticRegression(C=0.1, max_iter=300).fit(seen, truth[train])
    return roc_auc_score(truth[test], model.decision_function(unseen)), truth[test]


@pytest.fixture(scope="module")
def found():
    """The test AUCs of the defaults, those of logistic regression, and the classes' test rows."""
    ours, theirs, counts = [], [], []
    for seed in SEEDS:
        values = {"dataset": "ads", "rows": ROWS, "seed": seed, "attacks": (), "threads": 1}
        ours.append(run(TrainConfig.of(values))[1]["test"]["auc"])
        auc, truth = logistic_auc(seed)
        theirs.append(auc)
        counts.append((int(truth.sum()), int((1 - truth).sum())))
    return np.array(ours), np.array(theirs), counts


def test_the_defaults_learn_an_embedded_table(found):
    ours, _, counts = found
    # An AUC without any skill has mean 1/2 and variance (m + n + 1) / (12 m n), per seed.
    variance = [(m + n + 1) / (12 * m * n) for m, n in counts]
    assert ours.mean() > 0.5 + 5 * math.sqrt(sum(variance)) / len(SEEDS)


def test_the_defaults_are_not_below_logistic_regression_by_more_than_chance(found):
    ours, theirs, counts = found
    # No AUC a on m positives has a variance above a (1 - a) / m; two of them, taken as independent.
    variance = [
        (a * (1 - a) + b * (1 - b)) / min(m, n)
        for a, b, (m, n) in zip(ours, theirs, counts, strict=True)
    ]
    assert ours.mean() > theirs.mean() - 3 * math.sqrt(sum(variance)) / len(SEEDS)


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
@pytest.mark.parametrize("full", [False, True], ids=["quick", "full"])
def test_a_paper_s_study_leaves_nothing_to_the_defaults(study, full):
    for trial in study.trials(full):
        assert defaults.PLAIN.keys() <= trial.keys()
    chosen = {"lr", "weight_decay", "bins", "rare", "epochs", "batch_size", "hold_out", "model"}
    assert chosen <= defaults.PLAIN.keys() <= TrainConfig.model_fields.keys()


def test_trials_with_the_settings_of_the_papers_keep_their_place_in_a_store():
    # The key that a trial without any setting had while these were the defaults.
    assert key_of(TrainConfig.of({**defaults.PLAIN}), "a:b") == "dac79ba80254910e600fcccdcf4d5279"
    assert key_of(TrainConfig(), "a:b") != key_of(TrainConfig(rare=None), "a:b")


def test_both_commands_and_the_template_take_the_same_defaults(tmp_path, capsys):
    train = TrainConfig()
    bank, platform = make_pair(tmp_path / "pair", address="127.0.0.1:7700", rows=200)
    for name in ("lr", "weight_decay", "epochs", "batch_size"):
        value = getattr(defaults, name.upper())
        assert getattr(train, name) == PartyConfig.model_fields[name].default == value
        assert {getattr(read_party_config(path), name) for path in (bank, platform)} == {value}
    assert (train.bins, train.rare, train.hold_out) == (defaults.BINS, defaults.RARE, None)
    assert main(["train", "--help"]) == 0
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for name in ("lr", "weight_decay", "epochs", "batch_size", "bins", "rare"):
        flag = "--" + name.replace("_", "-")
        shown = re.search(rf"{flag} [^\[]*\[([\d.e-]+)\]", text)
        assert shown is not None, flag
        assert float(shown[1]) == getattr(train, name)


@pytest.mark.parametrize("flags", [["--bins", "0", "--rare", "0"], []], ids=["off", "default"])
def test_the_file_of_a_run_repeats_it(tmp_path, flags):
    small = ["--dataset", "breast_cancer", "--model", "mlp", "--epochs", "1", "--batch-size", "64"]
    assert main(["train", *small, *flags, "--out", str(tmp_path / "run")]) == 0
    again = read_config(tmp_path / "run" / "config.toml", {})
    expected = (None, None) if flags else (defaults.BINS, defaults.RARE)
    assert (again.bins, again.rare) == expected
    assert TrainConfig.of({"bins": None, "rare": None}) == TrainConfig.of({"bins": 0, "rare": 0})


def test_default_bins_mean_nothing_without_numbers_and_others_are_refused():
    table, rows = data.load("ads", rows=100, seed=0), np.arange(50)
    table = replace(table, numeric=np.empty((100, 0)), numeric_names=())
    (columns,) = data.assign(table, 1)
    plain = TableReader(table, rows=rows).inputs(columns)
    assert TableReader(table, bins=defaults.BINS, rows=rows).inputs(columns) == plain
    with pytest.raises(UsageError, match="has no numbers"):
        TableReader(table, bins=defaults.BINS + 1, rows=rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(2, 6))
def test_common_values_stay_apart_and_all_others_are_one(column, least):
    codes = np.array(column)
    common = FrequentValues.of([codes, codes], (9, 7), least)
    every = torch.arange(7)
    both = common(torch.stack([every, every], 1))
    assert torch.equal(both[:, 0], both[:, 1])
    often = np.bincount(codes, minlength=7) >= least
    new = both[:, 0].numpy()
    assert (new[~often] == 0).all()
    assert sorted(new[often]) == list(range(1, int(often.sum()) + 1))
    assert common.cardinalities == (int(often.sum()) + 1,) * 2
    assert common(torch.tensor([[8, 0]]))[0, 0] == 0  # never seen


def test_every_party_counts_values_of_its_own_columns_in_training_rows():
    table = data.load("ads", rows=600, seed=0)
    train, _ = data.split(table, seed=0)
    reader = TableReader(table, rare=20, rows=train)
    for columns in data.assign(table, 3):
        counted = [np.asarray(table.categorical)[train, at] for at in columns.categorical]
        kept = [int((np.bincount(values) >= 20).sum()) for values in counted]
        assert reader.inputs(columns).cardinalities == tuple(count + 1 for count in kept)
        _, read = reader.source(columns)(torch.from_numpy(train))
        for values, codes in zip(counted, read.T.numpy(), strict=True):
            pairs = {(old, new) for old, new in zip(values, codes, strict=True) if new}
            assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
            assert all((values == old).sum() >= 20 for old, _ in pairs)
