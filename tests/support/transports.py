"""Real certificates, real listeners and both ends of a connection, for the tests of the wire."""

import ssl
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tacit.wire.protocol.header import Limits
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.tls import load_identity, make_ca, make_party

PATIENCE = 60.0  # seconds; nothing here takes one of them unless the machine is busy
LIMITS = Limits(max_bytes=4 * 2**20)
NOW = datetime.now(UTC)
PAST, FUTURE = NOW - timedelta(days=100), NOW + timedelta(days=100)


def make_world(folder):
    """Two authorities with a bank and a clinic each; the first also knows others."""
    make_ca(folder / "one", now=PAST)
    make_ca(folder / "two")
    for name in ("bank", "clinic", "lab", "outsider"):
        make_party(folder / "one", name)
    for name in ("bank", "clinic"):
        make_party(folder / "two", name)
    make_party(folder / "one", "late", now=PAST)
    make_party(folder / "one", "early", now=FUTURE)
    return folder


def who(world, name, authority="one"):
    return load_identity(world / authority, name=name)


def tls(world, name=None, *, authority="one", trusts="one", server=False):
    """A plain TLS context, to speak without what gRPC or the probe would check first."""
    kind = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(kind)
    context.load_verify_locations(world / trusts / "ca.pem")
    context.set_alpn_protocols(["h2"])
    if server:
        context.verify_mode = ssl.CERT_REQUIRED
    if name is not None:
        context.load_cert_chain(*(world / authority / f"{name}.{end}" for end in ("pem", "key")))
    return context


@contextmanager
def listening(world, *, peers=("clinic",), limits=LIMITS, log=None):
    """A bank that listens at a free port."""
    log = [] if log is None else log
    listener = Listener(
        "127.0.0.1:0", identity=who(world, "bank"), peers=peers, limits=limits, log=log.append
    )
    try:
        yield listener
    finally:
        listener.close()


def connect(
    world, address, name="clinic", *, authority="one", peer="bank", limits=LIMITS, timeout=PATIENCE
):
    identity = who(world, name, authority)
    return dial(address, identity=identity, peer=peer, limits=limits, timeout=timeout)


@contextmanager
def connected(world, *, limits=LIMITS):
    """The clinic's end and the bank's end of a transport over gRPC."""
    with listening(world, limits=limits) as listener, connect(world, listener.address) as transport:
        yield transport, listener.accept(timeout=PATIENCE)
