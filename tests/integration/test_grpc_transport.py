"""Lines over real gRPC: who gets in, what is bounded, and how an end is noticed."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from tacit.errors import InputError, LostError, PeerError, SilenceError, UsageError
from tacit.wire.protocol.header import Limits
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from transports import LIMITS, PATIENCE, connect, connected, listening, make_world, tls, who

HERE = ("127.0.0.1", 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


def take(transport):
    return transport.receive(timeout=PATIENCE)


def lost(transport):
    """Return why a transport is lost, and that it is not merely silent."""
    with pytest.raises(LostError) as caught:
        transport.receive(timeout=PATIENCE)
    assert not isinstance(caught.value, SilenceError)
    return str(caught.value)


def rounds(transport, other, count=3):
    for n in range(count):
        transport.send(b"%d" % n, timeout=PATIENCE)
        assert take(other) == b"%d" % n


def test_two_parties_know_each_other_by_their_certificates(world):
    log = []
    with listening(world, log=log) as listener, connect(world, listener.address) as transport:
        other = listener.accept(timeout=PATIENCE)
        assert (transport.peer, other.peer) == ("bank", "clinic")
        rounds(transport, other)
        rounds(other, transport)
        assert listener.address == f"127.0.0.1:{listener.port}"
    assert [entry.partition(" from ")[0] for entry in log] == ["clinic connected"]


def test_a_listener_warns_where_the_reasons_of_refused_handshakes_are_hidden(world, monkeypatch):
    log = []
    monkeypatch.setenv("GRPC_VERBOSITY", "error")
    with listening(world, log=log):
        assert "GRPC_VERBOSITY hides why" in log[0]


def test_nobody_comes_and_a_closed_listener_says_so(world):
    silence = pytest.raises(SilenceError, match=r"no peer has connected .* 0\.05 s")
    with listening(world) as listener, silence:
        listener.accept(timeout=0.05)
    with pytest.raises(LostError, match="closed"):
        listener.accept(timeout=PATIENCE)


def test_another_ca_on_either_side_is_refused(world):
    with listening(world) as listener:
        with pytest.raises(PeerError, match="not from our CA"):
            connect(world, listener.address, authority="two")
        with pytest.raises(SilenceError):
            listener.accept(timeout=0.05)


def test_a_server_of_another_name_is_refused(world):
    refused = pytest.raises(PeerError, match="is for party bank, not for party lab")
    with listening(world) as listener, refused:
        connect(world, listener.address, peer="lab")


def test_a_party_that_is_not_a_peer_is_refused_with_a_reason_on_both_sides(world):
    log = []
    with listening(world, log=log) as listener:
        with pytest.raises(PeerError, match="party outsider is not one of the peers"):
            connect(world, listener.address, "outsider")
        assert "party outsider is not one of the peers" in log[0]
        assert "127.0.0.1:" in log[0]
        with pytest.raises(SilenceError):
            listener.accept(timeout=0.05)


@pytest.mark.parametrize(
    ("name", "authority"), [(None, "one"), ("late", "one"), ("early", "one"), ("clinic", "two")]
)
def test_tls_refuses_a_certificate_that_is_missing_expired_early_or_foreign(world, name, authority):
    with listening(world) as listener:
        plain = socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE)
        context = tls(world, name, authority=authority)
        with plain, context.wrap_socket(plain, server_hostname="bank.tacit") as secure:
            assert secure.recv(1) == b""
        with connect(world, listener.address) as transport:
            rounds(transport, listener.accept(timeout=PATIENCE))


def test_an_identity_that_cannot_serve_is_refused_before_anything_starts(world):
    late = who(world, "late")
    with pytest.raises(UsageError, match="expired"):
        Listener("127.0.0.1:0", identity=late, peers=["clinic"], limits=LIMITS, log=print)
    with pytest.raises(UsageError, match="expired"):
        dial("127.0.0.1:1", identity=late, peer="bank", limits=LIMITS, timeout=1)


def test_a_frame_over_the_limit_is_not_sent_and_not_taken(world):
    small = Limits(max_bytes=1000)
    with listening(world, limits=small) as listener, connect(world, listener.address) as transport:
        other = listener.accept(timeout=PATIENCE)
        with pytest.raises(InputError, match="at most 1000 bytes, got 1001"):
            other.send(bytes(1001), timeout=1)
        transport.send(bytes(1001), timeout=1)
        assert "clinic" in lost(other)
        with pytest.raises(PeerError, match="too large"):
            take(transport)
    with listening(world) as listener, connect(world, listener.address, limits=small) as transport:
        listener.accept(timeout=PATIENCE).send(bytes(1001), timeout=1)
        with pytest.raises(PeerError, match="too large"):
            take(transport)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("no-such-host..example:0", "no host name"),
        ("192.0.2.1:0", "not this machine"),
        ("7000", "give host:port"),
        ("127.0.0.1:70000", "give host:port"),
        ("unix:/tmp/x", "give host:port"),
    ],
)
def test_an_address_that_cannot_be_listened_at(world, address, says):
    with pytest.raises(UsageError, match=says) as caught:
        Listener(address, identity=who(world, "bank"), peers=[], limits=LIMITS, log=print)
    assert "\n" not in str(caught.value)


def test_a_taken_port_is_noticed_at_once(world):
    with listening(world) as listener, pytest.raises(UsageError, match="already in use"):
        Listener(listener.address, identity=who(world, "bank"), peers=[], limits=LIMITS, log=print)


def test_where_nobody_listens_it_may_be_tried_again_but_not_at_an_unknown_host(world):
    with socket.create_server(HERE) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(LostError, match=r"gave no answer within 0\.3 s"):
            connect(world, address, timeout=0.3)
    with pytest.raises(LostError, match="nobody listens"):
        connect(world, address)
    with pytest.raises(UsageError, match="unknown"):
        connect(world, "nobody.invalid.:1")


def test_a_newer_connection_of_the_same_party_replaces_the_older_one(world):
    log = []
    with listening(world, log=log) as listener, connect(world, listener.address) as old:
        first = listener.accept(timeout=PATIENCE)
        rounds(old, first)
        with connect(world, listener.address) as new:
            second = listener.accept(timeout=PATIENCE)
            assert "newer connection" in lost(first)
            assert "newer connection" in lost(old)
            rounds(new, second)
            rounds(second, new)
        assert "newer" in log[2]


def test_of_connections_that_nobody_accepted_the_newest_is_handed_out(world):
    with listening(world) as listener, ExitStack() as stack:
        opened = [stack.enter_context(connect(world, listener.address)) for _ in range(3)]
        rounds(opened[-1], listener.accept(timeout=PATIENCE))
        with pytest.raises(SilenceError):
            listener.accept(timeout=0.05)


def test_a_flood_is_held_back_at_its_source(world):
    with connected(world) as (transport, other):
        frame, taken = bytes(LIMITS.max_bytes), 0
        with suppress(SilenceError):
            while taken < 100:
                transport.send(frame, timeout=0.5)
                taken += 1
        assert taken <= 24  # two pipes of two, what the threads hold, the windows and buffers
        assert take(other) == frame


@contextmanager
def talking(transport, other):
    """Round trips in the background; yields a way to wait for more of them."""
    count, stop, more = [0], threading.Event(), threading.Condition()

    def talk():
        while not stop.is_set():
            rounds(transport, other, 1)
            with more:
                count[0] += 1
                more.notify_all()

    def await_more(least=20):
        with more:
            wanted = count[0] + least
            assert more.wait_for(lambda: count[0] >= wanted, PATIENCE), (
                "the honest transport stalled"
            )

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield await_more
    finally:
        stop.set()
        thread.join(PATIENCE)


def open_silent(world, address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def open_tls(world, address):
    plain = open_silent(world, address)
    try:
        return tls(world, "outsider").wrap_socket(plain, server_hostname="bank.tacit")
    except OSError:  # it had to make room for another
        plain.close()
        return plain


def open_call(world, address):
    return connect(world, address, "lab")


@pytest.mark.parametrize("open_one", [open_silent, open_tls, open_call])
def test_a_hundred_connections_do_not_disturb_the_honest_peer(world, open_one):
    with listening(world, peers=("clinic", "lab")) as listener, ExitStack() as stack:
        transport = stack.enter_context(connect(world, listener.address))
        with talking(transport, listener.accept(timeout=PATIENCE)) as await_more:
            with ThreadPoolExecutor(8) as pool:
                many = list(pool.map(partial(open_one, world), [listener.address] * 100))
            await_more()
            with connect(world, listener.address, "lab") as late:
                rounds(late, listener.accept(timeout=PATIENCE))
            for one in many:
                stack.callback(one.close)
            await_more()
