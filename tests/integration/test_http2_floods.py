"""HTTP/2 frames in floods, with and without a certificate: the honest peer goes on."""

import itertools
import os
import struct
import threading
import time
from contextlib import contextmanager

import pytest

from anonymous_connections import echo
from raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    field,
    frame,
    pour,
    speaking,
)
from tacit.errors import PeerError
from transports import PATIENCE, connect, listening, make_world

CANCEL = struct.pack(">I", 8)
LONG = 60


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


def many(make, count, *, each=200):
    """Yield so many frames, a few hundred at a time; streams begin at 3."""
    for first in range(0, count, each):
        yield b"".join(make(2 * n + 3) for n in range(first, first + each))


def headers_without_end(pieces):
    yield frame(HEADERS, REQUEST, stream=3)
    for n in range(pieces):
        yield frame(CONTINUATION, field(b"x%d" % n, b"y" * 16000), stream=3)


def expanding(stream):
    """Eight thousand references to one header of four thousand bytes."""
    body = REQUEST + field(b"x", b"y" * 4000, kept=True) + b"\xbe" * 8000
    return frame(HEADERS, body, flags=END_HEADERS, stream=stream)


# What is sent on stream 1 is on a call that is open, where one is.
FLOODS = {
    "streams at once": lambda: many(call, 5000),
    "streams reset at once": lambda: many(
        lambda n: call(n) + frame(RST_STREAM, CANCEL, stream=n), 20000
    ),
    "pings": lambda: many(lambda _: frame(PING, bytes(8)), 100_000),
    "answers to no ping": lambda: many(lambda _: frame(PING, bytes(8), flags=1), 100_000),
    "settings": lambda: many(lambda _: frame(SETTINGS), 100_000),
    "windows that change": lambda: many(
        lambda n: frame(SETTINGS, struct.pack(">HI", 4, n % 65535 + 1)), 100_000
    ),
    "a header that is too large": lambda: [
        frame(HEADERS, REQUEST + field(b"x", bytes(12000)), flags=END_HEADERS, stream=3)
    ],
    "headers without end": lambda: headers_without_end(20_000),
    "empty headers without end": lambda: itertools.chain(
        [frame(HEADERS, REQUEST, stream=3)],
        many(lambda _: frame(CONTINUATION, stream=3), 100_000),
    ),
    "headers that expand": lambda: many(expanding, 200, each=1),
    "empty data": lambda: many(lambda _: frame(DATA, stream=1), 100_000),
    "empty messages": lambda: many(lambda _: frame(DATA, bytes(5), stream=1), 100_000),
    "a message of four gigabytes": lambda: itertools.chain(
        [frame(DATA, b"\0\xff\xff\xff\xff" + bytes(9000), stream=1)],
        many(lambda _: frame(DATA, bytes(16000), stream=1), 1000, each=1),
    ),
    "window updates": lambda: many(lambda _: frame(WINDOW_UPDATE, struct.pack(">I", 1)), 100_000),
    "priorities": lambda: many(
        lambda n: frame(PRIORITY, struct.pack(">IB", 0, 1), stream=n % 999 + 1), 100_000
    ),
    "frames of no kind": lambda: many(lambda _: frame(200, b"z" * 100), 50_000),
    "no frames": lambda: (os.urandom(100_000) for _ in range(50)),
}


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def honest(world, listener):
    """The lab's transport, with round trips all the while; all of them must arrive."""
    problems, trips, stop = [], [0], threading.Event()
    with connect(world, listener.address, "lab") as transport:
        other = listener.accept(timeout=PATIENCE)

        def talk():
            try:
                while not stop.is_set():
                    echo(transport, other, 1)
                    trips[0] += 1
            except Exception as error:
                problems.append(error)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield trips
        finally:
            stop.set()
            thread.join(LONG)
        assert not problems, problems


def go_on(trips, least=5):
    """Wait until the honest transport has made so many more round trips."""
    wanted, deadline = trips[0] + least, time.monotonic() + LONG
    while trips[0] < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert trips[0] >= wanted, "the honest transport stalled"


def flooded(world, listener, name, make, *, connected=False):
    with speaking(world, listener.port, name) as secure:
        if connected:
            secure.sendall(call(1))
            secure.recv(65536)
            listener.accept(timeout=PATIENCE)
        return pour(secure, make())


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("who", ["a connected peer", "a peer without", "a member", "a stranger"])
def test_a_flood_of_frames_leaves_the_honest_peer_alone(world, flood, who):
    name = {"a member": "outsider", "a stranger": None}.get(who, "clinic")
    with listening(world, peers=("clinic", "lab")) as listener, honest(world, listener) as trips:
        before = peak = resident()
        stop = threading.Event()

        def watch():
            nonlocal peak
            while not stop.wait(0.01):
                peak = max(peak, resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        flooded(world, listener, name, FLOODS[flood], connected=who == "a connected peer")
        go_on(trips)
        stop.set()
        watcher.join()
        assert peak - before < 256 * 2**20
        with connect(world, listener.address, "clinic") as transport:
            other = listener.accept(timeout=PATIENCE)
            while other.peer != "clinic":
                other = listener.accept(timeout=PATIENCE)
            echo(transport, other)


def test_calls_of_a_member_that_is_no_peer_do_not_fill_the_log(world):
    """Each call is refused; the first one also ends the connection."""
    log = []
    with listening(world, log=log) as listener:
        for _ in range(5):
            with speaking(world, listener.port, "outsider") as secure:
                secure.settimeout(PATIENCE)
                for stream in range(1, 801, 2):
                    if not pour(secure, [call(stream)])[0]:
                        break
                while secure.recv(65536):
                    pass
        assert 5 <= len(log) <= 70
        assert all("party outsider is not one of the peers" in line for line in log)


def test_calls_that_replace_each_other_do_not_fill_the_log(world):
    log = []
    with listening(world, log=log) as listener:
        with speaking(world, listener.port, "clinic") as secure:
            pour(secure, many(lambda n: call(n) + frame(RST_STREAM, CANCEL, stream=n), 2000))
        with connect(world, listener.address) as transport:
            other = listener.accept(timeout=PATIENCE)
            while other.over:
                other = listener.accept(timeout=PATIENCE)
            echo(transport, other)
        assert len(log) <= 60


def test_a_method_that_is_not_there_is_refused(world):
    with listening(world) as listener, speaking(world, listener.port, "clinic") as secure:
        other = REQUEST.replace(b"/tacit.Line/Frames", b"/tacit.Line/Shutup")
        secure.sendall(frame(HEADERS, other, flags=END_HEADERS, stream=1))
        heard = b""
        while b"grpc-status" not in heard:
            piece = secure.recv(65536)
            assert piece
            heard += piece
        with pytest.raises(PeerError, match="not one of the peers"):
            connect(world, listener.address, "outsider")
