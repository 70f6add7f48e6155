import datetime
import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from tacit.data import assign, cache_directory, load, parse_schema
from tacit.errors import InputError, SpecError

CSV = """who,bought,price,"site, main",when,age
u1,yes,2.5,"a ""quoted"", one",2024-05-31,30
u2,no,,"two
lines",2024-05-30,NA
u3,no,7.5,,2024-06-01 12:30:00,50
"""
SCHEMA = """label = "bought"
positive = "yes"
id = "who"
time = "when"
numeric = ["price", "age"]
categorical = ["site, main"]
scale = "none"
test_fraction = 0.25

[parties]
shop = ["site, main", "age"]
bank = ["price"]
"""
PLAIN = {"label": "y", "numeric": ["a"]}


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def write(root, text=CSV, schema=SCHEMA, name="clicks.csv"):
    path = root / name
    path.write_bytes(text.encode())
    (root / f"{name}.schema.toml").write_text(schema)
    return str(path)


@pytest.mark.parametrize("text", [CSV, CSV.replace("\n", "\r\n"), "\ufeff" + CSV])
def test_a_csv_file_with_quotes_dates_and_gaps(tmp_path, text):
    table = load(write(tmp_path, text))
    assert table.ids.tolist() == ["u2", "u1", "u3"]
    assert table.labels.tolist() == [0, 1, 0]
    assert table.numeric.tolist() == [[0.0, 0.0], [2.5, 30.0], [7.5, 50.0]]
    assert table.categorical[:, 0].tolist() == [2, 1, 0]
    assert np.diff(table.day).tolist() == [1, 1]
    assert (table.test_fraction, table.name) == (0.25, "clicks.csv")
    shop, bank = assign(table, 2)
    assert (shop.numeric, shop.categorical, shop.party) == ((1,), (0,), "shop")
    assert (bank.numeric, bank.categorical, bank.party) == ((0,), (), "bank")


def test_a_schema_may_be_given(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text("y,a\n0,1\n1,3\n2,5\n")
    other = tmp_path / "other.toml"
    other.write_text('label = "y"\nnumeric = ["a"]\nscale = "unit"\n')
    for schema in (other, str(other), parse_schema(PLAIN), PLAIN):
        table = load(str(path), schema=schema)
        assert (len(table), table.classes) == (3, 3)
    assert load(str(path), schema=other).numeric[:, 0].tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(
        InputError, match=r"plain.csv needs a schema: `tacit data schema .*plain.csv` writes"
    ):
        load(str(path))
    with pytest.raises(SpecError, match="no option 'shema': did you mean 'schema'"):
        load(str(path), shema=other)
    with pytest.raises(InputError, match=r"there is no file .*none.csv"):
        load(str(tmp_path / "none.csv"))


def test_a_parquet_file_with_many_types(tmp_path):
    size = 6
    columns = {
        "y": pa.array([True, False] * 3),
        "n.dot": pa.array([1, None, 3, 4, 5, 6], pa.int16()),
        "flag": pa.array([True, False, None] * 2),
        "text": pa.array(["1.5", "", "NA", "2", " 3 ", "4"], pa.large_string()),
        "nan": pa.array([1.0, float("nan"), None, 0.0, 0.0, 0.0]),
        "code": pa.array([7, 8, None, 7, 7, 8]),
        "word": pa.array(["u", "v", None, "u", "u", "v"]).dictionary_encode(),
        "key": pa.array(range(size), pa.uint64()),
        "when": pa.array(
            [datetime.datetime(2024, 1, k + 1, 23, tzinfo=datetime.UTC) for k in range(size)]
        ),
    }
    path = tmp_path / "many.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    schema = {
        "label": "y",
        "id": "key",
        "time": "when",
        "scale": "none",
        "numeric": ["n.dot", "flag", "text", "nan"],
        "categorical": ["code", "word"],
    }
    table = load(str(path), schema=schema)
    assert table.labels.tolist() == [1, 0] * 3
    assert table.numeric[:3].tolist() == [[1, 1, 1.5, 1], [0, 0, 0, 0], [3, 0, 0, 0]]
    assert table.categorical.tolist()[:3] == [[1, 1], [2, 2], [0, 0]]
    assert table.ids.tolist() == list("012345")
    assert np.diff(table.day).tolist() == [1] * 5


