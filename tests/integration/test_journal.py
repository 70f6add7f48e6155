"""The journal: what was acknowledged is never lost, and no step is released as something else."""

import errno
import hashlib
import hmac
import os
import struct
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from killing import killed
from tacit.errors import (
    InputError,
    ParameterError,
    PeerError,
    ReleaseError,
    ReplayError,
    UsageError,
)
from tacit.party.journal import Journal, digest

HEADER, RECORD = 256, 112
SECRET = bytes(range(32))


def opened(path, *, run="r", **options):
    return Journal.open(path, run=run, **{"secret": SECRET, **options})


def d(*what):
    return hashlib.sha256(repr(what).encode()).digest()


def filled(path, steps, **options):
    with opened(path, **options) as journal:
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
    with opened(path, sync=sync) as journal:
        assert journal.last.step == 4
        for step in range(5):
            entry = journal.find(step)
            assert (entry.embedding, entry.release) == (d("e", step), d("r", step))
        assert journal.find(5) is None
        assert journal.cut == 0
    assert path.stat().st_size == HEADER + 5 * RECORD
    assert path.stat().st_mode & 0o077 == 0


def test_an_empty_journal_has_no_last(tmp_path):
    with opened(tmp_path / "j") as journal:
        assert journal.last is None
        assert journal.find(0) is None


def test_a_resend_is_allowed_and_takes_no_room(tmp_path):
    path = filled(tmp_path / "j", 3)
    with opened(path) as journal:
        assert not journal.record(2, d("e", 2), d("r", 2))
        assert not journal.record(0, d("e", 0), d("r", 0))
    assert path.stat().st_size == HEADER + 3 * RECORD


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("reopened", [False, True])
def test_other_content_for_a_step_is_refused(tmp_path, step, reopened):
    journal = opened(tmp_path / "j")
    for number in range(3):
        journal.record(number, d("e", number), d("r", number))
    if reopened:
        journal.close()
        journal = opened(tmp_path / "j")
    with journal:
        with pytest.raises(ReplayError, match=f"step {step} was released before with another"):
            journal.record(step, d("other"), d("r", step))
        near = bytearray(d("r", step))
        near[17] ^= 1
        with pytest.raises(ReplayError, match=rf"as other bytes.*allow_again\({step}\)"):
            journal.record(step, d("e", step), bytes(near))
        assert journal.find(step).release == d("r", step)


def test_a_step_that_was_passed_over_is_refused(tmp_path):
    with opened(tmp_path / "j") as journal:
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
    journal = opened(filled(tmp_path / "j", 5))

    def again():
        nonlocal journal
        if reopen:
            journal.close()
            journal = opened(tmp_path / "j")

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
        with opened(tmp_path / "t") as journal:
            assert journal.last.step == 2
            assert journal.cut == size - (len(whole) - RECORD)
            assert journal.record(3, d("e", 3), d("r", 3))
        assert (tmp_path / "t").read_bytes() == whole


def test_cut_at_every_byte_of_the_header(tmp_path):
    whole = filled(tmp_path / "j", 1).read_bytes()
    for size in range(HEADER + 1):
        (tmp_path / "t").write_bytes(whole[:size])
        with opened(tmp_path / "t") as journal:
            assert journal.last is None
        assert (tmp_path / "t").read_bytes() == whole[:HEADER]


def test_a_flipped_bit_anywhere_is_damage_and_changes_nothing(tmp_path):
    """In the last record too: only a part of a record can be a write that was interrupted."""
    path = filled(tmp_path / "j", 3)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole)
        damaged(path, at, 1 << at % 8)
        if at < HEADER:
            with pytest.raises(UsageError):
                opened(path)
        else:
            number = (at - HEADER) // RECORD
            with pytest.raises(ReleaseError, match=rf"record {number} of 3 is damaged.*restore"):
                opened(path)
        assert len(path.read_bytes()) == len(whole)


def test_a_torn_record_after_a_damaged_one_is_damage(tmp_path):
    path = filled(tmp_path / "j", 3)
    damaged(path, HEADER + 2 * RECORD + 5)
    path.write_bytes(path.read_bytes() + b"\0" * 10)
    with pytest.raises(ReleaseError, match="record 2 of 3 is damaged"):
        opened(path)


def test_records_do_not_pass_at_another_position(tmp_path):
    whole = filled(tmp_path / "j", 4).read_bytes()
    second, third = (whole[HEADER + n * RECORD :][:RECORD] for n in (1, 2))
    (tmp_path / "j").write_bytes(whole.replace(second + third, third + second))
    with pytest.raises(ReleaseError, match="record 1 of 4"):
        opened(tmp_path / "j")


