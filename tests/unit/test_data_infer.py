"""Schemas guessed from files, and frames as tables."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from tacit.cli import main
from tacit.data import Schema, from_frame, load, load_party, parse_schema, read_schema, schema_path
from tacit.data.infer import infer
from tacit.data.profile import profile
from tacit.data.table_file import reader_of
from tacit.errors import InputError

ROWS = 200


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def columns():
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, ROWS).astype(str).astype(object)
    age[::10] = "?"
    return {
        "click_id": [f"u{k}" for k in range(ROWS)],
        "bought": ["yes" if k % 5 == 0 else "no" for k in range(ROWS)],
        "price": rng.normal(size=ROWS),
        "age": age.tolist(),
        "site": [("news", "shop", None)[k % 3] for k in range(ROWS)],
        "store_id": rng.integers(0, 7, ROWS),
        "user_id": rng.permutation(ROWS) * 2 // 3,
        "at": 1_700_000_000 + rng.integers(0, 10**7, ROWS),
        "born": [f"{1 + k % 28}/05/1990" for k in range(ROWS)],
        "updated": [f"2024-05-{1 + k % 28:02}" for k in range(ROWS)],
        "unit": ["kg"] * ROWS,
        "odd [\n": rng.normal(size=ROWS),
    }


def guess(path, **given):
    return infer(profile(reader_of(path)), **given)


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_the_columns_of_a_file_are_recognised(tmp_path, name):
    path = tmp_path / name
    write = csv.write_csv if name.endswith(".csv") else parquet.write_table
    write(pa.table(columns()), path)
    found = guess(path)
    assert found.schema == parse_schema(
        {
            "label": "bought",
            "positive": "yes",
            "id": "click_id",
            "time": "at",
            "numeric": ["price", "age", "odd [\n"],
            "categorical": ["site", "store_id"],
            "missing": ["?"],
        }
    )
    assert "20 missing" in found.notes["age"]
    assert "66 missing" in found.notes["site"]
    assert set(found.left_out) == {"user_id", "born", "updated", "unit"}


def test_the_command_writes_a_schema_that_is_read_back(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    csv.write_csv(pa.table(columns()), path, csv.WriteOptions(delimiter=";"))
    assert main(["data", "schema", str(path)]) == 0
    assert "bought, positive = 'yes'" in capsys.readouterr().out
    assert read_schema(schema_path(path)) == guess(path).schema
    table = load(str(path))
    assert (len(table), table.positives) == (ROWS, 0.2)
    assert main(["data", "schema", str(path)]) == 2
    assert "edit it, or replace it with --force" in capsys.readouterr().err
    words = ["--force", "--label", "price", "--json"]
    assert main(["data", "schema", str(path), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"]["label"] == "price"
    assert main(["data", "schema", str(path), "--force", "--label", "prise"]) == 2
    assert "no column 'prise': did you mean 'price'" in capsys.readouterr().err


def test_a_file_is_described_with_and_without_its_schema(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    csv.write_csv(pa.table(columns()), path)
    assert main(["data", "describe", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["all_rows"], told["schema"]) == (ROWS, True, None)
    main(["data", "schema", str(path), "--json"])
    capsys.readouterr()
    assert main(["data", "describe", str(path), "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["columns"]}
    assert (found["bought"]["use"], found["bought"]["counts"]) == ("label", {"yes": 40, "no": 160})
    assert (found["age"]["use"], found["age"]["missing"]) == ("numeric", 20)
    assert found["born"]["use"] is None
    assert main(["data", "describe", str(path)]) == 0
    assert "click_id" in capsys.readouterr().out


def test_a_feature_partys_file_gets_a_schema_without_a_label(tmp_path, capsys):
    path = tmp_path / "features.csv"
    kept = {name: values for name, values in columns().items() if name != "bought"}
    csv.write_csv(pa.table(kept), path)
    assert main(["data", "schema", str(path)]) == 0
    assert "label        none found" in capsys.readouterr().out
    assert "# label = " in schema_path(path).read_text()
    assert len(load_party(path, role="feature")) == ROWS


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["0", "1"], None),
        (["1", "2", "2"], "1"),
        (["True", "False"], "True"),
        (["blue", "red", "red"], "blue"),
        (["0", "1", "2"], None),
        (["a", "b", "c"], None),
        (["1.0", "0.0"], None),
    ],
)
def test_the_positive_value_is_the_word_for_it_or_the_rarest(tmp_path, values, positive):
    path = tmp_path / "mine.csv"
    csv.write_csv(pa.table({"target": values * 20, "a": range(20 * len(values))}), path)
    assert guess(path, label="target").schema.positive == positive


def test_a_file_without_rows_is_refused(tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("a,b\n")
    with pytest.raises(InputError, match="has no rows"):
        guess(path)


class Exported:
    """What any frame library gives: an export to Arrow, and nothing else that is used."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def frames():
    plain = columns()
    table = pa.table(plain)
    views = table.set_column(1, "bought", table["bought"].cast(pa.string_view()))
    coded = table.set_column(1, "bought", table["bought"].combine_chunks().dictionary_encode())
    codes = coded["bought"].combine_chunks()
    codes = pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast(pa.string_view()))
    both = table.set_column(1, "bought", codes)
    exported = {"views": Exported(views), "coded": Exported(coded), "coded views": Exported(both)}
    return {"mapping": plain, "arrow": table, **exported}


