import json
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from tacit.data import cache_directory, load
from tacit.data.build import Chunk, Layout, build
from tacit.data.cache import cached
from tacit.errors import InputError

LAYOUT = Layout("made", ("a", "b"), ("c",), "unit", 0.2)


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("one")
    return path


def chunk(start, size, words=("x", "y"), **more):
    at = np.arange(start, start + size)
    return Chunk(
        numeric=np.column_stack([at, -at]).astype(float),
        categorical=(pa.array([words[k % len(words)] for k in range(size)]),),
        labels=at % 2,
        **more,
    )


class Reader:
    def __init__(self, *chunks):
        self.chunks, self.calls = chunks, 0

    def __call__(self):
        self.calls += 1
        yield from self.chunks


def entries():
    return sorted(path.name for path in cache_directory().iterdir())


def test_a_second_load_does_not_read_the_source(source):
    reader = Reader(chunk(0, 5), chunk(5, 6, words=("z", "x")))
    first = cached(LAYOUT, [source], reader)
    again = cached(LAYOUT, [source], reader)
    assert reader.calls == 1
    assert isinstance(again.numeric, np.memmap)
    assert np.array_equal(first.numeric, again.numeric)
    assert again.numeric[:, 0].tolist() == pytest.approx([k / 10 for k in range(11)])
    # codes go by the value, across chunks: x, y, z
    assert again.categorical[:, 0].tolist() == [0, 1, 0, 1, 0, 2, 0, 2, 0, 2, 0]
    assert again.cardinalities == (3,)
    assert (again.ids.tolist(), again.day, again.fixed_test) == (list(range(11)), None, None)


def test_a_changed_source_is_read_again_and_the_old_entry_goes(source):
    reader = Reader(chunk(0, 4))
    cached(LAYOUT, [source], reader)
    before = entries()
    os.utime(source, ns=(0, 123))
    cached(LAYOUT, [source], reader)
    source.write_text("longer")
    os.utime(source, ns=(0, 123))
    cached(LAYOUT, [source], reader)
    assert reader.calls == 3
    assert len(entries()) == 1
    assert entries() != before


def test_options_and_layout_are_part_of_the_key(source):
    reader = Reader(chunk(0, 4))
    cached(LAYOUT, [source], reader, options={"k": 1})
    cached(LAYOUT, [source], reader, options={"k": 2})
    cached(Layout("made", ("a", "b"), ("c",), "none", 0.2), [source], reader)
    assert reader.calls == 3
    assert len(entries()) == 3


def test_a_failure_while_reading_leaves_nothing(source):
    def breaking():
        yield chunk(0, 4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(LAYOUT, [source], breaking)
    assert entries() == []
    assert len(cached(LAYOUT, [source], Reader(chunk(0, 4)))) == 4


def test_a_killed_process_leaves_nothing_that_is_taken_for_a_table(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("y,a\n0,1\n1,2\n")
    (tmp_path / "clicks.csv.schema.toml").write_text('label = "y"\nnumeric = ["a"]\n')
    code = (
        "import os, sys, tacit.data.build as b, tacit.data as d\n"
        "b._Spool._write = lambda *a: os._exit(9)\n"
        "d.load(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)  # noqa: S603
    assert done.returncode == 9
    (left,) = cache_directory().iterdir()
    assert left.name.startswith(".building-")
    assert load(str(path)).labels.tolist() == [0, 1]
    assert left.exists()
    old = time.time() - 100_000
    os.utime(left, (old, old))
    path.write_text("y,a\n0,1\n1,2\n1,3\n")
    assert len(load(str(path))) == 3
    assert not left.exists()


def test_a_folder_that_another_process_renamed_meanwhile_is_passed_over(source):
    """What it was building has another name by the time it is looked at: here a broken link."""
    cache_directory().mkdir(parents=True)
    (cache_directory() / ".building-gone").symlink_to(cache_directory() / "its entry")
    assert len(cached(LAYOUT, [source], Reader(chunk(0, 5)))) == 5


@pytest.mark.parametrize("damage", ["truncate", "json", "remove", "shape"])
def test_a_damaged_entry_is_built_again(source, damage):
    reader = Reader(chunk(0, 40))
    cached(LAYOUT, [source], reader)
    (folder,) = cache_directory().iterdir()
    if damage == "truncate":
        os.truncate(folder / "numeric.npy", 150)
    elif damage == "json":
        (folder / "table.json").write_text("{")
    elif damage == "remove":
        (folder / "labels.npy").unlink()
    else:
        np.save(folder / "labels.npy", np.zeros(3, dtype=np.int64))
    assert len(cached(LAYOUT, [source], reader)) == 40
    assert reader.calls == 2


def test_nothing_in_an_entry_is_pickled(source):
    cached(LAYOUT, [source], Reader(chunk(0, 4, ids=np.array(["a", "bb", "c", "d"]))))
    (folder,) = cache_directory().iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["categorical.npy", "ids.npy", "labels.npy", "numeric.npy", "table.json"]
    for path in folder.glob("*.npy"):
        assert np.load(path, allow_pickle=False).dtype != object
    assert json.loads((folder / "table.json").read_text())["rows"] == 4


def test_rows_are_put_in_time_order(source):
    day = 86_400
    late = chunk(0, 3, ids=np.array(["p", "q", "r"]), time=np.array([5, 1, 5]) * day)
    early = chunk(3, 2, ids=np.array(["longest", "t"]), time=np.array([0, 1]) * day)
    table = cached(LAYOUT, [source], Reader(late, early))
    assert table.ids.tolist() == ["longest", "q", "t", "p", "r"]
    assert table.day.tolist() == [0, 1, 1, 5, 5]
    assert table.labels.tolist() == [1, 1, 0, 0, 0]
    assert table.numeric[:, 0].tolist() == pytest.approx([0.75, 0.25, 1.0, 0.0, 0.5])


def test_a_cache_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written .*: set TACIT_CACHE"):
        cached(LAYOUT, [source], Reader(chunk(0, 4)))


def test_labels_with_a_gap_or_without_rows_are_refused(tmp_path):
    gap = Chunk(np.zeros((2, 2)), (pa.array(["a", "b"]),), np.array([1, 2]))
    with pytest.raises(InputError, match="without a gap, no row has label 0"):
        build([gap], LAYOUT, tmp_path)
    with pytest.raises(InputError, match="made has no rows"):
        build([], LAYOUT, tmp_path)


@pytest.mark.parametrize("value", [0.0, 5.0, 1e-200, 1e38])
def test_a_column_without_spread_becomes_zero(tmp_path, value):
    tiny = Chunk(np.array([[1.0, value], [0.0, value]]), (pa.array(["a", "b"]),), np.array([0, 1]))
    build([tiny], Layout("made", ("a", "b"), ("c",), "standard", 0.2), tmp_path)
    assert np.load(tmp_path / "numeric.npy").tolist() == [[1.0, 0.0], [-1.0, 0.0]]


@pytest.mark.parametrize("scale", ["unit", "standard"])
def test_scales_come_from_all_chunks(source, scale):
    rng = np.random.default_rng(0)
    raw = rng.normal(1e6, 3.0, size=(1000, 2))
    parts = [
        Chunk(part, (pa.array(["x"] * len(part)),), np.arange(len(part)) % 2)
        for part in np.array_split(raw, 7)
    ]
    table = cached(Layout("s", ("a", "b"), ("c",), scale, 0.2), [source], Reader(*parts))
    low, span = (raw.min(0), np.ptp(raw, 0)) if scale == "unit" else (raw.mean(0), raw.std(0))
    assert np.allclose(table.numeric, (raw - low) / span, atol=1e-5)
