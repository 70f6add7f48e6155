"""What training learned of a party's columns, kept and used on another file."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tacit.data import Encoding, load_party
from tacit.data.encoding import Category, LabelRule, Number
from tacit.data.party_table import first_repeat
from tacit.errors import InputError

SCHEMA = 'id = "k"\nnumeric = ["a", "same"]\ncategorical = ["c"]\n'
LABELLED = SCHEMA + 'label = "y"\n'


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def write(folder, name, schema=None, **columns):
    path = folder / f"{name}.parquet"
    parquet.write_table(pa.table(columns), path)
    if schema is not None:
        (folder / f"{path.name}.schema.toml").write_text(schema)
    return path


def rows(size=40, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "k": np.arange(size) + 100,
        "a": rng.normal(1e4, 1e-3, size),
        "same": np.full(size, 3.1),
        "c": rng.choice(["p", "q", ""], size),
        "y": np.arange(size) % 3,
    }


def trained(folder, role="feature", **more):
    schema = (LABELLED if role == "label" else SCHEMA) + "".join(
        f"{k} = {v!r}\n" for k, v in more.items()
    )
    return load_party(write(folder, "train", schema, **rows()), role=role)


@pytest.mark.parametrize("scale", ["standard", "unit", "none"])
@pytest.mark.parametrize("role", ["feature", "label"])
def test_json_keeps_every_bit(tmp_path, role, scale):
    encoding = trained(tmp_path, role, scale=scale).encoding
    back = Encoding.from_json(encoding.to_json())
    assert back == encoding
    assert (back.scale, back.id) == (scale, "k")
    assert [n.offset.hex() for n in back.numeric] == [n.offset.hex() for n in encoding.numeric]
    assert back.categorical == (Category("c", ("", "p", "q")),)
    assert back.label == (LabelRule("y", None, 3) if role == "label" else None)
    assert "\n" not in encoding.to_json()


@pytest.mark.parametrize("scale", ["standard", "unit", "none"])
def test_the_same_rows_in_another_file_give_the_same_bits(tmp_path, scale):
    old = trained(tmp_path, scale=scale)
    kept = Encoding.from_json(old.encoding.to_json())
    chosen = [7, 3, 31]
    part = {name: values[chosen] for name, values in rows().items() if name != "y"}
    for schema in (None, SCHEMA, SCHEMA.replace('"a", "same"', '"same", "a"')):
        path = write(tmp_path, "new", schema, **part)
        new = load_party(path, role="feature", encoding=kept)
        assert new.numeric.tobytes() == old.numeric[chosen].tobytes()
        assert np.array_equal(new.categorical, old.categorical[chosen])
        assert (new.ids.tolist(), new.unseen) == ([107, 103, 131], (0,))
        assert (new.inputs, new.encoding) == (old.inputs, old.encoding)
        path.with_name("new.parquet.schema.toml").unlink(missing_ok=True)


def test_unseen_values_take_the_last_code_and_are_counted(tmp_path):
    old = trained(tmp_path)
    path = write(
        tmp_path,
        "new",
        SCHEMA,
        k=["w", "x", "y", "z"],
        a=[1e4, None, 1e4, 1e4],
        same=[3.1, 9.0, None, 0.0],
        c=["r", "p", None, "zz"],
    )
    new = load_party(path, role="feature", encoding=old.encoding)
    assert new.categorical[:, 0].tolist() == [3, 1, 0, 3]
    assert (new.unseen, new.cardinalities, old.cardinalities) == ((2,), (4,), (4,))
    assert new.numeric[:, 1].tolist() == [0.0] * 4
    a = old.encoding.numeric[0]
    assert new.numeric[1, 0] == np.float32((0.0 - a.offset) / a.spread)


def test_labels_of_a_file_to_predict_may_be_absent_or_of_one_class(tmp_path):
    encoding = trained(tmp_path, "label").encoding
    part = {name: values[:4] for name, values in rows().items()}
    bare = {name: values for name, values in part.items() if name != "y"}
    for schema in (None, SCHEMA, LABELLED):
        new = load_party(write(tmp_path, "bare", schema, **bare), role="label", encoding=encoding)
        assert (new.labels, new.classes, len(new)) == (None, 3, 4)
    part["y"] = np.full(4, 2)
    new = load_party(write(tmp_path, "one", None, **part), role="label", encoding=encoding)
    assert (new.labels.tolist(), new.classes) == ([2] * 4, 3)
    part["y"][2] = 3
    with pytest.raises(InputError, match="row 3: y must be below 3, the classes of training"):
        load_party(write(tmp_path, "more", None, **part), role="label", encoding=encoding)
    with pytest.raises(InputError, match="positive = 'b', training had None"):
        load_party(
            write(tmp_path, "other", LABELLED + 'positive = "b"\n', **part),
            role="label",
            encoding=encoding,
        )


def test_a_positive_value_means_the_same_later(tmp_path):
    schema = 'id = "k"\nlabel = "y"\npositive = "yes"\n'
    first = write(tmp_path, "train", schema, k=[1, 2, 3], y=["yes", "no", "maybe"])
    encoding = load_party(first, role="label").encoding
    later = write(tmp_path, "new", None, k=[1, 2], y=["no", "no"])
    assert load_party(later, role="label", encoding=encoding).labels.tolist() == [0, 0]
    assert encoding.label == LabelRule("y", "yes", 2)


def test_an_encoding_of_other_columns_or_of_the_other_party(tmp_path):
    encoding = trained(tmp_path).encoding
    part = {name: values for name, values in rows().items() if name != "y"}
    path = write(tmp_path, "new", SCHEMA.replace('"same"', '"sane"'), **part)
    with pytest.raises(InputError, match="schema lacks the numeric column 'same' of the training"):
        load_party(path, role="feature", encoding=encoding)
    path = write(tmp_path, "new", SCHEMA.replace('["c"]', '["c", "d"]'), **part)
    with pytest.raises(InputError, match="column 'd' of its schema is no categorical column of"):
        load_party(path, role="feature", encoding=encoding)
    with pytest.raises(InputError, match="this encoding is a feature party's, got role 'label'"):
        load_party(path, role="label", encoding=encoding)
    del part["a"]
    with pytest.raises(InputError, match="has no column 'a' that its schema names"):
        load_party(write(tmp_path, "less", None, **part), role="feature", encoding=encoding)


def test_a_number_that_cannot_be_scaled_is_refused(tmp_path):
    encoding = trained(tmp_path).encoding
    narrow = replace(encoding, numeric=(Number("a", 0.0, 1e-30), encoding.numeric[1]))
    part = {name: values for name, values in rows().items() if name != "y"}
    part["a"][4] = 1e20
    with pytest.raises(InputError, match="row 5: a is too far from the values of training"):
        load_party(write(tmp_path, "far", None, **part), role="feature", encoding=narrow)


def changed(text, **content):
    """Return an encoding with other content and the digest that fits it."""
    plain = json.loads(text)["encoding"] | content
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return json.dumps({"format": 1, "digest": digest, "encoding": plain})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], "the encoding is damaged .not JSON"),
        (lambda text: "[]", "no format and encoding in it"),
        (lambda text: "{}", "no format and encoding in it"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format 2, this version reads 1"),
        (lambda text: text.replace("3.1", "3.2"), "its digest does not fit its content"),
        (lambda text: changed(text, scale="log"), "damaged .scale: Input should be 'unit'"),
        (lambda text: changed(text, numeric=3), "damaged .numeric"),
        (lambda text: changed(text, id="a"), "a column occurs twice"),
        (lambda text: changed(text, categorical=[{"name": "c", "values": ["b", "a"]}]), "not in"),
        (
            lambda text: changed(text, numeric=[{"name": "a", "offset": 0.0, "spread": -1.0}]),
            "the scale of 'a' is not a number of at least 0",
        ),
        (lambda text: changed(text, label={"name": "y", "positive": None, "classes": 1}), "1 clas"),
    ],
)
def test_a_damaged_encoding_is_refused(tmp_path, damage, message):
    text = damage(trained(tmp_path, scale="unit").encoding.to_json())
    with pytest.raises(InputError, match=message) as caught:
        Encoding.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [2, 1000, 70_000])
def test_repeats_are_found_among_many(size):
    rng = np.random.default_rng(size)
    numbers = rng.permutation(size * 10)[:size]
    for ids in (numbers, numbers.astype(str)):
        assert first_repeat(ids) is None
        twice = ids.copy()
        twice[size - 1] = twice[0]
        assert first_repeat(twice) == (0, size - 1)


def test_repeats_are_compared_in_full(monkeypatch):
    monkeypatch.setattr("tacit.data.party_table._hashes", lambda ids: np.zeros(len(ids), np.uint64))
    assert first_repeat(np.array(["a", "b", "c"])) is None
    assert first_repeat(np.array(["a", "b", "c", "b"])) == (1, 3)
