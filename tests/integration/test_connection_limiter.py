"""What passes connections on to gRPC, with plain sockets at both ends."""

import socket
from contextlib import ExitStack
from threading import Thread

import pytest

from tacit.wire.transport.connection_limiter import (
    HANDSHAKE_RECORD,
    ConnectionLimiter,
    ConnectionSlots,
)

SIZE = 2**24  # more than the kernel holds for a peer that reads nothing
PATIENCE = 60.0


@pytest.fixture
def relayed(tmp_path):
    """A limiter with one connection, both of its ends, and its name."""
    with ExitStack() as stack:
        inner = stack.enter_context(socket.socket(socket.AF_UNIX))
        inner.bind(str(tmp_path / "grpc"))
        inner.listen()
        listening = socket.create_server(("127.0.0.1", 0))
        limiter = ConnectionLimiter(
            [listening], inner=tmp_path / "grpc", slots=ConnectionSlots(), log=lambda _: None
        )
        limiter.start()
        stack.callback(limiter.close)
        outside = stack.enter_context(socket.create_connection(listening.getsockname()))
        outside.sendall(HANDSHAKE_RECORD)
        inside, name = inner.accept()
        stack.enter_context(inside)
        inside.settimeout(PATIENCE)
        outside.settimeout(PATIENCE)
        limiter.admit(name)
        yield limiter, name, inside, outside


def test_catching_up_takes_until_everything_said_inside_has_left(relayed):
    limiter, name, inside, outside = relayed
    sender = Thread(target=inside.sendall, args=(bytes(SIZE),), daemon=True)
    sender.start()
    # Nobody reads, so after some tries no buffer on the way takes more.
    assert not all(limiter.catch_up(name, timeout=0.05) for _ in range(10_000))
    left = SIZE
    while left:
        left -= len(outside.recv(2**20))
    sender.join()
    assert limiter.catch_up(name, timeout=PATIENCE)


def test_a_connection_that_is_gone_has_nothing_to_catch_up_with(relayed):
    limiter, name, inside, outside = relayed
    inside.close()
    outside.close()
    assert limiter.catch_up(name, timeout=PATIENCE)
    assert limiter.catch_up("none", timeout=PATIENCE)
