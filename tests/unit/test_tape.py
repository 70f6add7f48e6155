"""The tape: what is written comes back, and damage costs only what is damaged."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tacit.errors import InputError, UsageError
from tacit.tape.tape import RecordedTape, TapeWriter

GOLDEN = Path(__file__).parents[1] / "golden" / "tape_v1.tape"


def write(path, steps=4, rows=8, *, width=3, embeddings=True, append=False):
    rng = torch.Generator().manual_seed(0)
    kept = []
    with TapeWriter(path, append=append) as tape:
        for _ in range(steps):
            grads = torch.randn(rows, width, generator=rng)
            sent = torch.randn(rows, 2, generator=rng) if embeddings else None
            tape.append(torch.arange(rows), grads, embeddings=sent)
            kept.append((grads, sent))
    return kept


def part(path):
    return path / "part-00000.arrows"


def frames(path):
    """Return where each record batch of a part ends."""
    ends = []
    with pa.OSFile(str(part(path))) as file:
        reader = pa.ipc.open_stream(file)
        while True:
            try:
                reader.read_next_batch()
            except StopIteration:
                return ends
            ends.append(file.tell())


def test_a_tape_reads_back_bit_for_bit(tmp_path):
    kept = write(tmp_path / "x.tape")
    tape = RecordedTape(tmp_path / "x.tape")
    views = list(tape)
    assert len(tape) == 32
    assert [view.step for view in views] == [0, 1, 2, 3]
    assert [view.epoch for view in views] == [0, 1, 2, 3]  # the same ids in every step
    for view, (grads, sent) in zip(views, kept, strict=True):
        assert torch.equal(view.grads, grads)
        assert torch.equal(view.embeddings, sent)
        assert view.ids.tolist() == list(range(8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_any_float_type_and_any_shape(tmp_path, dtype):
    grads = torch.randn(5, 2, 3).to(dtype)
    with TapeWriter(tmp_path / "x.tape") as tape:
        tape.append(torch.arange(5), grads)
    (view,) = RecordedTape(tmp_path / "x.tape")
    assert torch.equal(view.grads.double(), grads.double().reshape(5, 6))
    assert view.embeddings is None


def test_ids_may_be_text(tmp_path):
    with TapeWriter(tmp_path / "x.tape") as tape:
        tape.append(["ann", "bob"], torch.ones(2, 1))
        tape.append(["cid", "ann"], torch.ones(2, 1))
    tape = RecordedTape(tmp_path / "x.tape")
    assert [(view.ids.tolist(), view.epoch) for view in tape] == [([0, 1], 0), ([2, 0], 1)]
    assert tape.names == {"ann": 0, "bob": 1, "cid": 2}


def test_layers_are_read_by_name(tmp_path):
    with TapeWriter(tmp_path / "x.tape") as tape:
        tape.append(torch.arange(2), torch.ones(2, 3), layers={"0": torch.full((2, 4), 7.0)})
    (view,) = RecordedTape(tmp_path / "x.tape", layer="0")
    assert torch.equal(view.grads, torch.full((2, 4), 7.0))
    with pytest.raises(UsageError, match=r"has no layer:9, it has .*layer:0"):
        RecordedTape(tmp_path / "x.tape", layer="9")


def test_append_continues_a_tape(tmp_path):
    write(tmp_path / "x.tape", steps=2)
    write(tmp_path / "x.tape", steps=2, append=True)
    tape = RecordedTape(tmp_path / "x.tape")
    assert [(view.step, view.epoch) for view in tape] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert len(list((tmp_path / "x.tape").iterdir())) == 2  # nothing that was written is touched


def test_another_run_is_not_added_to_a_tape(tmp_path):
    write(tmp_path / "x.tape", steps=2)
    before = part(tmp_path / "x.tape").read_bytes()
    with pytest.raises(UsageError, match=r"x\.tape: holds a tape already.* pass append=True"):
        TapeWriter(tmp_path / "x.tape")
    assert [view.step for view in RecordedTape(tmp_path / "x.tape")] == [0, 1]
    assert part(tmp_path / "x.tape").read_bytes() == before


@pytest.mark.parametrize("missing", [1, 40, 300])
def test_a_truncated_file_loses_only_its_last_batch(tmp_path, missing):
    write(tmp_path / "x.tape", rows=64)
    end = frames(tmp_path / "x.tape")[-1]
    os.truncate(part(tmp_path / "x.tape"), end - missing)
    tape = RecordedTape(tmp_path / "x.tape")
    assert [view.step for view in tape] == [0, 1, 2]
    assert tape.damaged == 1
    with TapeWriter(tmp_path / "x.tape", append=True) as more:
        more.append(torch.arange(64), torch.ones(64, 3), embeddings=torch.ones(64, 2))
    assert [view.step for view in RecordedTape(tmp_path / "x.tape")] == [0, 1, 2, 3]


def test_a_flipped_bit_loses_only_its_batch(tmp_path):
    write(tmp_path / "x.tape", rows=64)
    place = frames(tmp_path / "x.tape")[1] - 20  # inside the second batch's values
    content = bytearray(part(tmp_path / "x.tape").read_bytes())
    content[place] ^= 1
    part(tmp_path / "x.tape").write_bytes(bytes(content))
    tape = RecordedTape(tmp_path / "x.tape")
    assert [view.step for view in tape] == [0, 2, 3]
    assert tape.damaged == 1


def test_a_tape_without_readable_batches_is_refused(tmp_path):
    write(tmp_path / "x.tape", steps=1)
    os.truncate(part(tmp_path / "x.tape"), frames(tmp_path / "x.tape")[0] - 9)
    with pytest.raises(UsageError, match=r"holds no readable batch \(1 damaged\)"):
        list(RecordedTape(tmp_path / "x.tape"))


def test_foreign_and_future_files_are_refused_by_name(tmp_path):
    folder = tmp_path / "x.tape"
    folder.mkdir()
    part(folder).write_bytes(b"not arrow at all")
    with pytest.raises(UsageError, match=r"part-00000.arrows: not an Arrow stream"):
        RecordedTape(folder)
    for metadata, message in ((None, "not a tape"), ({"tacit_tape": "99"}, "tape of format 99")):
        table = pa.table({"grad": [1.0]}).replace_schema_metadata(metadata)
        with pa.ipc.new_stream(str(part(folder)), table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(UsageError, match=message):
            RecordedTape(folder)
    with pytest.raises(UsageError, match="there is no part-00000"):
        RecordedTape(tmp_path)


def test_misuse_of_the_writer(tmp_path):
    tape = TapeWriter(tmp_path / "x.tape")
    with pytest.raises(InputError, match="grad must have 2 rows"):
        tape.append(torch.arange(2), torch.ones(3, 1))
    with pytest.raises(InputError, match="ids must be"):
        tape.append(torch.ones(2), torch.ones(2, 1))
    tape.append(torch.arange(2), torch.ones(2, 1))
    with pytest.raises(InputError, match="start another tape"):
        tape.append(torch.arange(2), torch.ones(2, 4))
    tape.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        TapeWriter(tmp_path / "other")


def test_the_first_format_stays_readable():
    views = list(RecordedTape(GOLDEN))
    assert [(view.step, view.epoch, view.ids.tolist()) for view in views] == [
        (0, 0, [3, 1]),
        (1, 1, [1, 3]),
    ]
    expected = np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 8
    assert torch.equal(torch.stack([view.grads for view in views]), torch.from_numpy(expected))
    assert torch.equal(views[1].embeddings, torch.tensor([[0.5], [0.25]]))
