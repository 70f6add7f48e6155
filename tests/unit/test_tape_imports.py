"""Tapes of other systems: every format gives the same views, and bad ones are named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tacit.audit.truth import Truth, summarise
from tacit.errors import UsageError
from tacit.tape.columns import ColumnTape, ViewTape
from tacit.tape.imports import open_tape
from tacit.types import View

ROWS, WIDTH = 12, 3


def columns():
    rng = np.random.default_rng(0)
    return {
        "grads": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "embeddings": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "ids": np.array([5, 3, 9, 7, 1, 2] * 2),
        "step": np.repeat([0, 1, 2, 3], 3),
        "epoch": np.repeat([0, 1], 6),
    }


def save_npz(folder, data):
    np.savez(folder / "x.npz", **data)
    return folder / "x.npz"


def save_parquet(folder, data):
    lists = {n: v.tolist() if v.ndim > 1 else v for n, v in data.items()}
    pq.write_table(pa.table(lists), folder / "x.parquet", row_group_size=5)
    return folder / "x.parquet"


def save_columns(folder, data):
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def save_steps_npy(folder, data):
    for step in range(4):
        for name, values in data.items():
            np.save(folder / f"{name}_{step}.npy", values[data["step"] == step])
    return folder


def save_steps_pt(folder, data):
    for step in range(4):
        rows = data["step"] == step
        batch = {
            n: torch.from_numpy(v[rows]) for n, v in data.items() if n not in ("step", "epoch")
        }
        torch.save({**batch, "epoch": step // 2}, folder / f"step{step}.pt")
    return folder


SAVERS = [save_npz, save_parquet, save_columns, save_steps_npy, save_steps_pt]


@pytest.mark.parametrize("save", SAVERS)
def test_every_format_gives_the_same_views(tmp_path, save):
    data = columns()
    tape = open_tape(save(tmp_path, data))
    views = list(tape)
    assert len(tape) == ROWS
    assert [(view.step, view.epoch) for view in views] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert np.array_equal(torch.cat([v.grads for v in views]).numpy(), data["grads"])
    assert np.array_equal(torch.cat([v.embeddings for v in views]).numpy(), data["embeddings"])
    assert np.array_equal(torch.cat([v.ids for v in views]).numpy(), data["ids"])
    assert [v.step for v in tape] == [v.step for v in views]  # any number of passes


def test_missing_columns_are_filled_in():
    data = columns()
    alone = list(ColumnTape.of({"grads": np.zeros((2500, 2))}))
    assert [len(view.ids) for view in alone] == [1024, 1024, 452]
    assert torch.cat([view.ids for view in alone]).tolist() == list(range(2500))
    named = list(ColumnTape.of({"grads": data["grads"], "ids": data["ids"]}))
    assert [(view.epoch, len(view.ids)) for view in named] == [(0, 6), (1, 6)]
    dated = list(ColumnTape.of({"grads": data["grads"], "epoch": data["epoch"]}))
    assert [view.ids.tolist() for view in dated] == [[0, 1, 2, 3, 4, 5]] * 2


def test_steps_do_not_depend_on_chunks():
    steps = np.repeat(np.arange(9), 1000)
    views = list(ColumnTape.of({"grads": np.zeros((9000, 1)), "step": steps}))
    assert [len(view.ids) for view in views] == [1000] * 9


def test_views_in_memory_are_a_tape():
    views = [View(grads=torch.ones(2, 1)), View(grads=torch.ones(3, 1))]
    assert [view.ids.tolist() for view in ViewTape(views)] == [[0, 1], [2, 3, 4]]
    with pytest.raises(UsageError, match="no views"):
        list(ViewTape([]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npz", b"garbage", "not a readable .npz"),
        ("x.parquet", b"garbage", "not a readable Parquet"),
        ("x.npy", b"garbage", "not a readable .npy"),
        ("x.pt", b"garbage", "not tensors alone"),
        ("x.txt", b"garbage", "a tape is a folder or one of .npz"),
    ],
)
def test_errors_name_unreadable_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        list(open_tape(tmp_path / name))
    assert name in str(caught.value)


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_file_can_execute(tmp_path):
    torch.save({"grads": torch.ones(2, 2), "x": Harmful()}, tmp_path / "x.pt")
    with pytest.raises(UsageError, match="not tensors alone"):
        open_tape(tmp_path / "x.pt")
    np.savez(tmp_path / "x.npz", grads=np.array([Harmful()], dtype=object))
    with pytest.raises(UsageError, match=r"not a readable \.npz"):
        open_tape(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grads": None}, "has no grads, only embeddings"),
        ({"ids": np.arange(3)}, "ids must have 12 rows like grads"),
        ({"grads": np.zeros((ROWS, 2), dtype=int)}, "grads must be floats"),
        ({"grads": np.zeros((ROWS, 0))}, "grads must be"),
        ({"ids": np.zeros((ROWS, 1), dtype=int)}, "ids must be .N., one for each row"),
        ({"ids": np.full(ROWS, 2**63, dtype=np.uint64)}, "got 9223372036854775808 in row 0"),
        ({"ids": np.full(ROWS, 0.5)}, "ids must be 64-bit integers or text, got 0.5 in row 0"),
        ({"step": np.full(ROWS, np.nan)}, "step must be 64-bit integers, got nan in row 0"),
        ({"epoch": np.full(ROWS, "a")}, "epoch must be 64-bit integers, got a in row 0"),
        ({"step": np.arange(ROWS) % 3}, "step 0 of epoch 0 goes on in row 3, after another one"),
    ],
)
def test_columns_of_wrong_shape_or_type_are_refused(tmp_path, change, message):
    data = {name: v for name, v in {**columns(), **change}.items() if v is not None}
    with pytest.raises(UsageError, match=message):
        list(open_tape(save_npz(tmp_path, data)))


def test_paths_without_a_tape_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no such tape"):
        open_tape(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="neither a tape nor a folder"):
        open_tape(tmp_path)
    with pytest.raises(UsageError, match="only tapes recorded by tacit have layers"):
        open_tape(save_npz(tmp_path, columns()), layer="0")


def test_values_that_are_not_finite_are_refused():
    data = columns()
    data["grads"][7, 1] = np.nan
    with pytest.raises(UsageError, match=r"grads of row 7 \(step 2, epoch 1\) is not finite"):
        summarise(ColumnTape.of(data))


# --- labels ---------------------------------------------------------------------------------------

BY_ID = {1: 0, 2: 1, 3: 0, 5: 1, 7: 0, 9: 1}


def read(truth, data=None):
    tape = ColumnTape.of(data or columns())
    return Truth.read(truth, tape, summarise(tape))


def test_labels_by_id_and_by_row_agree(tmp_path):
    in_rows = np.array([BY_ID[i] for i in columns()["ids"].tolist()])
    by_place = np.zeros(10, dtype=int)
    by_place[list(BY_ID)] = list(BY_ID.values())
    (tmp_path / "y.csv").write_text("id,label\n" + "".join(f"{k},{v}\n" for k, v in BY_ID.items()))
    np.save(tmp_path / "y.npy", in_rows)
    for truth in (BY_ID, in_rows, by_place, tmp_path / "y.csv", str(tmp_path / "y.npy")):
        found = read(truth)
        assert found.of(torch.tensor([9, 1, 5])).tolist() == [1, 0, 1]
        assert (found.classes, found.positives) == (2, 0.5)


def test_labels_of_text_ids(tmp_path):
    data = {"grads": np.zeros((3, 1)), "ids": np.array(["b", "a", "c"])}
    (tmp_path / "y.csv").write_text("id,label\na,1\nb,0\nc,0\nunused,1\n")
    assert read(tmp_path / "y.csv", data).of(torch.tensor([0, 1, 2])).tolist() == [0, 1, 0]
    (tmp_path / "y.csv").write_text("id,label\na,1\nb,0\n")
    with pytest.raises(UsageError, match=r"1 of 3 ids .* the first is 'c'"):
        read(tmp_path / "y.csv", data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label\n1,0\n", "5 of 6 ids of .* have no label here, the first is '2'"),
        ("name,class\n1,0\n", "the header must be id,label, got name,class"),
        ("id,label\nann,0\n", "line 2: id 'ann' with label '0'"),
        ("id,label\n1,yes\n", "line 2: id '1' with label 'yes'"),
        ("id,label\n1,nan\n", "line 2: id '1' with label 'nan'"),
        ("id,label\n1,inf\n", "line 2: id '1' with label 'inf'"),
        (f"id,label\n{2**70},1\n", "6 of 6 ids"),
        ("id,label\n" + "".join(f"{k},{v + 1}\n" for k, v in BY_ID.items()), "got 1 but no 0"),
        ("id,label\n1,0\n1,1\n", "line 3: id 1 has two labels"),
        ("id,label\n" + "".join(f"{k},1\n" for k in BY_ID), "nothing to tell apart"),
        ("id,label\n" + "".join(f"{k},{v - 1}\n" for k, v in BY_ID.items()), "got -1"),
        ("", "the header must be id,label"),
    ],
)
def test_labels_that_do_not_match_are_refused(tmp_path, text, message):
    (tmp_path / "y.csv").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path / "y.csv")
    assert "y.csv" in str(caught.value)


def test_label_arrays_that_do_not_match_are_refused(tmp_path):
    with pytest.raises(UsageError, match="has 4 labels for 12 rows"):
        read(np.array([0, 1, 0, 1]))
    with pytest.raises(UsageError, match="another one before: an example has one label"):
        read(np.arange(ROWS) % 2 * (np.arange(ROWS) < 6))
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "none.csv")
    for odd in (np.nan, np.inf):
        with pytest.raises(UsageError, match=f"label {odd} in row 3"):
            read(np.where(np.arange(ROWS) == 3, odd, 0.0))
    with pytest.raises(UsageError, match="got <U1: map them first"):
        read(np.full(ROWS, "a"))
    np.savez(tmp_path / "y.npz", y=np.zeros(ROWS))
    with pytest.raises(UsageError, match="holds several arrays"):
        read(tmp_path / "y.npz")


def test_labels_in_csv_files_of_spreadsheets(tmp_path):
    lines = "".join(f"{k}, {v}\r\n" for k, v in BY_ID.items())
    (tmp_path / "Y.CSV").write_text("\ufeffID, Label\r\n" + lines, encoding="utf-8", newline="")
    assert read(tmp_path / "Y.CSV").of(torch.tensor([9, 1, 5])).tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", ["step{}.pt", "epoch{}.pt", "grads_{}.pt", "batch-{}.pt"])
def test_one_tensor_per_step(tmp_path, name):
    grads = torch.from_numpy(columns()["grads"])
    for step, rows in enumerate(grads.split(3)):
        torch.save(rows, tmp_path / name.format(step))
    assert torch.equal(torch.cat([view.grads for view in open_tape(tmp_path)]), grads)


def test_unusual_number_types_are_converted(tmp_path):
    data = columns()
    long = {**data, "grads": data["grads"].astype(np.longdouble), "ids": data["ids"].astype(float)}
    views = list(open_tape(save_npz(tmp_path, {**long, "embeddings": np.arange(ROWS)})))
    assert np.array_equal(torch.cat([view.ids for view in views]).numpy(), data["ids"])
    assert views[0].embeddings.shape == (3, 1)
    torch.save({"grads": torch.eye(3).to_sparse(), "ids": list("abc")}, tmp_path / "x.pt")
    (view,) = open_tape(tmp_path / "x.pt")
    assert torch.equal(view.grads, torch.eye(3))


def test_parquet_rows_are_lists_of_one_width(tmp_path):
    kinds = (pa.large_list(pa.float32()), pa.list_(pa.list_(pa.float32())))
    for kind, rows in zip(kinds, ([[1.0, 2.0]] * 4, [[[1.0], [2.0]]] * 4), strict=True):
        pq.write_table(pa.table({"grads": pa.array(rows, type=kind)}), tmp_path / "x.parquet")
        (view,) = open_tape(tmp_path / "x.parquet")
        assert view.grads.tolist() == [[1.0, 2.0]] * 4
    ragged = pa.array([[1.0], [1.0, 2.0, 3.0], [1.0, 2.0]])  # two wide on average
    pq.write_table(pa.table({"grads": ragged}), tmp_path / "x.parquet")
    with pytest.raises(UsageError, match="differ in length"):
        list(open_tape(tmp_path / "x.parquet"))
