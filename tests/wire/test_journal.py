"""The journal: what was acknowledged is never lost, and no step is released as something else."""

import errno
import hashlib
import os
import struct
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from killing import killed
from tacit.errors import InputError, ParameterError, ReleaseError, ReplayError, UsageError
from tacit.runtime.journal import Journal, digest

HEADER, RECORD = 256, 88


def d(*what):
    return hashlib.sha256(repr(what).encode()).digest()


def filled(path, steps, **options):
    with Journal.open(path, run="r", **options) as journal:
        for step in range(steps):
            assert journal.record(step, d("e", step), d("r", step))
    return path


def damaged(path, at, flip=1):
    data = bytearray(path.read_bytes())
    data[at] ^= flip
    path.write_bytes(data)


@pytest.mark.parametrize("sync", ["os", "always"])
def test_what_is_recorded_is_found_again(tmp_path, sync):
    path = filled(tmp_path / "j", 5, sync=sync)
    with Journal.open(path, run="r", sync=sync) as journal:
        assert journal.last.step == 4
        for step in range(5):
            entry = journal.find(step)
            assert (entry.embedding, entry.release) == (d("e", step), d("r", step))
        assert journal.find(5) is None
        assert journal.cut == 0
    assert path.stat().st_size == HEADER + 5 * RECORD
    assert path.stat().st_mode & 0o077 == 0


def test_an_empty_journal_has_no_last(tmp_path):
    with Journal.open(tmp_path / "j", run="r") as journal:
        assert journal.last is None
        assert journal.find(0) is None


def test_a_resend_is_allowed_and_takes_no_room(tmp_path):
    path = filled(tmp_path / "j", 3)
    with Journal.open(path, run="r") as journal:
        assert not journal.record(2, d("e", 2), d("r", 2))
        assert not journal.record(0, d("e", 0), d("r", 0))
    assert path.stat().st_size == HEADER + 3 * RECORD


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("reopened", [False, True])
def test_other_content_for_a_step_is_refused(tmp_path, step, reopened):
    journal = Journal.open(tmp_path / "j", run="r")
    for number in range(3):
        journal.record(number, d("e", number), d("r", number))
    if reopened:
        journal.close()
        journal = Journal.open(tmp_path / "j", run="r")
    with journal:
        with pytest.raises(ReplayError, match=f"step {step} was released before with another"):
            journal.record(step, d("other"), d("r", step))
        near = bytearray(d("r", step))
        near[17] ^= 1
        with pytest.raises(ReplayError, match=rf"as other bytes.*allow_again\({step}\)"):
            journal.record(step, d("e", step), bytes(near))
        assert journal.find(step).release == d("r", step)


def test_a_step_that_was_passed_over_is_refused(tmp_path):
    with Journal.open(tmp_path / "j", run="r") as journal:
        journal.record(3, d(1), d(2))
        journal.record(7, d(1), d(2))
        assert journal.find(5) is None
        with pytest.raises(ReplayError, match="ascending order, got 5 after 7"):
            journal.record(5, d(1), d(2))
        with pytest.raises(UsageError, match="step 5 was never released"):
            journal.allow_again(5)


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("reopen", [False, True])
def test_the_operator_allows_a_step_once_more_and_it_is_counted(tmp_path, step, reopen):
    journal = Journal.open(filled(tmp_path / "j", 5), run="r")

    def again():
        nonlocal journal
        if reopen:
            journal.close()
            journal = Journal.open(tmp_path / "j", run="r")

    journal.allow_again(step)
    again()
    journal.allow_again(step)  # not used yet, so it is the same permission
    assert not journal.record(step, d("e", step), d("r", step))
    again()
    assert journal.record(step, d("new"), d("new r"))
    again()
    assert journal.allowed == {step: 1}
    assert journal.find(step).release == d("new r")
    assert journal.find(step - 1).release == d("r", step - 1)
    assert journal.last.step == 4
    assert not journal.record(step, d("new"), d("new r"))
    for content in (d("e", step), d("third")):
        with pytest.raises(ReplayError):
            journal.record(step, content, d("r", step))
    journal.allow_again(step)
    again()
    assert journal.allowed == {step: 2}
    assert journal.record(5, d("e", 5), d("r", 5))
    journal.close()


def test_cut_at_every_byte_of_the_last_record(tmp_path):
    whole = filled(tmp_path / "j", 4).read_bytes()
    for size in range(len(whole) - RECORD, len(whole)):
        (tmp_path / "t").write_bytes(whole[:size])
        with Journal.open(tmp_path / "t", run="r") as journal:
            assert journal.last.step == 2
            assert journal.cut == size - (len(whole) - RECORD)
            assert journal.record(3, d("e", 3), d("r", 3))
        assert (tmp_path / "t").read_bytes() == whole