def test_another_run_a_future_format_and_another_file_are_refused_by_name(tmp_path):
    path = filled(tmp_path / "j", 1)
    with pytest.raises(UsageError, match="journal of run 'r', not of 'q'"):
        opened(path, run="q")
    data = bytearray(path.read_bytes())
    for version in (1, 3):
        data[8:10] = struct.pack("<H", version)
        path.write_bytes(data)
        with pytest.raises(UsageError, match=rf"journal of format {version}, this is format 2: .*"):
            opened(path)
    for content in (b"id,label\n", b"x" * 1000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not a journal"):
            opened(path)
        assert path.read_bytes() == content
    with pytest.raises(UsageError, match="cannot be opened: No such file"):
        opened(tmp_path / "none" / "j")


def test_one_process_at_a_time(tmp_path):
    with (
        opened(tmp_path / "j"),
        pytest.raises(UsageError, match="another process holds it"),
    ):
        opened(tmp_path / "j")
    opened(tmp_path / "j").close()


def test_wrong_arguments(tmp_path):
    for run in ("", "é" * 121):
        with pytest.raises(ParameterError, match="1 to 240 bytes"):
            opened(tmp_path / "j", run=run)
    with pytest.raises(ParameterError, match='"os" or "always"'):
        opened(tmp_path / "j", sync="never")
    with opened(tmp_path / "j", run="é" * 120) as journal:
        for step in (-1, 2**63):
            with pytest.raises(InputError, match="whole number from 0"):
                journal.record(step, d(1), d(2))
        for wrong in (b"short", "x" * 32, None):
            with pytest.raises(InputError, match="32 bytes"):
                journal.record(0, d(1), wrong)
        assert journal.record(2**63 - 1, d(1), d(2))


@pytest.mark.parametrize("written", [0, 1, 50, 111])
def test_a_full_disk_leaves_no_trace_and_space_helps(tmp_path, monkeypatch, written):
    path = filled(tmp_path / "j", 2)
    real, calls = os.pwrite, []

    def full(file, data, position):
        calls.append(position)
        if written and len(calls) == 1:
            return real(file, data[:written], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(path) as journal:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(ReleaseError, match=r"step 2 could not be recorded.*No space left"):
            journal.record(2, d("e", 2), d("r", 2))
        assert path.stat().st_size == HEADER + 2 * RECORD
        assert journal.find(2) is None
        monkeypatch.undo()
        assert journal.record(2, d("e", 2), d("r", 2))
    with opened(path) as journal:
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
    with opened(path, sync="always") as journal:
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(ReleaseError, match="nothing may be sent"):
            journal.record(2, d("e", 2), d("r", 2))
        monkeypatch.undo()
        with pytest.raises(ReleaseError, match="open the journal again"):
            journal.record(2, d("e", 2), d("r", 2))
    with opened(path, sync="always") as journal:
        journal.record(2, d("e", 2), d("r", 2))
        assert journal.last.step == 2


def test_old_steps_are_read_from_the_file(tmp_path):
    count = 70_000  # more than is read at a time
    filled(tmp_path / "j", count)
    with opened(tmp_path / "j") as journal:
        for step in range(0, count, 331):
            assert journal.find(step).embedding == d("e", step)
        assert not journal._positions


def test_the_format_is_version_2_as_described(tmp_path):
    with opened(filled(tmp_path / "j", 3)) as journal:
        assert journal.record_evaluation(2, d("x"), bytes(32))
        journal.allow_again(1)
        journal.record(1, d("n"), d("m"))
        content = hmac.digest(journal_key(b"mark"), b"content", "sha256")
        assert journal.mark(b"content") == content
    expected, code = header(), code_of(header())
    first = [(1, step, step, d("e", step) + d("r", step)) for step in range(3)]
    then = [(3, 2, 2, d("x") + bytes(32)), (2, 1, 2, bytes(64)), (1, 1, 2, d("n") + d("m"))]
    for number, (kind, step, high, marks) in enumerate(first + then):
        body = struct.pack("<qqqq", number, kind, step, high) + marks
        code = code_of(code + body)
        expected += body + code
    assert (tmp_path / "j").read_bytes() == expected


def header():
    made = b"tacitjnl" + struct.pack("<HH", 2, 1) + b"r".ljust(240, b"\0")
    return made + struct.pack("<I", crc32(made))


def code_of(content):
    return hashlib.blake2b(content, key=journal_key(b"code"), digest_size=16).digest()


def journal_key(purpose):
    return hmac.digest(SECRET, b"tacit journal " + purpose + header(), "sha256")


# --- evaluations ---


@pytest.mark.parametrize("reopened", [False, True])
def test_an_evaluation_is_answered_once_and_then_only_as_it_was(tmp_path, reopened):
    journal = opened(filled(tmp_path / "j", 3))
    assert journal.evaluation(2) is None
    assert journal.record_evaluation(2, d("x"), d("a"))
    if reopened:
        journal.close()
        journal = opened(tmp_path / "j")
    with journal:
        assert not journal.record_evaluation(2, d("x"), d("a"))
        with pytest.raises(ReplayError, match="after step 2 was answered before for other"):
            journal.check_evaluation(2, d("y"))
        with pytest.raises(ReplayError, match="after step 2 was answered before for other"):
            journal.record_evaluation(2, d("y"), d("a"))
        with pytest.raises(ReplayError, match="came out differently"):
            journal.record_evaluation(2, d("x"), d("b"))
        assert journal.evaluations(2) == 1
        for step in (0, 1, 3):
            with pytest.raises(ReplayError, match=f"after step {step} is not due"):
                journal.check_evaluation(step, d("x"))
        assert journal.find(2).release == d("r", 2)
        assert journal.record(3, d("e", 3), d("r", 3))
        assert not journal.record_evaluation(2, d("x"), d("a"))
        assert [journal.find(step).release for step in range(4)] == [d("r", s) for s in range(4)]


def test_the_operator_allows_an_evaluation_with_its_step(tmp_path):
    with opened(filled(tmp_path / "j", 3)) as journal:
        journal.record_evaluation(2, d("x"), d("a"))
        journal.allow_again(2)
    with opened(tmp_path / "j") as journal:
        assert journal.record_evaluation(2, d("y"), d("b"))
        assert journal.evaluations(2) == 2
        with pytest.raises(ReplayError):
            journal.record_evaluation(2, d("x"), d("a"))


# --- records that come back ---


def test_records_of_its_own_bring_an_older_copy_up_to_date(tmp_path):
    path, copy = filled(tmp_path / "j", 5), filled(tmp_path / "k", 2)
    with opened(path) as journal:
        journal.record_evaluation(4, d("x"), d("a"))
        journal.allow_again(3)
        newer = journal.read(2, 100)
    with opened(copy) as journal:
        journal.take_back(newer[: 2 * RECORD])
        journal.take_back(newer[2 * RECORD :])
        assert journal.last.step == 4
        assert journal.allowed == {3: 1}
        with pytest.raises(ReplayError, match="step 4 was released before with another"):
            journal.check(4, d("other"))
        with pytest.raises(ReplayError, match="after step 4 was answered before"):
            journal.check_evaluation(4, d("y"))
    assert copy.read_bytes() == path.read_bytes()


def changed(data, at):
    spoilt = bytearray(data)
    spoilt[at] ^= 1
    return bytes(spoilt)


def test_only_its_own_next_records_are_taken_all_or_none(tmp_path):
    with opened(filled(tmp_path / "j", 6)) as journal:
        right = journal.read(2, 3)
        later = journal.read(3, 3)
    other = filled(tmp_path / "s", 6, secret=bytes(32))
    with opened(other, secret=bytes(32)) as journal:
        foreign = journal.read(2, 3)
    named = tmp_path / "n"
    with opened(named, run="q") as journal:
        for step in range(6):
            journal.record(step, d("e", step), d("r", step))
        of_another_run = journal.read(2, 3)
    wrong = [b"", later, foreign, of_another_run, right[RECORD:], right + right[:RECORD]]
    wrong += [right[:-1], right + b"x", *(changed(right, at) for at in range(len(right)))]
    copy = filled(tmp_path / "k", 2)
    before = copy.read_bytes()
    with opened(copy) as journal:
        for data in wrong:
            with pytest.raises(PeerError):
                journal.take_back(data)
        assert copy.read_bytes() == before
        journal.take_back(right)
        assert journal.last.step == 4


def test_records_do_not_pass_after_another_history(tmp_path):
    """A copy that went on by itself is not mended with what came after the original."""
    with opened(filled(tmp_path / "j", 5)) as journal:
        right = journal.read(3, 2)
    with opened(filled(tmp_path / "k", 2)) as journal:
        journal.record(2, d("other"), d("r", 2))
        with pytest.raises(PeerError, match="does not continue the label party's journal"):
            journal.take_back(right)


# --- the witness ---


@pytest.mark.parametrize("sync", ["os", "always"])
def test_a_copy_that_is_behind_its_witness_records_nothing(tmp_path, sync):
    witness = tmp_path / "w"
    path = filled(tmp_path / "j", 2, witness=witness, sync=sync)
    old = path.read_bytes()
    with opened(path, witness=witness, sync=sync) as journal:
        assert journal.behind is None
        for step in range(2, 5):
            journal.record(step, d("e", step), d("r", step))
        newer = journal.read(2, 3)
    whole = path.read_bytes()
    path.write_bytes(old)
    with opened(path, witness=witness, sync=sync) as journal:
        for act in (lambda: journal.record(2, d("other"), d("r")), lambda: journal.allow_again(1)):
            with pytest.raises(ReleaseError, match=r"5 answers were recorded, and .* has 2 of"):
                act()
        journal.take_back(newer[:RECORD])
        assert "5 answers were recorded" in journal.behind
        journal.take_back(newer[RECORD:])
        assert journal.behind is None
        assert journal.record(5, d("e", 5), d("r", 5))
    assert path.read_bytes()[: len(whole)] == whole
    assert b"records 00000000000000000006 step 00000000000000000005" in witness.read_bytes()
    assert witness.stat().st_mode & 0o077 == 0


def test_a_witness_that_begins_later_knows_what_is_there(tmp_path):
    filled(tmp_path / "j", 3)
    opened(tmp_path / "j", witness=tmp_path / "w").close()
    filled(tmp_path / "k", 2)
    with opened(tmp_path / "k", witness=tmp_path / "w") as journal:
        assert "3 answers were recorded" in journal.behind


def test_a_witness_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    witness = tmp_path / "w"
    filled(tmp_path / "j", 3, witness=witness)
    right = witness.read_bytes()
    with pytest.raises(UsageError, match="damaged or of another run"):
        opened(tmp_path / "q", run="q", witness=witness)
    with opened(tmp_path / "j", witness=witness), pytest.raises(UsageError, match="every run has"):
        filled(tmp_path / "k", 3, witness=witness)
    wrong = [b"", right[:-1], right + b"x", *(changed(right, at) for at in range(len(right)))]
    for content in wrong:
        witness.write_bytes(content)
        with pytest.raises(UsageError, match="damaged or of another run"):
            opened(tmp_path / "j", witness=witness)
        assert witness.read_bytes() == content


def test_nothing_is_sent_that_the_witness_could_not_note(tmp_path, monkeypatch):
    real = os.pwrite
    with opened(tmp_path / "j", witness=tmp_path / "w") as journal:

        def full(file, data, position):
            if data.startswith(b"tacit witness"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(file, data, position)

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(ReleaseError, match=r"witness .* could not be written"):
            journal.record(0, d("e", 0), d("r", 0))


STEPS = st.integers(0, 6)
ACTS = st.tuples(
    st.sampled_from(["record", "record", "record", "allow", "open"]),
    STEPS,
    st.integers(0, 1),
    st.integers(0, 1),
)


@given(acts=st.lists(ACTS, max_size=30))
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_a_dictionary(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("model") / "j"
    journal, held, pending, counts = opened(path), {}, set(), {}
    for act, step, embedding, release in acts:
        content = d("e", embedding), d("r", release)
        if act == "open":
            journal.close()
            journal = opened(path)
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
        base.reshape(3, 2),
        base.reshape(6),
        base.double(),
        base.view(torch.int32),
        torch.cat([-base[:1], base[1:]]),
        base.bfloat16(),
        base[:0],
        torch.tensor(0.0),
        torch.tensor(-0.0),
        torch.zeros(1),
        torch.zeros(0),
    ]
    assert len({digest(x) for x in [base, *others]}) == len(others) + 1


CHILD = """
import hashlib, os, sys
from tacit.party.journal import Journal
path, acks = sys.argv[1:]
def d(*what):
    return hashlib.sha256(repr(what).encode()).digest()
def work():
    ack = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    journal = Journal.open(path, run="r", secret=bytes(range(32)))
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


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path):
    path, acks, before = tmp_path / "j", tmp_path / "acks", -1
    for _ in killed(CHILD, path, acks, times=10, seed=1, longest=0.2):
        data = acks.read_bytes() if acks.exists() else b""
        last = max((step for (step,) in struct.iter_unpack("<q", data)), default=-1)
        with opened(path) as journal:
            end = -1 if journal.last is None else journal.last.step
            assert last <= end <= last + 1
            for step in range(before + 1, end + 1):
                assert journal.find(step).release == d("r", step)
        before = end
    assert before > 100
