from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import Columns, Table, assign, load, order, split, stream, subset, take
from tacit.errors import InputError


def table(rows=200, numeric=3, categorical=2, **changes):
    rng = np.random.default_rng(0)
    plain = Table(
        name="plain",
        numeric=rng.normal(size=(rows, numeric)).astype(np.float32),
        categorical=rng.integers(0, 5, size=(rows, categorical)).astype(np.int32),
        cardinalities=(5,) * categorical,
        labels=np.arange(rows) % 2,
        ids=np.arange(rows),
        day=None,
        numeric_names=tuple(f"n{k}" for k in range(numeric)),
        categorical_names=tuple(f"c{k}" for k in range(categorical)),
        test_fraction=0.3,
        fixed_test=None,
        classes=2,
    )
    return replace(plain, **changes)


@settings(deadline=None)
@given(rows=st.integers(40, 400), seed=st.integers(0, 2**70))
def test_a_split_is_a_partition(rows, seed):
    train, test = split(table(rows), seed=seed)
    assert len(test) == round(0.3 * rows)
    assert sorted([*train, *test]) == list(range(rows))
    assert train.dtype == test.dtype == np.int64


def test_a_split_depends_on_the_seed_alone_and_is_shuffled():
    first, again, other = (split(table(), seed=s)[0] for s in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(np.sort(first), np.sort(other))
    assert not np.array_equal(first, np.sort(first))


def test_a_fixed_test_part_is_kept():
    mask = np.arange(200) >= 150
    train, test = split(table(fixed_test=mask), seed=0)
    assert sorted(test) == list(range(150, 200))
    assert sorted(train) == list(range(150))


@pytest.mark.parametrize("labels", [np.zeros(200, int), np.ones(200, int), np.eye(1, 200)[0]])
def test_a_part_with_one_class_is_refused(labels):
    with pytest.raises(InputError, match=r"two classes: the .* rows of plain have 1; load more"):
        split(table(labels=labels.astype(np.int64)), seed=0)


@settings(deadline=None)
@given(
    rows=st.integers(1, 300),
    batch=st.integers(1, 300),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
)
def test_an_epoch_has_every_row_once(rows, batch, seed, epoch):
    numbers = np.arange(rows) * 3
    if batch > rows:
        with pytest.raises(InputError, match=f"1 to {rows} rows here, got {batch}"):
            order(numbers, batch_size=batch, seed=seed, epoch=epoch)
        return
    whole = list(order(numbers, batch_size=batch, seed=seed, epoch=epoch, drop_last=False))
    assert sorted(np.concatenate(whole)) == list(numbers)
    assert all(len(b) == batch for b in whole[:-1])
    cut = list(order(numbers, batch_size=batch, seed=seed, epoch=epoch))
    assert [len(b) for b in cut] == [batch] * (rows // batch)
    assert all(np.array_equal(a, b) for a, b in zip(cut, whole, strict=False))


def test_the_order_of_an_epoch_is_fixed_for_all_time():
    # Golden: parties of different versions must meet on the same rows.
    batches = [b.tolist() for b in order(np.arange(10), batch_size=5, seed=1, epoch=2)]
    assert batches == [[4, 8, 9, 7, 5], [3, 2, 1, 0, 6]]


def test_epochs_and_seeds_differ():
    def first(seed, epoch):
        return tuple(next(order(np.arange(100), batch_size=100, seed=seed, epoch=epoch)))

    assert len({first(s, e) for s in range(4) for e in range(4)}) == 16


@pytest.mark.parametrize("wrong", [{"seed": -1, "epoch": 0}, {"seed": 0, "epoch": -1}])
def test_negative_seeds_and_epochs_are_refused(wrong):
    with pytest.raises(InputError, match="whole number from 0, got -1"):
        order(np.arange(10), batch_size=2, **wrong)


def test_shuffles_are_uniform():
    # Each of 6 rows lands on each of 6 places n / 6 times, within 5 standard deviations.
    n = 3000
    counts = np.zeros((6, 6))
    for epoch in range(n):
        counts[np.arange(6), next(order(np.arange(6), batch_size=6, seed=0, epoch=epoch))] += 1
    assert np.abs(counts - n / 6).max() < 5 * np.sqrt(n * (1 / 6) * (5 / 6))


def test_take_gives_tensors_of_the_rows():
    plain = table()
    features = take(plain, np.array([7, 3, 7]))
    assert features.numeric.dtype == torch.float32
    assert features.categorical.dtype == torch.int64
    assert np.array_equal(features.numeric.numpy(), plain.numeric[[7, 3, 7]])
    assert np.array_equal(features.categorical.numpy(), plain.categorical[[7, 3, 7]])


@settings(deadline=None)
@given(parties=st.integers(1, 5), numeric=st.integers(0, 3), seed=st.integers(0, 9))
def test_parties_divide_the_columns_without_rest(parties, numeric, seed):
    plain = table(numeric=numeric, categorical=5)
    pieces = assign(plain, parties)
    assert len(pieces) == parties
    assert [at for p in pieces for at in p.numeric] == list(range(numeric))
    assert [at for p in pieces for at in p.categorical] == list(range(5))
    sizes = [len(p) for p in pieces]
    assert max(sizes) - min(sizes) <= 1
    rows = split(plain, seed=seed)[1]
    parts = [take(plain, rows, p) for p in pieces]
    whole = take(plain, rows)
    assert torch.equal(torch.cat([p.numeric for p in parts], dim=1), whole.numeric)
    assert torch.equal(torch.cat([p.categorical for p in parts], dim=1), whole.categorical)


@pytest.mark.parametrize("parties", [0, 6, -1])
def test_a_party_without_columns_is_refused(parties):
    with pytest.raises(InputError, match=f"plain has 5 columns, so from 1 to 5.*got {parties}"):
        assign(table(), parties)


def test_named_parties_are_kept():
    named = (Columns((0, 2), (), "a"), Columns((1,), (0, 1), "b"))
    assert assign(table(parties=named), 2) == named
    with pytest.raises(InputError, match="names 2 parties, got 3: ask for 2"):
        assign(table(parties=named), 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([200]), "numbered from 0 to 199, got 200 to 200"),
        (np.array([-1]), "numbered from 0 to 199, got -1"),
        (np.ones(200, dtype=bool), "list of row numbers.*flatnonzero"),
        (np.zeros((2, 2), dtype=int), "list of row numbers"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows, message):
    with pytest.raises(InputError, match=message):
        take(table(), rows)
    with pytest.raises(InputError, match=message):
        subset(table(), rows)


def test_a_subset_keeps_what_belongs_together():
    whole = table(day=(np.arange(200) // 50).astype(np.int32), fixed_test=np.arange(200) > 99)
    part = subset(whole, np.array([10, 120, 199]))
    assert part.ids.tolist() == [10, 120, 199]
    assert part.day.tolist() == [0, 2, 3]
    assert part.fixed_test.tolist() == [False, True, True]
    assert part.cardinalities == whole.cardinalities


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_goes_through_the_days_in_order(drop_last):
    days = np.repeat([4, 5, 9], [50, 70, 80]).astype(np.int32)
    batches = list(stream(table(day=days), batch_size=30, drop_last=drop_last))
    assert [day for day, _ in batches] == (
        [4, 5, 5, 9, 9] if drop_last else [4] * 2 + [5] * 3 + [9] * 3
    )
    assert all((days[rows] == day).all() for day, rows in batches)
    rows = np.concatenate([rows for _, rows in batches])
    assert (np.diff(rows) > 0).all()
    assert drop_last or rows.tolist() == list(range(200))


def test_a_stream_needs_times_and_a_batch():
    with pytest.raises(InputError, match="plain has none: use order"):
        stream(table(), batch_size=10)
    with pytest.raises(InputError, match="at least 1 row, got 0"):
        stream(load("ads", rows=100), batch_size=0)


@pytest.mark.parametrize(
    "changes",
    [{"ids": np.arange(3)}, {"cardinalities": (5,)}, {"numeric_names": ("a",)}],
)
def test_arrays_that_do_not_fit_together_are_refused(changes):
    with pytest.raises(InputError, match="plain"):
        table(**changes)


def test_the_repr_of_a_table_is_one_line():
    assert repr(table()) == "Table('plain', 200 rows, 3 numeric, 2 categorical, 2 classes)"
    assert table().positives == 0.5
