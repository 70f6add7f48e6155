"""Numbers by their quantiles: the pieces, and a run with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import data
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment, run
from tacit.training.features import Bins, TableReader


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.integers(2, 9))
def test_encodings_are_bounded_grow_with_the_number_and_stand_still_outside(values, count):
    column = np.array(values, dtype=np.float32)[:, None]
    bins = Bins.of(column, count)
    assert 1 <= bins.width <= count
    found = bins(torch.from_numpy(np.sort(column, axis=0)))
    assert ((found >= -1) & (found <= 1)).all()
    assert (found.diff(dim=0) >= 0).all()
    outside = bins(torch.tensor([[-2e6], [2e6]]))
    assert (outside[0] == -1).all()
    assert (outside[1] == 1).all()


def test_the_sum_of_the_pieces_bends_at_the_quantiles_only():
    numbers = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    bins = Bins.of(numbers, 4)
    assert bins.columns.tolist() == [0] * 4 + [1] * 4
    knots = np.quantile(numbers[:, 0], [0, 0.25, 0.5, 0.75, 1])
    grid = torch.tensor(np.stack([knots, knots], 1), dtype=torch.float32)
    steps = bins(grid)[:, :4]
    assert torch.allclose(steps, torch.tensor(2.0) * torch.ones(5, 4).tril(-1) - 1, atol=1e-5)


def test_every_party_has_the_bins_of_its_own_columns_from_training_rows():
    trial = Experiment(
        TrainConfig.of({"dataset": "breast_cancer", "bins": 4, "parties": 3, "attacks": ()})
    )
    table, rows = trial.table, trial.train_rows
    for party, columns in zip(trial.features, data.assign(table, 3), strict=True):
        numeric = np.asarray(table.numeric)[np.ix_(rows, columns.numeric)]
        assert party.bottom.inputs.numeric == Bins.of(numeric, 4).width
        reader = TableReader(table, bins=4, rows=rows)
        found, _ = reader.source(columns)(torch.from_numpy(rows[:5]))
        assert torch.equal(found, Bins.of(numeric, 4)(torch.from_numpy(numeric[:5]).float()))


def test_a_run_with_bins_learns_and_one_without_numbers_is_refused():
    small = {
        "dataset": "breast_cancer",
        "model": "mlp",
        "bins": 8,
        "epochs": 5,
        "batch_size": 64,
        "lr": 1e-2,
        "attacks": (),
    }
    assert run(TrainConfig.of(small))[1]["test"]["auc"] > 0.95
    table = data.load("breast_cancer")
    with pytest.raises(UsageError, match="--bins 8: breast_cancer has no numbers"):
        TableReader(without_numbers(table), bins=8, rows=np.arange(3))


def without_numbers(table):
    return replace(table, numeric=np.empty((len(table), 0)), numeric_names=())
