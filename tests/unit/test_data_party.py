"""One party's own file: what it may hold, and that it is read as a whole table is."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

from tacit.data import Encoding, PartyTable, cache_directory, load, load_party
from tacit.errors import InputError

FEATURES = 'id = "who"\nnumeric = ["price", "age"]\ncategorical = ["site", "tone"]\n'
LABELS = 'id = "who"\nlabel = "bought"\npositive = "yes"\n'


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def columns(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows).astype(object)
    age[::11] = None
    site = rng.choice(["news", "Ärger", "shop, main", 'a"b'], rows).astype(object)
    site[5] = None
    return {
        "who": pa.array([f"u{k}" for k in rng.permutation(rows)]),
        "bought": pa.array(rng.choice(["yes", "no"], rows)),
        "price": pa.array(np.exp(rng.normal(3, 1, rows))),
        "age": pa.array(age.tolist(), pa.int64()),
        "site": pa.array(site.tolist()),
        "tone": pa.array(rng.integers(0, 20, rows)),
    }


def write(folder, table, schema=None, name="mine.csv"):
    path = folder / name
    table = pa.table(table)
    if name.endswith(".parquet"):
        parquet.write_table(table, path, row_group_size=64)
    else:
        csv.write_csv(table, path)
    if schema is not None:
        (folder / f"{name}.schema.toml").write_text(schema)
    return path


def text(folder, lines, schema, name="mine.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    (folder / f"{name}.schema.toml").write_text(schema)
    return path


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
@pytest.mark.parametrize("scale", ["standard", "unit", "none"])
def test_a_feature_file_is_coded_as_in_a_whole_table(tmp_path, name, scale):
    schema = FEATURES + f'scale = "{scale}"\n'
    path = write(tmp_path, columns(), schema, name)
    whole = {
        "label": "bought",
        "positive": "yes",
        "id": "who",
        "scale": scale,
        "numeric": ["price", "age"],
        "categorical": ["site", "tone"],
    }
    table, mine = load(str(path), schema=whole), load_party(path, role="feature")
    assert isinstance(mine, PartyTable)
    assert (mine.numeric.dtype, mine.categorical.dtype) == (np.float32, np.int32)
    assert np.array_equal(mine.numeric, table.numeric)
    assert np.array_equal(mine.categorical, table.categorical)
    assert np.array_equal(mine.ids, table.ids)
    assert mine.cardinalities == tuple(size + 1 for size in table.cardinalities)
    assert mine.inputs == (2, mine.cardinalities)
    assert (mine.labels, mine.classes, mine.unseen, len(mine)) == (None, None, (0, 0), 300)
    assert (mine.numeric_names, mine.categorical_names) == (("price", "age"), ("site", "tone"))
    assert repr(mine).startswith(f"PartyTable('{name}', feature party, 300 rows")


def test_a_label_file_with_and_without_features(tmp_path):
    data = columns()
    path = write(tmp_path, {n: data[n] for n in ("who", "bought")}, LABELS)
    bare = load_party(path, role="label")
    truth = [int(value == "yes") for value in data["bought"].to_pylist()]
    assert bare.labels.tolist() == truth
    assert (bare.labels.dtype, bare.classes, bare.inputs) == (np.int64, 2, (0, ()))
    assert bare.numeric.shape == bare.categorical.shape == (300, 0)
    numeric, categorical = bare.take(np.array([1, 2]))
    assert (numeric.shape, categorical.shape) == ((2, 0), (2, 0))
    more = write(tmp_path, data, LABELS + 'numeric = ["age"]\n', "more.parquet")
    assert load_party(more, role="label").inputs == (1, ())


def test_the_arrays_are_mapped_and_the_file_is_read_once(tmp_path):
    path = write(tmp_path, columns(), FEATURES)
    first = load_party(path, role="feature")
    (entry,) = cache_directory().iterdir()
    stamp = entry.stat().st_mtime_ns
    again = load_party(path, role="feature")
    assert entry.stat().st_mtime_ns == stamp
    assert again.encoding == first.encoding
    for array in (again.ids, again.numeric, again.categorical):
        assert isinstance(array, np.memmap)
    assert sorted(p.name for p in entry.iterdir()) == [
        "categorical.npy",
        "ids.npy",
        "numeric.npy",
        "party.json",
        "table.json",
    ]
    (entry / "party.json").write_text("{")
    assert load_party(path, role="feature").encoding == first.encoding


def test_rows_come_through_an_order_that_the_parties_share(tmp_path):
    mine = load_party(write(tmp_path, columns(), FEATURES), role="feature")
    order = np.random.default_rng(1).permutation(len(mine))[:100]
    source = mine.source(order)
    numeric, categorical = source(torch.tensor([3, 0, 99, 3]))
    rows = order[[3, 0, 99, 3]]
    assert (numeric.dtype, categorical.dtype) == (torch.float32, torch.int64)
    assert np.array_equal(numeric.numpy(), mine.numeric[rows])
    assert np.array_equal(categorical.numpy(), mine.categorical[rows])
    for wrong in ([100], [-1]):
        with pytest.raises(InputError, match=r"shared order of mine.csv are numbered from 0 to 99"):
            source(torch.tensor(wrong))
    with pytest.raises(InputError, match=r"rows of mine.csv are numbered from 0 to 299"):
        mine.source(np.array([0, 300]))


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (pa.int64(), [5, -3, 2**62], np.int64),
        (pa.int8(), [5, -3, 7], np.int64),
        (pa.uint64(), [2**64 - 1, 2**63, 1], np.dtype("U20")),
        (pa.string(), ["u-1", "ü", "007"], np.dtype("U3")),
        (pa.large_string(), ["a", "bb", "ccc"], np.dtype("U3")),
    ],
)
def test_ids_of_many_kinds(tmp_path, kind, values, stored):
    table = {"k": pa.array(values, kind), "a": pa.array([1.0, 2.0, 3.0])}
    path = write(tmp_path, table, 'id = "k"\nnumeric = ["a"]\n', "ids.parquet")
    mine = load_party(path, role="feature")
    assert mine.ids.dtype == stored
    assert [str(i) for i in mine.ids.tolist()] == [str(v) for v in values]


def test_ids_of_a_text_file_stay_text(tmp_path):
    big = str(2**63 + 7)
    path = text(tmp_path, ["k,a", "007,1", "7,2", f"{big},3"], 'id = "k"\nnumeric = ["a"]\n')
    assert load_party(path, role="feature").ids.tolist() == ["007", "7", big]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["u1,1", "u2,2", "u1,3"], "line 4: id 'u1' is in row 1 and again in row 3: every id"),
        (["u1,1", ",2"], "line 3: k is empty, got '': every row needs an id"),
        (["u1,1", "u2,3", "  ,2"], "line 4: k is empty, got '  '"),
        (["u1,1", "x" * 300 + ",2"], "line 3: k has at most 256 characters, got 300 in 'xxx"),
    ],
)
def test_ids_that_cannot_match_are_refused(tmp_path, lines, message):
    path = text(tmp_path, ["k,a", *lines], 'id = "k"\nnumeric = ["a"]\n')
    with pytest.raises(InputError, match=message) as caught:
        load_party(path, role="feature")
    assert "\n" not in str(caught.value)
    assert not list(cache_directory().glob("*"))


def test_ids_of_a_parquet_file_that_cannot_match(tmp_path):
    schema = 'id = "k"\nnumeric = ["a"]\ntime = "t"\n'
    table = {"k": pa.array([4, 9, 4]), "a": pa.array([1, 2, 3]), "t": pa.array([3, 2, 1])}
    path = write(tmp_path, table, schema, "ids.parquet")
    # rows are counted as in the file, though time would put them in another order
    with pytest.raises(InputError, match=r"row 3: id 4 is in row 1 and again in row 3"):
        load_party(path, role="feature")
    path = write(tmp_path, table | {"k": pa.array([4, None, 5])}, schema, "ids.parquet")
    with pytest.raises(InputError, match="row 2: k is missing: every row needs an id"):
        load_party(path, role="feature")


def test_rows_in_time_order(tmp_path):
    schema = 'id = "k"\nnumeric = ["a"]\ntime = "t"\nscale = "none"\n'
    path = text(tmp_path, ["k,a,t", "x,1,300", "y,2,100", "z,3,200"], schema)
    mine = load_party(path, role="feature")
    assert (mine.ids.tolist(), mine.numeric[:, 0].tolist()) == (["y", "z", "x"], [2, 3, 1])


@pytest.mark.parametrize(
    ("role", "schema", "message"),
    [
        ("feature", FEATURES + 'label = "bought"\n', "a feature party has no labels, got label = "),
        ("label", FEATURES, 'a label party has labels: write label = "'),
        ("feature", 'numeric = ["price"]\n', "matched by their id: write id = "),
        ("label", 'label = "bought"\n', "matched by their id: write id = "),
        ("feature", FEATURES + "[parties]\np = ['price','age','site','tone']\n", "take .parties."),
        ("feature", FEATURES.replace("numeric", "numerc"), "unknown key 'numerc': did you mean"),
        ("feature", FEATURES.replace("price", "prize"), "no column 'prize' that its schema"),
        ("feature", 'id = "who"\n', "neither a label nor features"),
        ("label", LABELS.replace('"yes"', '"si"'), "no row has bought = 'si'"),
        ("bank", LABELS, "role of a party is feature or label, got 'bank'"),
    ],
)
def test_a_wrong_role_or_schema(tmp_path, role, schema, message):
    path = write(tmp_path, columns(), schema)
    with pytest.raises(InputError, match=message) as caught:
        load_party(path, role=role)
    assert "\n" not in str(caught.value)


def test_missing_files_and_other_types_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*gone.csv"):
        load_party(tmp_path / "gone.csv", role="feature")
    path = write(tmp_path, columns(), None)
    with pytest.raises(
        InputError, match=r"mine.csv needs a schema: .*data schema.* id = .*, label = "
    ):
        load_party(path, role="label")
    other = tmp_path / "mine.xlsx"
    other.write_text("")
    with pytest.raises(InputError, match=r"one of .csv, .csv.gz, .*.parquet, .*, got mine.xlsx"):
        load_party(other, role="feature")
    empty = text(tmp_path, ["who,price,age,site,tone"], FEATURES, "empty.csv")
    with pytest.raises(InputError, match=r"empty.csv has no rows"):
        load_party(empty, role="feature")


def test_the_whole_loaders_refuse_a_party_file(tmp_path):
    path = write(tmp_path, columns(), FEATURES)
    with pytest.raises(InputError, match="this file has no label: it is a feature party's; use it"):
        load(str(path))
    assert isinstance(load_party(path, role="feature").encoding, Encoding)


def test_missing_values_of_training_are_missing_in_files_to_predict(tmp_path):
    schema = FEATURES + 'missing = ["?"]\nscale = "none"\n'
    header = "who,price,age,site,tone"
    trained = load_party(
        text(tmp_path, [header, "a,?,1,?,x", "b,2,?,news,y"], schema), role="feature"
    )
    encoding = Encoding.from_json(trained.encoding.to_json())
    for own in (None, FEATURES):
        path = tmp_path / "new.csv"
        path.write_text(header + "\nc,?,3,?,y\n")
        (tmp_path / "new.csv.schema.toml").unlink(missing_ok=True)
        if own is not None:
            (tmp_path / "new.csv.schema.toml").write_text(own)
        found = load_party(path, role="feature", encoding=encoding)
        assert found.numeric.tolist() == [[0.0, 3.0]]
        assert (found.categorical.tolist(), found.unseen) == ([[0, 1]], (0, 0))


def test_an_encoding_that_was_kept_before_missing_values_had_names_is_read(tmp_path):
    table = load_party(write(tmp_path, columns(), FEATURES), role="feature")
    kept = json.loads(table.encoding.to_json())
    assert kept["encoding"].pop("missing") == []
    digest = hashlib.sha256(json.dumps(kept["encoding"], sort_keys=True).encode()).hexdigest()
    assert Encoding.from_json(json.dumps({**kept, "digest": digest})) == table.encoding
