"""One plain sentence for every way in which a connection fails, from real handshakes."""

import gc
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from tacit.errors import LostError, PeerError, UsageError
from tacit.wire import address as address_module
from tacit.wire.transport.tls_diagnose import diagnose, explain
from transports import PATIENCE, listening, make_world, tls, who


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


@contextmanager
def answering(answer):
    """A server that gives each connection to `answer`, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):  # closed: the test is over
                while True:
                    plain, _ = server.accept()
                    with plain, suppress(OSError):
                        plain.settimeout(PATIENCE)
                        answer(plain)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            assert not thread.is_alive()


def shaking(context):
    """Shake hands as gRPC's server does, and speak first."""

    def answer(plain):
        with context.wrap_socket(plain, server_side=True) as secure:
            secure.sendall(b"settings")
            secure.recv(1)

    return answer


def problem(world, address, *, name="clinic", authority="one", peer="bank", timeout=PATIENCE):
    found = diagnose(address, identity=who(world, name, authority), peer=peer, timeout=timeout)
    assert found is not None
    assert "\n" not in str(found)
    return found


def test_a_party_that_can_be_reached_needs_no_explanation(world):
    with listening(world) as listener:
        assert explain(listener.address, identity=who(world, "clinic"), peer="bank") is None


def test_nobody_listens(world):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    found = problem(world, address)
    assert isinstance(found, LostError)
    assert str(found) == f"nobody listens at {address}: start bank first, or check the address"


def test_somebody_listens_but_says_nothing(world):
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = problem(world, f"127.0.0.1:{server.getsockname()[1]}", timeout=0.2)
    assert isinstance(found, LostError)
    assert "gave no answer within 0.2 s" in str(found)


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (socket.EAI_NONAME, UsageError, "the host bank.example is unknown"),
        (socket.EAI_AGAIN, LostError, "cannot be looked up now"),
    ],
)
def test_a_host_that_nobody_knows(world, monkeypatch, code, kind, says):
    def unknown(*_args, **_options):
        raise socket.gaierror(code, "as the resolver puts it")

    monkeypatch.setattr(address_module.socket, "getaddrinfo", unknown)
    found = problem(world, "bank.example:7000")
    assert isinstance(found, kind)
    assert says in str(found)


@pytest.mark.parametrize("address", ["bank", "bank:", ":7", "bank:x", "::1:7", "a b:7", "h:99999"])
def test_an_address_that_is_none(world, address):
    found = problem(world, address)
    assert isinstance(found, UsageError)
    assert "give host:port" in str(found)


def test_their_certificate_is_from_another_ca(world):
    with listening(world) as listener:
        found = problem(world, listener.address, authority="two")
    assert isinstance(found, PeerError)
    assert "the certificate of bank" in str(found)
    assert "is not from our CA" in str(found)


@pytest.mark.parametrize(("name", "says"), [("late", "is expired"), ("early", "is not valid yet")])
def test_their_certificate_is_out_of_date(world, name, says):
    with answering(shaking(tls(world, name, server=True))) as address:
        found = problem(world, address, peer=name)
    assert isinstance(found, PeerError)
    assert says in str(found)


def test_their_certificate_is_for_another_name(world):
    with listening(world) as listener:
        found = problem(world, listener.address, peer="lab")
    assert isinstance(found, PeerError)
    assert "is for party bank, not for party lab" in str(found)


@pytest.mark.parametrize(
    ("name", "authority", "says"),
    [
        ("late", "one", "refused our certificate: party late: the certificate expired at"),
        ("clinic", "mixed", "refused our certificate: its CA file or its clock is not ours"),
    ],
)
def test_our_certificate_is_refused_without_a_word_by_grpc(world, name, authority, says):
    identity = who(world, name, "one")
    if authority == "mixed":  # ours is from the second CA, and we trust the first
        other = who(world, name, "two")
        both = identity.ca_pem + other.ca_pem
        identity = type(other)(name, other.certificate_pem, other.key_pem, both)
    with listening(world) as listener:
        found = diagnose(listener.address, identity=identity, peer="bank", timeout=PATIENCE)
    assert isinstance(found, PeerError)
    assert says in str(found)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize(
    ("name", "trusts", "says"),
    [
        ("late", "one", "it is expired"),
        ("clinic", "two", "it is not from a CA that is trusted there"),
    ],
)
def test_our_certificate_is_refused_with_an_alert(world, version, name, trusts, says):
    context = tls(world, "bank", trusts=trusts, server=True)
    context.maximum_version = ssl.TLSVersion[version]
    with answering(shaking(context)) as address:
        found = problem(world, address, name=name)
    assert isinstance(found, PeerError)
    assert str(found) == f"bank at {address} refused our certificate: {says}"


def test_what_listens_does_not_speak_tls(world):
    def web(plain):
        plain.recv(1000)
        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with answering(web) as address:
        found = problem(world, address)
    assert isinstance(found, UsageError)
    assert "does not speak TLS" in str(found)


def test_what_listens_speaks_tls_but_not_ours(world):
    context = tls(world, "bank", server=True)
    context.set_alpn_protocols(["http/1.1"])
    with answering(shaking(context)) as address:
        found = problem(world, address)
    assert isinstance(found, UsageError)
    assert "is not a party that listens" in str(found)


def test_what_listens_hangs_up(world):
    with answering(lambda plain: plain.recv(1000)) as address:
        found = problem(world, address)
    assert isinstance(found, LostError)
    assert "hung up" in str(found)


def test_a_peer_that_dies_in_the_handshake_is_not_taken_for_one_that_refuses(world):
    context, once = tls(world, "bank", server=True), []

    def answer(plain):
        if once:
            shaking(context)(plain)
            return
        once.append(True)
        with suppress(OSError):
            context.wrap_socket(plain, server_side=True).close()

    with answering(answer) as address:
        assert explain(address, identity=who(world, "clinic"), peer="bank") is None
    assert once


def test_a_peer_that_resets_at_once_leaves_no_socket_open(world, monkeypatch):
    """An unclosed socket is a ResourceWarning, and so a failure of this test."""
    connect = socket.socket.connect

    def reset(plain):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def connect_and_wait_for_the_reset(made, address):
        connect(made, address)
        with suppress(OSError):
            while made.getpeername():
                time.sleep(0.001)

    monkeypatch.setattr(socket.socket, "connect", connect_and_wait_for_the_reset, raising=False)
    with answering(reset) as address:
        assert isinstance(problem(world, address), LostError)
    gc.collect()