def test_cut_at_every_byte_of_the_header(tmp_path):
    whole = filled(tmp_path / "j", 1).read_bytes()
    for size in range(HEADER + 1):
        (tmp_path / "t").write_bytes(whole[:size])
        with Journal.open(tmp_path / "t", run="r") as journal:
            assert journal.last is None
        assert (tmp_path / "t").read_bytes() == whole[:HEADER]


def test_a_flipped_bit_costs_the_last_record_and_is_refused_before(tmp_path):
    path = filled(tmp_path / "j", 3)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole)
        damaged(path, at, 1 << at % 8)
        if at < HEADER:
            with pytest.raises(UsageError):
                Journal.open(path, run="r")
        elif at < HEADER + 2 * RECORD:
            with pytest.raises(ReleaseError, match=r"record [01] of 3 is damaged.*restore"):
                Journal.open(path, run="r")
            assert len(path.read_bytes()) == len(whole)
        else:
            with Journal.open(path, run="r") as journal:
                assert (journal.last.step, journal.cut) == (1, RECORD)


def test_more_than_one_torn_record_is_damage(tmp_path):
    path = filled(tmp_path / "j", 3)
    damaged(path, HEADER + 2 * RECORD + 5)
    path.write_bytes(path.read_bytes() + b"\0" * 10)
    with pytest.raises(ReleaseError, match="record 2 of 3 is damaged"):
        Journal.open(path, run="r")


def test_records_do_not_pass_in_another_place(tmp_path):
    whole = filled(tmp_path / "j", 4).read_bytes()
    second, third = (whole[HEADER + n * RECORD :][:RECORD] for n in (1, 2))
    (tmp_path / "j").write_bytes(whole.replace(second + third, third + second))
    with pytest.raises(ReleaseError, match="record 1 of 4"):
        Journal.open(tmp_path / "j", run="r")


def test_another_run_a_future_format_and_another_file_are_refused_by_name(tmp_path):
    path = filled(tmp_path / "j", 1)
    with pytest.raises(UsageError, match="journal of run 'r', not of 'q'"):
        Journal.open(path, run="q")
    data = bytearray(path.read_bytes())
    data[8:10] = struct.pack("<H", 2)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="journal of format 2, this is format 1"):
        Journal.open(path, run="r")
    for content in (b"id,label\n", b"x" * 1000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not a journal"):
            Journal.open(path, run="r")
        assert path.read_bytes() == content
    with pytest.raises(UsageError, match="cannot be opened: No such file"):
        Journal.open(tmp_path / "none" / "j", run="r")


def test_one_process_at_a_time(tmp_path):
    with (
        Journal.open(tmp_path / "j", run="r"),
        pytest.raises(UsageError, match="another process holds it"),
    ):
        Journal.open(tmp_path / "j", run="r")
    Journal.open(tmp_path / "j", run="r").close()


def test_wrong_arguments(tmp_path):
    for run in ("", "é" * 121):
        with pytest.raises(ParameterError, match="1 to 240 bytes"):
            Journal.open(tmp_path / "j", run=run)
    with pytest.raises(ParameterError, match='"os" or "always"'):
        Journal.open(tmp_path / "j", run="r", sync="never")
    with Journal.open(tmp_path / "j", run="é" * 120) as journal:
        for step in (-1, 2**63):
            with pytest.raises(InputError, match="whole number from 0"):
                journal.record(step, d(1), d(2))
        for wrong in (b"short", "x" * 32, None):
            with pytest.raises(InputError, match="32 bytes"):
                journal.record(0, d(1), wrong)
        assert journal.record(2**63 - 1, d(1), d(2))


@pytest.mark.parametrize("written", [0, 1, 50, 87])
def test_a_full_disk_leaves_no_trace_and_space_helps(tmp_path, monkeypatch, written):
    path = filled(tmp_path / "j", 2)
    real, calls = os.pwrite, []

    def full(file, data, place):
        calls.append(place)
        if written and len(calls) == 1:
            return real(file, data[:written], place)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal.open(path, run="r") as journal:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(ReleaseError, match=r"step 2 could not be recorded.*No space left"):
            journal.record(2, d("e", 2), d("r", 2))
        assert path.stat().st_size == HEADER + 2 * RECORD
        assert journal.find(2) is None
        monkeypatch.undo()
        assert journal.record(2, d("e", 2), d("r", 2))
    with Journal.open(path, run="r") as journal:
        assert journal.last.step == 2


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: real(f, data[:7], at))
    path = filled(tmp_path / "j", 3)
    monkeypatch.undo()
    assert path.read_bytes() == filled(tmp_path / "k", 3).read_bytes()


