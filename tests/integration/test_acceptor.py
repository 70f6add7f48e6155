"""What connections may take that have not proven to be a peer, and what is left at the end."""

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from anonymous_connections import ELSEWHERE, echo, hello_of, open_connection
from tacit.errors import LostError, UsageError
from tacit.wire.transport import grpc_server
from tacit.wire.transport import grpc_server as limited_log
from tacit.wire.transport.connection_limiter import ConnectionSlots, network_of
from tacit.wire.transport.grpc_server import LimitedLog, Listener
from transports import LIMITS, PATIENCE, connect, listening, make_world, tls, who


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


def hung_up(plain):
    try:
        return plain.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_address_cannot_take_the_slots_of_others(world, monkeypatch):
    monkeypatch.setattr(grpc_server, "SLOTS", ConnectionSlots(most=6, per_address=4))
    log = []
    with listening(world, log=log) as listener, ExitStack() as stack:
        few = [
            stack.enter_context(open_connection(listener.port, source="127.0.0.3"))
            for _ in range(2)
        ]
        many = [stack.enter_context(open_connection(listener.port)) for _ in range(5)]
        assert hung_up(many[0]), "the oldest of an address with too many"
        fresh = stack.enter_context(open_connection(listener.port, source="127.0.0.4"))
        assert hung_up(many[1]), "where all slots are taken, of the address with most"
        for each in (*few, *many[2:], fresh):
            each.settimeout(0.05)
            with pytest.raises(TimeoutError):
                each.recv(1)
        assert f"from {ELSEWHERE}:" in log[0]
        assert "4 from there, 6 in all, have not said who they are" in log[0]


def test_of_one_address_those_that_said_nothing_go_first(world, monkeypatch):
    monkeypatch.setattr(grpc_server, "SLOTS", ConnectionSlots(per_address=3))
    with listening(world) as listener, ExitStack() as stack:
        hello = hello_of(tls(world))
        first = stack.enter_context(open_connection(listener.port, said=hello))
        assert first.recv(1), "the server has answered"
        silent = [stack.enter_context(open_connection(listener.port)) for _ in range(3)]
        assert hung_up(silent[0])
        assert first.recv(1)


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01"])
def test_a_connection_that_does_not_go_on_loses_its_slot(world, monkeypatch, said):
    short = ConnectionSlots(first_byte=0.2, admission=0.4)
    monkeypatch.setattr(grpc_server, "SLOTS", short)
    with listening(world) as listener, open_connection(listener.port, said=said) as slow:
        assert hung_up(slow)


def test_a_member_that_never_opens_a_transport_loses_its_slot(world, monkeypatch):
    monkeypatch.setattr(grpc_server, "SLOTS", ConnectionSlots(admission=0.4))
    with listening(world) as listener, connect(world, listener.address) as transport:
        other = listener.accept(timeout=PATIENCE)
        plain = open_connection(listener.port)
        with plain, tls(world, "clinic").wrap_socket(plain, server_hostname="bank.tacit") as idle:
            while idle.recv(4096):
                pass  # what gRPC says of itself, and then the end
        echo(transport, other)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\x00"])
def test_what_is_not_tls_ends_at_once(world, said):
    with listening(world) as listener, open_connection(listener.port, said=said) as other:
        assert hung_up(other)


def test_whoever_is_no_peer_cannot_make_the_listener_read_on(world):
    """A member of the same authority, with a certificate that TLS accepts."""
    most = grpc_server.SLOTS.most_bytes
    with listening(world) as listener:
        plain = open_connection(listener.port)
        with (
            plain,
            tls(world, "outsider").wrap_socket(plain, server_hostname="bank.tacit") as stranger,
        ):
            stranger.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
            )
            (relay,) = [each for each in listener._acceptor._relays.values() if each.spoken]
            ping = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])  # an acknowledgement that nobody asked for
            stranger.settimeout(0.5)
            with suppress(OSError):
                for _ in range(1000):
                    stranger.sendall(ping * 4096)
            assert relay._ways[0].passed < most + 2**18
        with connect(world, listener.address) as transport:
            echo(transport, listener.accept(timeout=PATIENCE))


