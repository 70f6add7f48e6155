"""Tapes that were cut off, continued, damaged or misused: nothing is lost without a word."""

import numpy as np
import pytest
import torch

from tacit.errors import InputError, UsageError
from tacit.tape.tape import RecordedTape, TapeWriter


def write(path, steps=3, *, ids=None):
    with TapeWriter(path, append=True) as tape:
        for step in range(steps):
            grads = torch.randn(5, 2, generator=torch.Generator().manual_seed(step))
            tape.append(torch.arange(5) if ids is None else ids, grads)


def part(path, number=0):
    return path / f"part-{number:05d}.arrows"


@pytest.mark.parametrize("size", [0, 50, 200])
def test_a_part_truncated_in_its_header_does_not_affect_other_parts(tmp_path, size):
    write(tmp_path / "x.tape")
    part(tmp_path / "x.tape", 1).write_bytes(part(tmp_path / "x.tape").read_bytes()[:size])
    tape = RecordedTape(tmp_path / "x.tape")
    assert [view.step for view in tape] == [0, 1, 2]
    assert (tape.damaged, len(tape)) == (1, 15)
    write(tmp_path / "x.tape", steps=1)
    tape = RecordedTape(tmp_path / "x.tape")  # a run that broke off and went on
    assert [(view.step, tape.damaged) for view in tape] == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_append_never_overwrites_a_part(tmp_path):
    write(tmp_path / "x.tape")
    part(tmp_path / "x.tape").rename(part(tmp_path / "x.tape", 1))
    before = part(tmp_path / "x.tape", 1).read_bytes()
    write(tmp_path / "x.tape", steps=1)
    assert part(tmp_path / "x.tape", 1).read_bytes() == before
    assert part(tmp_path / "x.tape", 2).exists()


def test_append_counts_epochs_by_text_ids(tmp_path):
    for _ in range(2):
        write(tmp_path / "x.tape", steps=1, ids=list("abcde"))
    assert [view.epoch for view in RecordedTape(tmp_path / "x.tape")] == [0, 1]


def test_flipped_bits_are_never_read_as_data_and_never_crash(tmp_path):
    """Every 5th byte after the first batch: batch headers, notes and values."""
    write(tmp_path / "x.tape")
    good = [
        (view.step, view.ids.tolist(), view.grads) for view in RecordedTape(tmp_path / "x.tape")
    ]
    content = part(tmp_path / "x.tape").read_bytes()
    for place in range(len(content) // 2, len(content), 5):
        bad = bytearray(content)
        bad[place] ^= 1 << place % 8
        part(tmp_path / "x.tape").write_bytes(bytes(bad))
        tape = RecordedTape(tmp_path / "x.tape")
        views = {view.step: view for view in tape}
        assert 0 in views
        for step, ids, grads in good:
            if step in views:
                assert views[step].ids.tolist() == ids
                assert torch.equal(views[step].grads, grads)
        assert len(views) == 3 or tape.damaged


def test_a_step_that_is_refused_does_not_count(tmp_path):
    with TapeWriter(tmp_path / "x.tape") as tape:
        with pytest.raises(InputError, match="grad must have 2 rows"):
            tape.append(torch.arange(2), torch.ones(3, 1))
        tape.append(torch.arange(2), torch.ones(2, 1))
    assert [(view.step, view.epoch) for view in RecordedTape(tmp_path / "x.tape")] == [(0, 0)]


def test_arrays_are_written_like_tensors(tmp_path):
    with TapeWriter(tmp_path / "x.tape") as tape:
        tape.append(np.arange(2), np.ones((2, 3), dtype=np.float32))
    (view,) = RecordedTape(tmp_path / "x.tape")
    assert torch.equal(view.grads, torch.ones(2, 3))


def test_values_that_cannot_be_written_are_refused(tmp_path):
    tape = TapeWriter(tmp_path / "x.tape")
    with pytest.raises(InputError, match=r"got None: call retain_grad\(\)"):
        tape.append([1, 2], None)
    with pytest.raises(InputError, match=r"ids must be below 2\*\*63"):
        tape.append(np.array([2**63], dtype=np.uint64), torch.ones(1, 1))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file: cannot be made: File exists"):
        TapeWriter(tmp_path / "file")
