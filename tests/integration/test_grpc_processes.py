"""Lines between processes that are killed, stopped, or end on an error of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tacit.errors import LostError, SilenceError
from tacit.wire.transport import grpc_client
from transports import PATIENCE, connect, listening, make_world, tls

# Loads everything once, then forks for each line it gets: whom to meet and what to do in the end.
PARENT = """
import json, os, signal, sys, time
from pathlib import Path
from tacit.wire.transport import grpc_client
from tacit.wire.protocol.codec import Limits
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.tls import load_identity

def say(value):
    sys.stdout.write(json.dumps(value) + chr(10))
    sys.stdout.flush()

for order in map(json.loads, sys.stdin):
    if "ready" in order:
        say("ready")
        continue
    if "wait" in order:
        say(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]))
        continue
    if os.fork():
        continue
    signal.alarm(40)  # nothing outlives its test for long
    grpc_client.ALIVE, folder = order["alive"], Path(sys.argv[1])
    if order["role"] == "dials":
        say(os.getpid())
        own = load_identity(folder, name="clinic")
        transport = dial(order["address"], identity=own, peer="bank", limits=Limits(), timeout=10)
    else:
        listener = Listener("127.0.0.1:0", identity=load_identity(folder, name="bank"),
                            peers=["clinic"], limits=Limits(), log=lambda text: None)
        say(os.getpid())
        say(listener.address)
        transport = listener.accept(timeout=10)
    transport.send(b"here", timeout=5)
    exec(order["end"])
    break
"""
DIES = "os.kill(os.getpid(), 9)"
SLEEPS = "time.sleep(60)"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def stderr(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "stderr"


@pytest.fixture(scope="module")
def parent(world, stderr):
    with stderr.open("w") as file:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", PARENT, str(world / "one")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        order(process, ready=True)
        yield process
        process.kill()
        process.communicate()


def order(parent, **fields):
    parent.stdin.write(json.dumps(fields) + "\n")
    parent.stdin.flush()
    return heard(parent)


def heard(parent):
    return json.loads(parent.stdout.readline())


@contextmanager
def running(parent, role, address=None, *, end=SLEEPS):
    """A process with one end of a transport, which says ``here`` and then does what `end` says."""
    pid = order(parent, role=role, address=address, end=end, alive=grpc_client.ALIVE)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def connected_process(world, parent, role, *, end=SLEEPS):
    """Such a process and this one's end of the transport, after the first frame."""
    if role == "dials":
        with listening(world) as listener, running(parent, role, listener.address, end=end) as pid:
            transport = listener.accept(timeout=PATIENCE)
            assert transport.receive(timeout=PATIENCE) == b"here"
            yield pid, transport
        return
    with running(parent, role, end=end) as pid, ExitStack() as stack:
        transport = stack.enter_context(connect(world, heard(parent)))
        assert transport.receive(timeout=PATIENCE) == b"here"
        yield pid, transport


def is_lost(transport):
    """The loss is noticed, which is more than that nothing comes within the time given."""
    with pytest.raises(LostError) as caught:
        transport.receive(timeout=PATIENCE)
    assert not isinstance(caught.value, SilenceError)


@pytest.mark.parametrize("role", ["dials", "listens"])
def test_a_killed_peer_is_noticed_at_once(world, parent, role):
    with connected_process(world, parent, role) as (pid, transport):
        os.kill(pid, signal.SIGKILL)
        is_lost(transport)
        with pytest.raises(LostError):
            transport.send(b"anyone there?", timeout=PATIENCE)


@pytest.mark.parametrize("role", ["dials", "listens"])
def test_a_peer_that_is_cut_off_is_missed(world, parent, role, monkeypatch):
    monkeypatch.setattr(grpc_client, "ALIVE", 400)
    with connected_process(world, parent, role) as (pid, transport):
        with pytest.raises(SilenceError):  # idle for three intervals: alive, hence not lost
            transport.receive(timeout=1.2)
        os.kill(pid, signal.SIGSTOP)
        is_lost(transport)


@pytest.mark.parametrize("role", ["dials", "listens"])
def test_what_was_sent_before_a_close_arrives_even_if_the_process_dies(world, parent, role):
    size = 2**20
    sends = f"transport.send(bytes({size}), timeout=5); transport.send(b'bye', timeout=5)"
    end = f"{sends}; transport.close(); {DIES}"
    with connected_process(world, parent, role, end=end) as (_, transport):
        assert len(transport.receive(timeout=PATIENCE)) == size
        assert transport.receive(timeout=PATIENCE) == b"bye"
        is_lost(transport)


@pytest.mark.parametrize("role", ["dials", "listens"])
def test_a_process_that_raised_ends_promptly_without_a_close(world, parent, role):
    end = "transport.receive(timeout=10); raise SystemExit(3)"
    with connected_process(world, parent, role, end=end) as (pid, transport):
        transport.send(b"raise", timeout=PATIENCE)
        assert order(parent, wait=pid) == 3
        is_lost(transport)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["dials", "listens"])
def test_a_close_does_not_wait_for_ever_for_a_peer_that_takes_nothing(world, parent, role):
    with connected_process(world, parent, role) as (pid, transport):
        os.kill(pid, signal.SIGSTOP)
        frame = bytes(4 * 2**20)
        for _ in range(20):  # more than pipes, windows and buffers hold
            with suppress(SilenceError):
                transport.send(frame, timeout=0.1)
        closing = threading.Thread(target=transport.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()


REASONS = {
    "missing": (None, "one", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    "expired": ("late", "one", "certificate has expired"),
    "early": ("early", "one", "certificate is not yet valid"),
    "foreign": ("clinic", "two", "unable to get local issuer certificate"),
}


@pytest.mark.parametrize(("name", "authority", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_of_a_refused_handshake_is_on_stderr(
    world, parent, stderr, name, authority, reason
):
    with running(parent, "listens"):
        host, _, port = heard(parent).rpartition(":")
        context = tls(world, name, authority=authority)
        plain = socket.create_connection((host, int(port)), timeout=PATIENCE)
        with plain, context.wrap_socket(plain, server_hostname="bank.tacit") as secure:
            assert secure.recv(1) == b""
        told = [line for line in stderr.read_text().splitlines() if reason in line]
        assert "Handshake failed" in told[0]
