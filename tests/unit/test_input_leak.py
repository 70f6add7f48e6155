"""What embeddings show of inputs: exact maps, nothing at all, missing values, odd columns."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tacit import run_audit
from tacit.audit import FeatureTable, audit_inputs
from tacit.audit.decoders import DECODERS, Targets
from tacit.audit.inputs import verdict
from tacit.audit.sent_rows import SentRows
from tacit.errors import InputError, UsageError
from tacit.tape.columns import ColumnTape, ViewTape
from tacit.types import View

ROWS = 600


def draws(seed, rows=ROWS, columns=3):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def table(values, **more):
    return FeatureTable(numeric={f"x{i}": x for i, x in enumerate(values.T)}, **more)


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_an_invertible_linear_map_shows_every_number(seed):
    x = draws(seed)
    matrix, _ = np.linalg.qr(draws(seed + 100, 3))
    found = audit_inputs(x @ (matrix * [3.0, 1.0, 0.2]), table(x), seed=seed)
    assert [row.kind for row in found.rows] == ["numeric"] * 3
    assert min(row.r2 for row in found.rows) > 0.999
    assert all(row.low <= row.r2 <= row.high and row.method == "ridge" for row in found.rows)


def test_a_copied_category_is_named_always():
    codes = np.random.default_rng(0).integers(0, 4, ROWS)
    names = np.array(["red", "green", "blue", "black"])[codes]
    row = audit_inputs(np.eye(4)[codes], FeatureTable(categorical={"colour": names})).worst()
    assert (row.accuracy, row.gain, row.r2) == (1.0, 1.0, None)
    share = row.baseline * row.judged
    assert 0.25 <= row.baseline < 0.4
    assert share == pytest.approx(round(share))


def test_a_curve_needs_more_than_a_line():
    x = draws(1, 2_000, 2)
    found = audit_inputs(x, FeatureTable(numeric={"product": x[:, 0] * x[:, 1]}))
    assert found.worst().method in ("network", "boosting")
    assert found.worst().low > 0.1


def test_independent_embeddings_show_nothing():
    """Ten seeds, six columns: the fits to noise that the known rows let through stay small."""
    rows = []
    for seed in range(10):
        codes = np.random.default_rng(seed).integers(0, 3, 1_500)
        features = table(draws(seed, 1_500, 5), categorical={"c": codes})
        found = audit_inputs(draws(seed + 50, 1_500, 8), features, seed=seed)
        assert (found.known, found.judged) == (1_000, 500)
        rows += found.rows
    gains = np.array([row.gain for row in rows])
    # The mean of the known rows is off by one part in 1,000; a fit to noise that won by chance on
    # 300 rows costs a few parts in 100.
    assert abs(np.median(gains)) < 0.01
    assert np.abs(gains).max() < 0.15
    numbers = [row for row in rows if row.kind == "numeric"]
    assert np.mean([row.low <= 1e-9 for row in numbers]) > 0.85  # an interval holds in 19 of 20


def test_the_seed_decides_everything():
    x = draws(3)
    z, features = x @ draws(4, 3) + draws(5), table(x, categorical={"c": x[:, 0] > 0})
    first, second = (audit_inputs(z, features, seed=7) for _ in range(2))
    assert first == second
    assert first != audit_inputs(z, features, seed=8)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    audit_inputs(z, features, seed=7)
    assert torch.equal(torch.rand(3), expected)  # the caller's own random numbers go on


def test_the_worst_column_comes_first_whatever_its_kind():
    x = draws(6)
    codes = np.random.default_rng(0).integers(0, 3, ROWS)
    features = FeatureTable(
        numeric={"hidden": draws(7)[:, 0], "half": x[:, 1]}, categorical={"shown": codes}
    )
    z = np.column_stack([np.eye(3)[codes], x[:, 1] + draws(8)[:, 0]])
    found = audit_inputs(z, features)
    assert [row.column for row in found.rows] == ["shown", "half", "hidden"]
    assert found.worst().column == "shown"
    assert "2 of 3 columns rebuilt" in verdict(found)


# --- odd columns and rows -------------------------------------------------------------------------


def test_constant_columns_are_reported():
    x = draws(0)
    features = table(x, categorical={"same": np.full(ROWS, "a")})
    features = replace(features, numeric={**features.numeric, "one": np.ones(ROWS)})
    rows = {row.column: row for row in audit_inputs(x, features).rows}
    assert (rows["one"].r2, rows["one"].baseline, rows["one"].low) == (None, 1.0, None)
    assert (rows["same"].accuracy, rows["same"].baseline, rows["same"].gain) == (1.0, 1.0, None)


def test_missing_numbers_are_filled_to_learn_and_not_judged():
    x = draws(0)
    holes = x.copy()
    holes[::3, 0] = np.nan
    rows = {row.column: row for row in audit_inputs(x, table(holes)).rows}
    assert rows["x1"].judged == 300
    assert 150 < rows["x0"].judged < 250
    assert rows["x0"].r2 > 0.8  # the medians in the place of missing ones mislead it a little
    empty = {"none": np.full(ROWS, np.nan), "x": x[:, 0]}
    blank = {row.column: row for row in audit_inputs(x, FeatureTable(numeric=empty)).rows}["none"]
    assert (blank.r2, blank.judged) == (None, 0)


def test_rare_values_are_one_and_never_right():
    names = np.array([f"v{i}" for i in range(ROWS)])  # each once
    row = audit_inputs(draws(0), FeatureTable(categorical={"name": names})).worst()
    assert row.accuracy == 0.0
    assert row.baseline == pytest.approx(1 / row.judged)


def test_wide_embeddings_are_reduced_and_still_show():
    x = draws(0, 1_500)
    z = np.tile(x, 200) + 0.1 * draws(1, 1_500, 600)
    found = audit_inputs(torch.from_numpy(z).reshape(1_500, 20, 30), table(x))
    assert found.width == 600
    assert min(row.r2 for row in found.rows) > 0.95


def test_few_rows_are_halved_and_fewer_refused():
    x = draws(0, 150)
    found = audit_inputs(x, table(x))
    assert (found.known, found.judged) == (75, 75)
    assert "knows 75 of them instead of 1000" in found.note
    with pytest.raises(UsageError, match=r"99 rows have both .* at least 100"):
        audit_inputs(x[:99], table(x[:99]))


@pytest.mark.parametrize(
    ("z", "features", "message"),
    [
        (draws(0, 150), table(draws(0, 151)), "give one for each row"),
        (np.full((150, 2), np.nan), table(draws(0, 150)), "row 0 is not finite"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(z, features, message):
    with pytest.raises(UsageError, match=message):
        audit_inputs(z, features)


def test_a_table_checks_its_columns():
    with pytest.raises(UsageError, match="no columns"):
        FeatureTable()
    with pytest.raises(UsageError, match="'b' must be \\[3\\]"):
        FeatureTable(numeric={"a": np.zeros(3), "b": np.zeros(4)})
    with pytest.raises(UsageError, match="'a' is infinite in row 1"):
        FeatureTable(numeric={"a": np.array([0.0, np.inf])})
    with pytest.raises(UsageError, match="id 7 is in rows 0 and 2"):
        table(draws(0, 3), ids=np.array([7, 8, 7])).rows_by_id(text=False)


@pytest.mark.parametrize("name", list(DECODERS))
def test_a_decoder_takes_numbers_or_categories_alone(name):
    z, x = draws(0, 120), draws(1, 120)
    none = np.zeros((120, 0))
    for numbers, codes, sizes in (
        (x, none.astype(np.int64), ()),
        (none, np.arange(120)[:, None] % 3, (3,)),
    ):
        known = Targets(numbers=numbers, codes=codes, sizes=sizes)
        found = DECODERS[name](z, known, z[:5], 0, range(numbers.shape[1] + len(sizes)))
        assert found.numbers.shape == (5, numbers.shape[1])
        assert found.codes.shape == (5, len(sizes))
        assert found.done.all()


# --- tapes ----------------------------------------------------------------------------------------


def recorded(x, *, epochs=3):
    """Return a tape whose epochs each show one column more clearly, rows in another order."""
    rng = torch.Generator().manual_seed(0)
    views = []
    for epoch in range(epochs):
        noise = torch.randn(x.shape, generator=rng, dtype=torch.float64)
        sent = torch.from_numpy(x) + noise
        for rows in torch.randperm(len(x), generator=rng).split(200):
            views.append(View(grads=noise[rows], embeddings=sent[rows], ids=rows, epoch=epoch))
    return ViewTape(views)


def test_all_epochs_show_more_than_the_last():
    """Noise of the size of the numbers: R2 1/2 from one epoch, 3/4 from the mean of three."""
    x = draws(0, 2_000)
    record = run_audit(recorded(x), inputs=table(x)).record
    assert record == json.loads(json.dumps(record))
    latest, every = (
        np.mean([row["r2"] for row in record[name]]) for name in ("inputs", "inputs_all_epochs")
    )
    assert latest == pytest.approx(0.5, abs=0.06)  # 3 columns of 1,000 rows: 4 standard errors
    assert every == pytest.approx(0.75, abs=0.06)
    about = record["inputs_about"]
    assert (about["known"], about["judged"], about["epochs"]) == (1_000, 1_000, 3)
    assert record["table"] == []
    assert record["worst"] is None


def test_labels_and_inputs_give_both_tables():
    x = draws(0)
    found = run_audit(recorded(x), np.arange(ROWS) % 2, ["norm"], inputs=table(x))
    assert [row["attack"] for row in found.table] == ["norm"]
    assert {row["column"] for row in found.record["inputs"]} == {"x0", "x1", "x2"}
    with pytest.raises(UsageError, match="labels or the features"):
        run_audit(recorded(x))


def test_epochs_that_have_only_begun_are_left_out():
    x = draws(0)
    views = [*recorded(x, epochs=2)]
    begun = [view for view in recorded(x) if view.epoch == 2][:1]
    found = SentRows.of(ViewTape([*views, *begun]), table(x), seed=0)
    assert (found.epochs, found.sent, found.width) == (2, ROWS, 3)
    assert found.every.shape == (ROWS, 6)


def test_an_example_that_an_epoch_left_out_has_its_mean():
    x = draws(0, 200)
    views = [*recorded(x, epochs=2)]
    first = replace(
        views[0],
        grads=views[0].grads[:-1],
        embeddings=views[0].embeddings[:-1],
        ids=views[0].ids[:-1],
    )
    found = SentRows.of(ViewTape([first, views[1]]), table(x), seed=0)
    assert np.isfinite(found.every).all()
    means = found.every[:, :3].astype(np.float64)
    gone = int(views[0].ids[-1])
    row = np.flatnonzero(np.isclose(found.features.numeric["x0"], x[gone, 0]))
    assert np.allclose(means[row], first.embeddings.mean(0).numpy(), atol=1e-5)


def test_ids_match_features_as_text_or_numbers():
    x = draws(0, 300)
    order = np.random.default_rng(1).permutation(300)
    for ids in (np.arange(300) + 10, np.array([f"a{i}" for i in range(300)])):
        tape = ColumnTape.of({"embeddings": x, "ids": ids})
        found = run_audit(tape, inputs=table(x[order], ids=ids[order].astype(str)))
        assert min(row["r2"] for row in found.record["inputs"]) > 0.99
        assert found.record["inputs_all_epochs"] is None
    with pytest.raises(UsageError, match="has none of the 300 ids"):
        run_audit(ColumnTape.of({"embeddings": x, "ids": ids}), inputs=table(x))


def test_a_tape_without_gradients_shows_inputs_only():
    x = draws(0, 300)
    tape = ColumnTape.of({"embeddings": x})
    assert len(tape) == 300
    assert next(tape.sent()).embeddings.shape == (300, 3)
    with pytest.raises(UsageError, match=r"has no grads.*--inputs"):
        run_audit(tape, np.arange(300) % 2)
    with pytest.raises(UsageError, match="has no embeddings"):
        run_audit(ColumnTape.of({"grads": x}), inputs=table(x))
    with pytest.raises(UsageError, match="has no embeddings"):
        run_audit(ViewTape([View(grads=torch.ones(300, 2))]), inputs=table(x))


# --- files ----------------------------------------------------------------------------------------

CSV = "key,age,city,code\n1,30,rome,0\n2,,bern,1\n3,41.5,NA,x\n"


def test_a_text_file_says_what_its_columns_are(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text(CSV)
    found = FeatureTable.read(path, id_column="key")
    assert np.array_equal(found.numeric["age"], [30, np.nan, 41.5], equal_nan=True)
    assert found.categorical["city"].tolist() == ["rome", "bern", "NA"]
    assert found.categorical["code"].tolist() == ["0", "1", "x"]
    assert found.rows_by_id(text=False) == {1: 0, 2: 1, 3: 2}
    with pytest.raises(UsageError, match=r"has no id column 'id'.*--id-column"):
        FeatureTable.read(path)


def test_a_schema_beside_the_file_comes_first(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("key,age,size,y\n1,30,2,0\n2,40,3,1\n")
    schema = tmp_path / "f.csv.schema.toml"
    schema.write_text('id = "key"\nlabel = "y"\nnumeric = ["age"]\ncategorical = ["size"]\n')
    found = FeatureTable.read(path)
    assert (list(found.numeric), list(found.categorical)) == (["age"], ["size"])
    schema.write_text('id = "key"\nnumeric = ["age", "missing"]\n')
    with pytest.raises(InputError, match="no column 'missing'"):
        FeatureTable.read(path)


def test_a_parquet_file_says_it_by_its_types(tmp_path):
    columns = {"id": ["a", "b"], "n": [1, None], "zip": ["01", "02"], "flag": [True, False]}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    found = FeatureTable.read(tmp_path / "f.parquet")
    assert list(found.numeric) == ["n"]
    assert np.isnan(found.numeric["n"]).tolist() == [False, True]
    assert found.categorical["zip"].tolist() == ["01", "02"]
    assert found.categorical["flag"].tolist() == ["true", "false"]
    (tmp_path / "g.parquet").write_text("no")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        FeatureTable.read(tmp_path / "g.parquet")


def test_a_cell_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("id,age\n1,30\n2,old\n")
    (tmp_path / "f.csv.schema.toml").write_text('id = "id"\nnumeric = ["age"]\n')
    with pytest.raises(InputError, match="line 3: age must be a number, got 'old'"):
        FeatureTable.read(path)