def test_the_slot_of_a_replaced_transport_is_free_again(world):
    """Many connections of a peer: each newer one ends the one before, its socket too."""
    with listening(world) as listener, ExitStack() as stack:
        for _ in range(20):
            transport = stack.enter_context(connect(world, listener.address))
            other = listener.accept(timeout=PATIENCE)
        echo(transport, other)
        deadline = time.monotonic() + PATIENCE
        while len(listener._acceptor._relays) > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(listener._acceptor._relays) == 1
        echo(transport, other)


def test_nothing_is_left_of_a_closed_listener(world):
    with listening(world) as listener, connect(world, listener.address) as transport:
        folder = Path(listener._folder.name)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [entry.name for entry in folder.iterdir()] == ["grpc"]
        echo(transport, listener.accept(timeout=PATIENCE))
        idle = open_connection(listener.port)
    assert not folder.exists()
    with idle:
        assert hung_up(idle)
    with pytest.raises(OSError, match="refused"):
        open_connection(listener.port)


LISTEN = """
import sys
from pathlib import Path
from tacit.wire.protocol.codec import Limits
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.tls import load_identity

identity = load_identity(Path(sys.argv[1]), name="bank")
listener = Listener("127.0.0.1:0", identity=identity, peers=[], limits=Limits(), log=print)
print(listener._folder.name, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_start_and_nothing_else(
    world, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "tacit-socket-x").mkdir()
    words = [sys.executable, "-c", LISTEN, str(world / "one")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as dead, subprocess.Popen(words, **pipes) as alive:  # noqa: S603
        left, used = (Path(each.stdout.readline().strip()) for each in (dead, alive))
        dead.kill()
        dead.wait(PATIENCE)
        assert left.exists()
        with listening(world) as listener:
            assert not left.exists()
            assert used.exists()
            assert Path(listener._folder.name).exists()
            with listening(world):
                assert Path(listener._folder.name).exists()
        alive.stdin.close()
        alive.wait(PATIENCE)
    assert [each.name for each in tmp_path.iterdir()] == ["tacit-socket-x"]


def test_what_was_said_last_arrives_though_the_listener_closes(world):
    frame = bytes(2 * 2**20)
    for _ in range(5):
        with listening(world) as listener:
            transport = connect(world, listener.address)
            listener.accept(timeout=PATIENCE).send(frame, timeout=PATIENCE)
        with transport:
            assert transport.receive(timeout=PATIENCE) == frame
            with pytest.raises(LostError):
                transport.receive(timeout=PATIENCE)


def test_a_folder_with_a_long_path_is_named(world, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(UsageError, match="let TMPDIR name a folder with a short path"):
        Listener("127.0.0.1:0", identity=who(world, "bank"), peers=[], limits=LIMITS, log=print)


def test_all_addresses_of_a_host_are_listened_at(world):
    made = Listener(
        "localhost:0",
        identity=who(world, "bank"),
        peers=["clinic"],
        limits=LIMITS,
        log=lambda _: None,
    )
    try:
        found = {info[4][0] for info in socket.getaddrinfo("localhost", made.port)}
        for host in found:
            address = f"[{host}]:{made.port}" if ":" in host else f"{host}:{made.port}"
            with suppress(LostError), connect(world, address) as transport:
                echo(transport, made.accept(timeout=PATIENCE))
        with connect(world, f"127.0.0.1:{made.port}") as transport:
            echo(transport, made.accept(timeout=PATIENCE))
    finally:
        made.close()


def test_what_counts_as_one_address():
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("fe80::1%lo") == "fe80::"


def test_a_log_has_so_many_lines_a_minute(monkeypatch):
    said, now = [], [100.0]
    monkeypatch.setattr(limited_log.time, "monotonic", lambda: now[0])
    log = LimitedLog(said.append, most=3)
    for n in range(10):
        log(f"line {n}")
    assert said == ["line 0", "line 1", "line 2"]
    now[0] += 60
    log("later")
    assert said[3:] == ["7 more lines about connections were left out", "later"]