@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("days", "3\n4\n"),
        ("hours", "72\n100\n"),
        ("seconds", "259200\n345600.5\n"),
        ("milliseconds", "259200000\n345600000\n"),
    ],
)
def test_times_as_numbers(tmp_path, unit, values):
    rows = [f"{k},1,{value}" for k, value in enumerate(values.split())]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["y,a,t", *rows]))
    table = load(str(path), schema={**PLAIN, "time": "t", "time_unit": unit})
    assert table.day.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lable": "y"}, "unknown key 'lable': did you mean 'label'"),
        ({"label": 3}, "label takes the name of a column, got 3"),
        ({"numeric": "a"}, "numeric takes a list of column names, got 'a'"),
        ({"categorical": [1]}, r"categorical takes a list of column names, got \[1\]"),
        ({"label": 3, "numeric": []}, "label takes the name of a column, got 3"),
        ({"numeric": ["a", "a"]}, "column 'a' is listed twice"),
        ({"categorical": ["a"]}, "column 'a' is listed twice"),
        ({"numeric": ["y"]}, "column 'y' is the label or id"),
        ({"id": "a"}, "column 'a' is the label or id"),
        ({"id": "y"}, "column 'y' is the label: name another id"),
        ({"positive": 1.5}, "positive takes text, a whole number or true or false, got 1.5"),
        ({"scale": "log"}, "scale takes unit or standard or none, got 'log'"),
        ({"test_fraction": 1.0}, "test_fraction takes a number between 0 and 1"),
        ({"separator": ";;"}, "separator takes one character such as"),
        ({"separator": ""}, "separator takes one character such as"),
        ({"missing": "?"}, "missing takes a list of texts such as"),
        ({"time_unit": "weeks"}, "time_unit takes milliseconds or seconds"),
        ({"parties": {"p": []}}, "parties takes a list of column names per party"),
        ({"parties": {"p": ["b"]}}, "parties name 'b', which is no feature"),
        ({"parties": {"p": ["a"], "q": ["a"]}}, "column 'a' has two owners"),
        ({"categorical": ["b"], "parties": {"p": ["a"]}}, "column 'b' has no owner"),
    ],
)
def test_each_mistake_in_a_schema_is_named(change, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_schema({**PLAIN, **change})
    assert "\n" not in str(caught.value)


def test_a_file_of_one_party_alone_is_no_table(tmp_path):
    path = tmp_path / "half.csv"
    path.write_text("y,a\n0,1\n1,3\n")
    with pytest.raises(InputError, match=r"half.csv: this file has no label: it is a feature part"):
        load(str(path), schema={"numeric": ["a"]})
    with pytest.raises(InputError, match=r"half.csv: this file has no features: it is a label pa"):
        load(str(path), schema={"label": "y"})
    with pytest.raises(InputError, match="neither a label nor features"):
        parse_schema({"id": "a"})
    with pytest.raises(InputError, match="positive = 'yes' without a label"):
        parse_schema({"numeric": ["a"], "positive": "yes"})


def test_a_schema_that_is_no_toml_is_refused(tmp_path):
    path = write(tmp_path, schema="label = ")
    with pytest.raises(InputError, match=r"clicks.csv.schema.toml cannot be read as a schema"):
        load(path)


@pytest.mark.parametrize(
    ("text", "schema", "message"),
    [
        ("y,prize\n0,1\n", {"label": "y", "numeric": ["price"]}, "no column 'price'.*'prize'"),
        ("y,a\n0,1\n2,x\n", PLAIN, "line 3: a must be a number, got 'x'"),
        ("y,a\n0,1e39\n", PLAIN, "line 2: a must be within plus or minus 1e38, got 1e\\+39"),
        ("y,a\nno,1\n", PLAIN, "line 2: y must be a whole number from 0, got 'no'"),
        ("y,a\n-1,1\n", PLAIN, "line 2: y must be a whole number from 0 below 10000, got '-1'"),
        ("y,a\n99999,1\n", PLAIN, "line 2: y must be .* got '99999'"),
        ("y,a\n0,1\n1,2,3\n", PLAIN, "line 3: 3 columns instead of 2"),
        ('y,a\n"x\ny",1\n1\n', {**PLAIN, "positive": "1"}, "line 4: 1 columns instead of 2"),
        ("y,a\n,1\n", {**PLAIN, "positive": "1"}, "line 2: y is missing"),
        (
            "y,a\nno,1\nno,2\n",
            {**PLAIN, "positive": "yes"},
            "no row has y = 'yes'.*values are 'no' \\(2\\)",
        ),
        ("y,a\nYes,1\nno,2\n", {**PLAIN, "positive": "yes"}, "the values are 'Yes' \\(1\\), 'no'"),
        ("y,a\nyes,1\nyes,2\n", {**PLAIN, "positive": "yes"}, "all 2 rows have label 1"),
        ("y,a\nno,1\nyes,2\n", PLAIN, "line 2: .* got 'no'; .* such as positive = \"yes\""),
        ("y,a\n1.0,1\n0.5,2\n", PLAIN, "line 3: y must be a whole number from 0, got '0.5'"),
        ("y,a\n0,1\n1,?\n", PLAIN, "line 3: a must be a number, got '\\?'"),
        ("y;a\n0;1\n", {**PLAIN, "separator": ","}, "only column is 'y;a': correct separator"),
        ("y,a,t\n0,1,soon\n", {**PLAIN, "time": "t"}, "line 2: t must be a number of seconds"),
        ("y,a,t\n0,1,1e300\n", {**PLAIN, "time": "t"}, "line 2: t must be a number of seconds"),
        ("", PLAIN, "bad.csv is empty"),
    ],
)
def test_wrong_values_are_refused_with_their_line(tmp_path, text, schema, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load(str(path), schema=schema)
    assert not list(cache_directory().glob("*"))


def test_wrong_parquet_files_are_refused_with_their_row(tmp_path):
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match=r"bad.parquet cannot be read as Parquet"):
        load(str(path), schema=PLAIN)
    parquet.write_table(pa.table({"y": [0, 1, None], "a": ["1", "2", "x"]}), path)
    with pytest.raises(InputError, match=r"bad.parquet, row 3: a must be a number, got 'x'"):
        load(str(path), schema=PLAIN)
    parquet.write_table(pa.table({"y": [0, None], "a": [1, 2]}), path)
    with pytest.raises(InputError, match="row 2: y is missing"):
        load(str(path), schema=PLAIN)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_separator_is_that_of_the_header(tmp_path, mark):
    path = tmp_path / "any.csv"
    rows = [["y", "a", "b c"], ["0", "1", "2.5"], ["1", "3", "4.5"]]
    path.write_text("\n".join(mark.join(row) for row in rows) + "\n")
    schema = {**PLAIN, "numeric": ["a", "b c"], "scale": "none"}
    for given in (schema, {**schema, "separator": mark}):
        assert load(str(path), schema=given).numeric.tolist() == [[1.0, 2.5], [3.0, 4.5]]


def test_missing_values_are_as_the_schema_says(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("y,a,site\n0,?,?\n1,-999,news\n0,-999.0,\n1,3,shop\n")
    schema = {**PLAIN, "categorical": ["site"], "missing": ["?", "-999"], "scale": "none"}
    table = load(str(path), schema=schema)
    assert table.numeric[:, 0].tolist() == [0.0, 0.0, 0.0, 3.0]
    assert table.categorical[:, 0].tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("name", ["t.arrow", "t.feather", "t.ipc", "stream.arrow", "t.tsv.gz"])
def test_other_kinds_of_file_give_the_same_table(tmp_path, name):
    columns = pa.table({"y": [0, 1, 1], "a": [1.5, None, 4.0], "word": ["u", "v", "u"]})
    schema = {**PLAIN, "categorical": ["word"], "scale": "none"}
    path = tmp_path / name
    if name.endswith(".gz"):
        with gzip.open(path, "wt") as file:
            file.write("y\ta\tword\n0\t1.5\tu\n1\t\tv\n1\t4\tu\n")
    elif name == "t.feather":
        feather.write_feather(columns, path, compression="lz4")
    else:
        kind = pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file
        with kind(str(path), columns.schema) as file:
            file.write_table(columns, max_chunksize=2)
    table = load(str(path), schema=schema)
    assert table.numeric[:, 0].tolist() == [1.5, 0.0, 4.0]
    assert (table.labels.tolist(), table.categorical[:, 0].tolist()) == ([0, 1, 1], [0, 1, 0])


def test_damaged_arrow_files_and_needless_separators_are_refused(tmp_path):
    path = tmp_path / "bad.arrow"
    path.write_bytes(b"ARROW1 or not")
    with pytest.raises(InputError, match=r"bad.arrow cannot be read as Arrow"):
        load(str(path), schema=PLAIN)
    with pytest.raises(InputError, match="separator is for text files, got ';'"):
        load(str(path), schema={**PLAIN, "separator": ";"})
    with pa.ipc.new_file(str(path), pa.schema([("y", pa.int64()), ("a", pa.string())])) as file:
        file.write_table(pa.table({"y": [0, 1], "a": ["1", "x"]}), max_chunksize=1)
    with pytest.raises(InputError, match=r"bad.arrow, row 2: a must be a number, got 'x'"):
        load(str(path), schema=PLAIN)
