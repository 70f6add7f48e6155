"""Hundreds of connections that do not say who they are: the peer gets in and stays."""

import time
from contextlib import ExitStack, suppress

import pytest

from anonymous_connections import ELSEWHERE, HERE, echo, hello_of, open_connection, returning
from transports import PATIENCE, connect, listening, make_world, tls

MANY = 300


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


def first_words(world):
    hello = hello_of(tls(world))
    return {"nothing": b"", "a part of a hello": hello[:9], "a whole hello": hello}


@pytest.mark.parametrize("source", [ELSEWHERE, HERE])
@pytest.mark.parametrize("words", ["nothing", "a part of a hello", "a whole hello"])
def test_the_peer_gets_in_past_hundreds_that_wait(world, source, words):
    said = first_words(world)[words]
    with listening(world) as listener, ExitStack() as stack:
        for _ in range(MANY):
            with suppress(OSError):  # it was ended while it spoke
                stack.enter_context(open_connection(listener.port, source=source, said=said))
        with connect(world, listener.address) as transport:
            other = listener.accept(timeout=PATIENCE)
            echo(transport, other)
            for _ in range(MANY):
                with suppress(OSError):
                    stack.enter_context(open_connection(listener.port, source=source, said=said))
            echo(transport, other)


@pytest.mark.parametrize("words", ["nothing", "a whole hello"])
def test_the_peer_gets_in_past_those_that_come_again_and_again(world, words):
    """From another address, whatever they say."""
    said = first_words(world)[words]
    with (
        listening(world) as listener,
        returning(listener.port, source=ELSEWHERE, said=said) as count,
    ):
        deadline = time.monotonic() + PATIENCE
        while count[0] < MANY and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count[0] >= MANY
        for _ in range(3):
            with connect(world, listener.address) as transport:
                echo(transport, listener.accept(timeout=PATIENCE))
