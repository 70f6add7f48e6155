"""What a feature party keeps of the label party's journal: in order, unchanged, and not endless."""

import hashlib
import threading
from contextlib import ExitStack

import pytest

from tacit.errors import PeerError, ReleaseError, UsageError
from tacit.party.journal import Journal
from tacit.party.record_exchange import RecordCopy, hand_back, take_back
from tacit.training.cut import RECORD_BYTES
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.messages import Align, Hello
from tacit.wire.protocol.state_machine import Role
from tacit.wire.transport.memory import memory_transports


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Five records as a label party makes them."""
    path = tmp_path_factory.mktemp("label") / "journal"
    with Journal.open(path, run="bank with platform", secret=bytes(32)) as journal:
        for step in range(5):
            mark = hashlib.sha256(bytes([step])).digest()
            journal.record(step, mark, mark)
        return [journal.read(number, 1) for number in range(5)]


def opened(path):
    return RecordCopy.open(path, run="platform with bank")


def test_records_are_kept_in_order_and_found_again(tmp_path, records):
    copy = opened(tmp_path / "r")
    for record in records[:3]:
        copy.keep(record)
    copy.keep(records[1])  # the same again is nothing new
    copy.keep(records[3] + records[4])
    copy.close()
    copy = opened(tmp_path / "r")
    assert copy.count == 5
    assert copy.read(1, 2) == records[1] + records[2]
    assert copy.read(4, 9) == records[4]
    copy.close()


def test_a_gap_or_another_record_is_refused(tmp_path, records):
    copy = opened(tmp_path / "r")
    copy.keep(records[0] + records[1])
    with pytest.raises(PeerError, match=r"record 3 of .* came where 2 was due"):
        copy.keep(records[3])
    other = bytearray(records[1])
    other[50] ^= 1
    with pytest.raises(PeerError, match=r"record 1 of .* is another than before"):
        copy.keep(bytes(other))
    for number in (-1, 2**62):
        wrong = number.to_bytes(8, "little", signed=True) + records[0][8:]
        with pytest.raises(PeerError, match="came where 2 was due"):
            copy.keep(wrong)
    assert copy.count == 2
    copy.close()


def test_no_more_than_the_limit_is_kept(tmp_path, records, monkeypatch):
    monkeypatch.setattr("tacit.party.record_exchange.LARGEST_COPY", 2)
    copy = opened(tmp_path / "r")
    for record in records:
        copy.keep(record)
    assert copy.count == 2
    copy.close()


def test_a_torn_end_is_cut_off_and_a_wrong_order_is_damage(tmp_path, records):
    copy = opened(tmp_path / "r")
    copy.keep(b"".join(records))
    copy.close()
    whole = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(whole[:-1])
    copy = opened(tmp_path / "r")
    assert copy.count == 4
    copy.close()
    (tmp_path / "r").write_bytes(whole[: -2 * RECORD_BYTES] + whole[-RECORD_BYTES:])
    with pytest.raises(ReleaseError, match="record 3 of 4 is damaged"):
        opened(tmp_path / "r")
    with pytest.raises(UsageError, match="copy of a journal of run 'platform with bank', not of"):
        RecordCopy.open(tmp_path / "r", run="platform with shop")
    with pytest.raises(UsageError, match="not a journal"):
        Journal.open(tmp_path / "r", run="platform with bank", secret=bytes(32))


# --- several feature parties ---

LONG = 60.0


def connected(name):
    """Return both ends of a connection that is ready for its first step."""
    ours, theirs = memory_transports()
    feature = Connection(ours, Role.FEATURE, timings=Timings())
    label = Connection(theirs, Role.LABEL, timings=Timings())
    for said, answer in ((hello(name), hello("bank")), (Align(count=4), Align(count=4))):
        feature.send(said)
        label.receive(type(said))
        label.send(answer)
        feature.receive(type(answer))
    return feature, label


def hello(name):
    return Hello(versions=(2,), party=name, plan_digest="0" * 64)


def test_one_party_that_kept_its_records_is_enough(tmp_path, records, monkeypatch):
    """What it hands back also reaches those who have less, whoever came first; piece by piece."""
    monkeypatch.setattr("tacit.party.record_exchange.MOST_RECORDS", 2)
    had = {"platform": 0, "bureau": 5, "registry": 2}
    with ExitStack() as stack:
        journal = stack.enter_context(
            Journal.open(tmp_path / "j", run="bank with platform", secret=bytes(32))
        )
        journal.take_back(records[0])
        copies, ends, work = {}, [], []
        for name, count in had.items():
            copies[name] = opened(tmp_path / name)
            stack.callback(copies[name].close)
            copies[name].keep(b"".join(records[:count]))
            feature, label = (stack.enter_context(end) for end in connected(name))
            ends.append(label)
            work.append(threading.Thread(target=hand_back, args=(feature, copies[name])))
            work[-1].start()
        assert take_back(ends, journal) == 4
        assert journal.read(0, 9) == b"".join(records)
        for thread in work:
            thread.join(LONG)
        for copy in copies.values():
            assert copy.read(0, 9) == b"".join(records)