@pytest.mark.parametrize("kind", ["mapping", "arrow", "views", "coded", "coded views"])
def test_a_frame_is_the_table_of_its_file(tmp_path, kind):
    path = tmp_path / "mine.csv"
    csv.write_csv(pa.table(columns()), path)
    chosen = {"label": "bought", "id": "click_id", "positive": "yes"}
    lists = {"numeric": ["price", "age"], "categorical": ["site", "store_id"]}
    whole = load(str(path), schema={**chosen, **lists, "missing": ["?"]})
    table = from_frame(frames()[kind], **chosen, **lists, missing=["?"])
    for part in ("numeric", "categorical", "labels", "ids"):
        assert np.array_equal(getattr(table, part), getattr(whole, part))
    assert table.cardinalities == whole.cardinalities
    guessed = from_frame(frames()[kind], label="bought")
    assert guessed.numeric_names == ("price", "age", "odd [\n")
    assert (guessed.positives, guessed.ids[0]) == (0.2, "u0")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_pandas_and_polars_frames(library):
    module = pytest.importorskip(library)
    table = from_frame(module.DataFrame(columns()), label="bought")
    assert (len(table), table.positives) == (ROWS, 0.2)
    assert np.array_equal(table.numeric, from_frame(columns(), label="bought").numeric)


@pytest.mark.parametrize(
    ("frame", "given", "message"),
    [
        (3, {}, "a frame is one of pandas, polars or Arrow.* got int"),
        ({"y": [0, 1], "a": [1, 2]}, {"label": "z"}, "no column 'z'"),
        ({"y": [0, 1], "a": [1, 2]}, {"scale": "log"}, "scale takes"),
        ({"y": [0, None], "a": [1, 2]}, {"numeric": ["a"]}, "frame, row 2: y is missing"),
        ({"y": [], "a": []}, {}, "frame has no rows"),
        ({"y": [0, 1], "a": ["x", "2"]}, {"numeric": ["a"]}, "frame, row 1: a must be a number"),
    ],
)
def test_frames_that_are_no_table_are_refused(frame, given, message):
    with pytest.raises(InputError, match=message):
        from_frame(frame, **{"label": "y", **given})


def test_the_code_of_the_page_on_own_tables_runs(capsys):
    page = Path(__file__).parents[2] / "docs" / "own_tables.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    exec(compile(block, page.name, "exec"), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out.strip() == block.rpartition("# ")[2].strip()


def test_the_page_on_own_tables_names_every_key_of_a_schema():
    page = (Path(__file__).parents[2] / "docs" / "own_tables.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == {f.name for f in fields(Schema)}
