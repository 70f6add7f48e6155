"""Whose certificate it is: real handshakes with certificates that name a party wrongly."""

import ipaddress
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.errors import LostError, PeerError, SilenceError
from tacit.wire.transport.grpc_client import ACCEPTED, METHOD, SERVICE, dial
from tacit.wire.transport.tls import Identity
from transports import LIMITS, NOW, PAST, PATIENCE, connect, listening, make_world, who

# Certificates of the right authority for "bank" in ways that are against the rule: common name,
# alternative names.
BAD = {
    "only a common name": ("bank.tacit", []),
    "a common name beside a host": ("bank.tacit", ["split.example"]),
    "a common name beside another party": ("bank.tacit", ["outsider.tacit"]),
    "a wildcard": (None, ["*.tacit"]),
    "a wildcard beside the name": (None, ["bank.tacit", "*.tacit"]),
    "a wildcard for hosts": (None, ["bank.tacit", "*.example"]),
    "two parties": (None, ["bank.tacit", "outsider.tacit"]),
    "the same party twice": (None, ["bank.tacit", "bank.tacit"]),
    "a second party with a dot at the end": (None, ["bank.tacit", "outsider.tacit."]),
    "a dot at the end": (None, ["bank.tacit."]),
    "capitals hide a second party": (None, ["bank.tacit", "SPY.TACIT"]),
    "a party of a party": (None, ["bank.tacit", "a.bank.tacit"]),
}
GOOD = {
    "the name alone": (None, ["bank.tacit"]),
    "a common name of no meaning": ("outsider.tacit", ["bank.tacit"]),
    "hosts beside it": (None, ["split.example", "bank.tacit", "127.0.0.1", "::1"]),
    "a host that only looks like it": (None, ["bank.tacit", "outsider.tacit.example", "xtacit"]),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("keys"))


def alternative(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def issue(world, common, names):
    """Return an identity with these names, that the authority of the world has signed."""
    folder = world / "one"
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [] if common is None else [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    draft = x509.CertificateBuilder(ca.subject, x509.Name(subject), key.public_key(), 7)
    draft = draft.not_valid_before(PAST).not_valid_after(NOW + timedelta(days=1))
    if names:
        draft = draft.add_extension(
            x509.SubjectAlternativeName([alternative(name) for name in names]), critical=False
        )
    sides = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    draft = draft.add_extension(x509.ExtendedKeyUsage(sides), critical=False)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made = draft.sign(signer, hashes.SHA256())
    return Identity("bank", made.public_bytes(pem), secret, (folder / "ca.pem").read_bytes())


@contextmanager
def serving(identity, calls):
    """A gRPC server with a certificate as given, which takes every call and echoes."""

    def talk(frames, context):
        calls.append(context.peer())
        context.send_initial_metadata((ACCEPTED,))
        yield from frames

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(talk)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        credentials = grpc.ssl_server_credentials(
            [(identity.key_pem, identity.certificate_pem)],
            root_certificates=identity.ca_pem,
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(0).wait(PATIENCE)


def dial_there(world, port):
    return dial(
        f"127.0.0.1:{port}",
        identity=who(world, "clinic"),
        peer="bank",
        limits=LIMITS,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("case", BAD)
def test_a_server_whose_certificate_is_against_the_rule_is_refused(world, case):
    calls = []
    with serving(issue(world, *BAD[case]), calls) as port:
        with pytest.raises(PeerError, match=r"certificate at 127\.0\.0\.1"):
            dial_there(world, port)
        assert not calls, "not a single call may reach it"


@pytest.mark.parametrize("case", GOOD)
def test_a_server_whose_certificate_keeps_the_rule_is_taken(world, case):
    with serving(issue(world, *GOOD[case]), []) as port, dial_there(world, port) as transport:
        transport.send(b"frame", timeout=PATIENCE)
        assert transport.receive(timeout=PATIENCE) == b"frame"


def call(identity, port):
    """Call a listener with a certificate as given; return the code and the reason it ends with."""
    credentials = grpc.ssl_channel_credentials(
        identity.ca_pem, identity.key_pem, identity.certificate_pem
    )
    own = [("grpc.ssl_target_name_override", "bank.tacit")]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, own) as channel:
        try:
            list(channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([]), timeout=PATIENCE))
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("case", BAD)
def test_a_client_whose_certificate_is_against_the_rule_is_refused(world, case):
    log = []
    with listening(world, peers=("bank", "outsider"), log=log) as listener:
        code, reason = call(issue(world, *BAD[case]), listener.port)
        if case == "a common name beside another party":  # it is that party, whatever else it says
            assert [line.partition(" ")[0] for line in log] == ["outsider"]
            return
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "certificate" in reason
        assert [line.startswith("refused a connection") for line in log] == [True]
        with pytest.raises(SilenceError):
            listener.accept(timeout=0.05)


@pytest.mark.parametrize("case", GOOD)
def test_a_client_whose_certificate_keeps_the_rule_is_taken(world, case):
    with listening(world, peers=("bank",)) as listener:
        assert call(issue(world, *GOOD[case]), listener.port)[0] is grpc.StatusCode.OK


@contextmanager
def switching(ports):
    """Connections go to the first port, then to the second, and all later ones to the last."""

    def pass_on(source, sink):
        with suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    threads, opened = [], []

    def accept(server):
        left = list(ports)
        with suppress(OSError):
            while True:
                here, _ = server.accept()
                port = left.pop(0) if len(left) > 1 else left[0]
                there = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                opened.extend((here, there))
                for way in ((here, there), (there, here)):
                    threads.append(threading.Thread(target=pass_on, args=way, daemon=True))
                    threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            for each in opened:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for each in threads:
                each.join(PATIENCE)
            for each in opened:
                each.close()


@pytest.mark.parametrize("case", ["only a common name", "a wildcard", "two parties", None])
def test_the_certificate_that_was_checked_is_the_one_that_is_trusted(world, case):
    """Whoever shows the right one first and another then, even a right one, gets no call."""
    second = issue(world, *(BAD[case] if case else GOOD["the name alone"]))
    calls = []
    with (
        serving(who(world, "bank"), calls) as good,
        serving(second, calls) as other,
        switching([good, other, good]) as port,
    ):
        with pytest.raises(LostError):
            dial_there(world, port)
        assert not calls
        with dial_there(world, good) as transport:
            transport.send(b"frame", timeout=PATIENCE)
            assert transport.receive(timeout=PATIENCE) == b"frame"


def test_both_sides_of_a_connection_keep_the_rule_with_the_trial_authority(world):
    with listening(world) as listener, connect(world, listener.address) as transport:
        assert (transport.peer, listener.accept(timeout=PATIENCE).peer) == ("bank", "clinic")
