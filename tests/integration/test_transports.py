"""What every transport must do, whatever carries it, and what the wrappers add."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tacit.errors import LostError, ParameterError, SilenceError
from tacit.wire.transport import wrappers
from tacit.wire.transport.memory import memory_transports
from tacit.wire.transport.wrappers import FaultyTransport, RecordingTransport, ThrottledTransport
from transports import PATIENCE, connected, make_world

FRAMES = [b"one", b"", bytes(range(256)) * 4096, b"four"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


@contextmanager
def in_memory(_world, wrap=lambda transport: transport):
    left, right = memory_transports()
    with wrap(left) as first, wrap(right) as second:
        yield first, second


KINDS = {
    "memory": in_memory,
    "grpc": connected,
    "recording": lambda w: in_memory(
        w, lambda transport: RecordingTransport(transport, lambda *_: None)
    ),
    "faulty": lambda w: in_memory(
        w, lambda transport: FaultyTransport(transport, seed=1, delay=0.001)
    ),
    "throttled": lambda w: in_memory(
        w, lambda transport: ThrottledTransport(transport, bytes_per_second=1e9)
    ),
}


@pytest.fixture(params=KINDS)
def ends(request, world):
    with KINDS[request.param](world) as pair:
        yield pair


def take(transport):
    return transport.receive(timeout=PATIENCE)


def give(transport, frame):
    transport.send(frame, timeout=PATIENCE)


def test_frames_arrive_whole_and_in_order_both_ways(ends):
    left, right = ends
    for frame in FRAMES:
        give(left, frame)
        give(right, frame[::-1])
        assert take(right) == frame
        assert take(left) == frame[::-1]


def test_both_directions_may_be_used_at_once(ends):
    with ThreadPoolExecutor(4) as pool:
        sent = [
            pool.submit(lambda transport=transport: [give(transport, b"%d" % n) for n in range(50)])
            for transport in ends
        ]
        got = [
            pool.submit(lambda transport=transport: [take(transport) for _ in range(50)])
            for transport in ends
        ]
        assert all(f.result(PATIENCE) == [b"%d" % n for n in range(50)] for f in got)
        assert all(f.result(PATIENCE) for f in sent)


def test_silence_is_told_in_time_and_loses_nothing(ends):
    left, right = ends
    with pytest.raises(SilenceError, match=r"0\.05 s"):
        right.receive(timeout=0.05)
    give(left, b"late")
    assert take(right) == b"late"


def test_what_was_handed_over_before_a_close_arrives_and_then_the_transport_is_lost(ends):
    left, right = ends
    give(left, b"first")
    give(left, b"bye")
    closing = threading.Thread(target=left.close)
    closing.start()
    assert [take(right), take(right)] == [b"first", b"bye"]
    with pytest.raises(LostError, match="close") as caught:
        take(right)
    assert not isinstance(caught.value, SilenceError)
    with pytest.raises(LostError):
        give(right, b"too late")
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_closed_end_neither_sends_nor_receives_and_closes_again(ends):
    left, right = ends
    give(right, b"never read")
    left.close()
    left.close()
    for use in (lambda: give(left, b"x"), lambda: take(left)):
        with pytest.raises(LostError) as caught:
            use()
        assert not isinstance(caught.value, SilenceError)


def test_whoever_waits_is_woken_when_the_other_end_closes(ends):
    left, right = ends
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(right.receive, timeout=60)
        left.close()
        with pytest.raises(LostError):
            waiting.result(PATIENCE)


def flood(transport):
    """Send until nobody takes any more; return how many frames were taken."""
    for n in range(64):
        try:
            transport.send(b"%02d" % n * 2**19, timeout=0.5)
        except SilenceError:
            return n
    return 64


def test_only_a_few_frames_wait_and_none_is_lost(ends):
    left, right = ends
    handed = flood(left)
    assert 2 <= handed < 64  # what sockets and flow control hold varies a little
    assert [take(right)[:2] for _ in range(handed)] == [b"%02d" % n for n in range(handed)]


def test_nobody_vouches_for_a_name_in_memory_and_tls_does_over_grpc(world):
    with connected(world) as (left, right):
        assert (left.peer, right.peer) == ("bank", "clinic")
        assert RecordingTransport(left, lambda *_: None).peer == "bank"
        assert (
            FaultyTransport(left, seed=1).peer
            == ThrottledTransport(left, bytes_per_second=1).peer
            == "bank"
        )
    assert memory_transports()[0].peer is None


def test_a_recording_shows_what_passes_in_order():
    left, right = memory_transports()
    seen = []
    transport = RecordingTransport(left, lambda *shown: seen.append(shown))
    transport.send(b"a", timeout=1)
    right.send(b"b", timeout=1)
    assert transport.receive(timeout=1) == b"b"
    assert seen == [("sent", b"a"), ("received", b"b")]


def spoilt(count=60, *, seed=7, **faults):
    """What arrives of so many frames."""
    left, right = memory_transports(waiting=4 * count)
    with FaultyTransport(left, seed=seed, **faults) as transport:
        for n in range(count):
            transport.send(b"%03d" % n, timeout=1)
    got = []
    try:
        while True:
            got.append(right.receive(timeout=1))
    except LostError:
        return got


SENT = [b"%03d" % n for n in range(60)]


def test_faults_are_the_ones_asked_for():
    assert spoilt() == SENT
    dropped = spoilt(drop=0.3)
    assert 20 < len(dropped) < 60
    assert dropped == sorted(dropped)
    twice = spoilt(duplicate=0.3)
    assert set(twice) == set(SENT)
    assert len(twice) > 60
    mixed = spoilt(reorder=0.3)
    assert mixed != sorted(mixed)
    assert set(SENT[:-1]) <= set(mixed)
    flipped = [(a, b) for a, b in zip(SENT, spoilt(corrupt=0.3), strict=True) if a != b]
    bits = [int.from_bytes(a) ^ int.from_bytes(b) for a, b in flipped]
    assert 5 < len(bits) < 40
    assert {bit.bit_count() for bit in bits} == {1}
    cut = spoilt(truncate=0.3)
    assert all(whole.startswith(part) for whole, part in zip(SENT, cut, strict=True))
    assert any(len(part) < 3 for part in cut)


def test_faults_are_the_same_for_the_same_seed():
    faults = {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "corrupt": 0.2, "truncate": 0.2}
    assert spoilt(seed=3, **faults) == spoilt(seed=3, **faults) != spoilt(seed=4, **faults)


def test_a_frame_is_late_by_no_more_than_was_asked_for(monkeypatch):
    waits = []

    class Watched(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(wrappers, "Event", Watched)
    assert spoilt(20, delay=0.02) == SENT[:20]
    assert len(set(waits)) == 20
    assert all(0 < wait <= 0.02 for wait in waits)


def test_a_throttled_transport_takes_the_time_of_its_link():
    left, right = memory_transports()
    transport = ThrottledTransport(left, bytes_per_second=10_000, latency=0.02)
    start = time.monotonic()
    transport.send(bytes(1000), timeout=5)
    assert time.monotonic() - start >= 0.12
    assert len(right.receive(timeout=1)) == 1000
    with pytest.raises(SilenceError, match=r"100\.02 s"):
        transport.send(bytes(10**6), timeout=0.05)


@pytest.mark.parametrize("faults", [{"drop": 1.5}, {"corrupt": -0.1}, {"delay": -1}])
def test_impossible_faults_are_refused(faults):
    with pytest.raises(ParameterError, match=next(iter(faults))):
        FaultyTransport(memory_transports()[0], seed=1, **faults)
    with pytest.raises(ParameterError, match="bytes per second"):
        ThrottledTransport(memory_transports()[0], bytes_per_second=0)
