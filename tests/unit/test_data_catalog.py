import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import tacit.data
from tacit.cli import main
from tacit.data import cache_directory, check, data_directory, describe, find, load, names, split
from tacit.errors import InputError, SpecError, UsageError

FILELESS = ["ads", "toy_balanced", "breast_cancer", "digits"]
SPAM = "\n".join(",".join([str(k)] * 57 + [str(k % 2)]) for k in range(10))


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))


def run(capsys, *words):
    code = main(["data", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", names())
def test_every_entry_is_complete(name):
    entry = describe(name)
    assert entry.name == name
    assert entry.description
    assert entry.licence
    assert entry.source
    assert bool(entry.places) == (name not in FILELESS)
    module, _, function = entry.loader.partition(":")
    assert getattr(__import__(module, fromlist=["_"]), function).__doc__


@pytest.mark.parametrize("name", FILELESS)
def test_data_without_files(name):
    table, entry = load(name), describe(name)
    assert entry.rows in (None, len(table))
    assert table.classes == entry.classes
    if entry.positives is not None:
        assert table.positives == pytest.approx(entry.positives, abs=0.02)
    train, test = split(table, seed=0)
    assert len(train) + len(test) == len(table)


def test_the_toy_example_has_its_bayes_auc():
    table = load("toy_balanced", rows=40_000, seed=1)
    auc = roc_auc_score(table.labels, table.numeric[:, 0] <= 1.0)
    # AUC = 0.9 + 0.1 / 2, where 0.1 is the share of negatives below 1.
    assert auc == pytest.approx(0.95, abs=4 * 0.5 * np.sqrt(0.09 / 20_000))


def test_rows_are_drawn_by_seed_and_keep_their_order(tmp_path):
    one, two = load("digits", rows=100), load("digits", rows=100)
    assert np.array_equal(one.ids, two.ids)
    assert (np.diff(one.ids) > 0).all()
    assert not np.array_equal(one.ids, load("digits", rows=100, seed=1).ids)
    for rows in (1, 1798):
        with pytest.raises(InputError, match=f"1797 rows here: ask for 2 to 1797, got {rows}"):
            load("digits", rows=rows)
    (tmp_path / "spambase.data").write_text(SPAM)
    assert len(load("spambase", rows=4)) == 4


def test_unknown_names_and_options_are_refused():
    with pytest.raises(SpecError, match="unknown data set 'criteoo': did you mean 'criteo'"):
        load("criteoo")
    with pytest.raises(SpecError, match="known are ads, toy_balanced"):
        describe("zzzzzz")
    with pytest.raises(SpecError, match="digits has no option 'scale': it takes none"):
        load("digits", scale="unit")


@pytest.mark.parametrize("name", [name for name in names() if name not in FILELESS])
def test_missing_files_are_named_in_one_line(name, tmp_path):
    assert find(name) == ()
    with pytest.raises(UsageError) as caught:
        load(name)
    message = str(caught.value)
    assert "\n" not in message
    assert describe(name).source in message
    assert all(place in message for place in describe(name).places)
    assert str(tmp_path) in message


def test_the_first_pattern_with_files_is_read(tmp_path):
    (tmp_path / "criteo").mkdir()
    sample = tmp_path / "criteo" / "train_sample_137139.txt.gz"
    sample.touch()
    assert find("criteo") == (sample,)
    (tmp_path / "criteo" / "train.txt").touch()
    assert find("criteo") == (tmp_path / "criteo" / "train.txt",)
    (tmp_path / "avazu").mkdir()
    for name in ("train_b.csv.gz", "train_a.csv", "test.csv"):
        (tmp_path / "avazu" / name).touch()
    assert [path.name for path in find("avazu")] == ["train_a.csv", "train_b.csv.gz"]


def test_directories(tmp_path, monkeypatch):
    assert data_directory() == tmp_path
    assert data_directory("other") == Path("other")
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.delenv("TACIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_directory() == tmp_path / "xdg" / "tacit" / "data"
    assert cache_directory() == tmp_path / "xdg" / "tacit" / "tables"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory() == Path.home() / ".cache" / "tacit" / "data"


def test_check_counts(tmp_path):
    (tmp_path / "spambase.data").write_text(SPAM)
    result = check("spambase")
    assert (result.rows, result.positives, result.published_rows) == (10, 0.5, 4601)
    assert (result.numeric, result.categorical, len(result.files)) == (57, 0, 1)


def test_the_list_command(capsys, tmp_path):
    (tmp_path / "spambase.data").write_text(SPAM)
    code, out, err = run(capsys, "list", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["name"] for row in answer["datasets"]] == names()
    here = {row["name"]: row["here"] for row in answer["datasets"]}
    assert here["spambase"]
    assert here["ads"]
    assert not here["criteo"]
    code, out, _ = run(capsys, "list", "--data-dir", str(tmp_path / "empty"))
    assert code == 0
    assert all(name in out for name in names())


@pytest.mark.parametrize("name", names())
def test_the_describe_command(capsys, name):
    code, out, err = run(capsys, "describe", name, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["source"] == describe(name).source
    code, out, _ = run(capsys, "describe", name)
    assert code == 0
    assert describe(name).licence in out


def test_the_check_command(capsys, tmp_path):
    (tmp_path / "spambase.data").write_text(SPAM)
    code, out, err = run(capsys, "check", "spambase", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["rows"] == 10
    code, out, _ = run(capsys, "check", "spambase", "--data-dir", str(tmp_path))
    assert code == 0
    assert "10 rows, positives 50.00%" in out
    assert "the published data has 4,601 rows" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "avazu"), "the files of avazu are not in"),
        (("check", "avazu", "--json"), "the files of avazu are not in"),
        (("describe", "avasu"), "did you mean 'avazu'?"),
        (("check", "nothing.csv"), "there is no file nothing.csv"),
    ],
)
def test_wrong_commands_exit_2_with_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_listing_loads_neither_torch_nor_numpy_nor_pyarrow():
    code = (
        "import sys; import tacit.data, tacit.cli.data; tacit.data.names(); "
        "tacit.data.describe('ads'); heavy = {'torch', 'numpy', 'pyarrow'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_loading_does_not_load_torch():
    code = (
        "import sys, tacit.data as d; d.split(d.load('ads', rows=999), seed=0); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_everything_exported_exists():
    for name in tacit.data.__all__:
        assert name == "CEILING" or getattr(tacit.data, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tacit.data.nothing  # noqa: B018
    assert set(tacit.data.__all__) == set(dir(tacit.data))