def test_after_a_failed_sync_the_journal_is_opened_again(tmp_path, monkeypatch):
    def failing(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = filled(tmp_path / "j", 2)
    with Journal.open(path, run="r", sync="always") as journal:
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(ReleaseError, match="nothing may be sent"):
            journal.record(2, d("e", 2), d("r", 2))
        monkeypatch.undo()
        with pytest.raises(ReleaseError, match="open the journal again"):
            journal.record(2, d("e", 2), d("r", 2))
    with Journal.open(path, run="r", sync="always") as journal:
        journal.record(2, d("e", 2), d("r", 2))
        assert journal.last.step == 2


def test_old_steps_are_read_from_the_file(tmp_path):
    count = 70_000  # more than is read at a time
    filled(tmp_path / "j", count)
    with Journal.open(tmp_path / "j", run="r") as journal:
        for step in range(0, count, 331):
            assert journal.find(step).embedding == d("e", step)
        assert not journal._places


def test_the_format_is_version_1_as_described(tmp_path):
    with Journal.open(filled(tmp_path / "j", 3), run="r") as journal:
        journal.allow_again(1)
        journal.record(1, d("n"), d("m"))
    header = b"tacitjnl" + struct.pack("<HH", 1, 1) + b"r".ljust(240, b"\0")
    header += struct.pack("<I", crc32(header))
    expected = header
    again = [(2, 1, 2, bytes(64)), (1, 1, 2, d("n") + d("m"))]
    first = [(1, step, step, d("e", step) + d("r", step)) for step in range(3)]
    for place, (kind, step, high, digests) in enumerate(first + again):
        body = struct.pack("<Iqq", kind, step, high) + digests
        expected += body + struct.pack("<I", crc32(body, (crc32(header) + place) % 2**32))
    assert (tmp_path / "j").read_bytes() == expected


STEPS = st.integers(0, 6)
ACTS = st.tuples(
    st.sampled_from(["record", "record", "record", "allow", "open"]),
    STEPS, st.integers(0, 1), st.integers(0, 1),
)  # fmt: skip


@given(acts=st.lists(ACTS, max_size=30))
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_a_dictionary(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("model") / "j"
    journal, held, pending, counts = Journal.open(path, run="r"), {}, set(), {}
    for act, step, embedding, release in acts:
        content = d("e", embedding), d("r", release)
        if act == "open":
            journal.close()
            journal = Journal.open(path, run="r")
        elif act == "allow" and step in held:
            journal.allow_again(step)
            counts[step] = counts.get(step, 0) + (step not in pending)
            pending.add(step)
        elif act == "record" and held.get(step) == content:
            assert not journal.record(step, *content)
        elif act == "record" and (step in pending or step > max(held, default=-1)):
            assert journal.record(step, *content)
            held[step] = content
            pending.discard(step)
        elif act == "record":
            with pytest.raises(ReplayError):
                journal.record(step, *content)
        found = {s: journal.find(s) for s in range(8)}
        assert {s: (e.embedding, e.release) for s, e in found.items() if e} == held
        assert journal.allowed == counts
        assert (journal.last.step if held else None) == max(held, default=None)
    journal.close()


def test_digests_see_type_shape_and_every_bit():
    base = torch.arange(6.0).reshape(2, 3)
    same = base.t().contiguous().t().requires_grad_()
    assert digest(same) == digest(base)
    assert len(digest(base)) == 32
    others = [
        base.reshape(3, 2), base.reshape(6), base.double(), base.view(torch.int32),
        torch.cat([-base[:1], base[1:]]), base.bfloat16(), base[:0], torch.tensor(0.0),
        torch.tensor(-0.0), torch.zeros(1), torch.zeros(0),
    ]  # fmt: skip
    assert len({digest(x) for x in [base, *others]}) == len(others) + 1


CHILD = """
import hashlib, os, sys
from tacit.runtime.journal import Journal
path, acks = sys.argv[1:]
def d(*what):
    return hashlib.sha256(repr(what).encode()).digest()
def work():
    ack = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    journal = Journal.open(path, run="r")
    step = 0 if journal.last is None else journal.last.step
    while True:
        journal.record(step, d("e", step), d("r", step))
        os.write(ack, step.to_bytes(8, "little"))
        step += 1
for _ in sys.stdin:
    child = os.fork()
    if not child:
        work()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path):
    path, acks, before = tmp_path / "j", tmp_path / "acks", -1
    for _ in killed(CHILD, path, acks, times=10, seed=1, longest=0.2):
        data = acks.read_bytes() if acks.exists() else b""
        last = max((step for (step,) in struct.iter_unpack("<q", data)), default=-1)
        with Journal.open(path, run="r") as journal:
            end = -1 if journal.last is None else journal.last.step
            assert last <= end <= last + 1
            for step in range(before + 1, end + 1):
                assert journal.find(step).release == d("r", step)
        before = end
    assert before > 100
