"""A TLS handshake over a plain socket, to say in one sentence why a connection fails.

gRPC does not show a server's certificate to this side, and what it reports of a failed connection
is for whoever writes gRPC. This goes the same way with plain sockets: look the host up, connect,
shake hands, read the certificate, wait for the first byte.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
from contextlib import suppress

from tacit.errors import LostError, PeerError, TacitError, UsageError
from tacit.wire.address import resolve
from tacit.wire.transport.tls import SUFFIX, Identity, check_identity, check_name, peer_name

PROTOCOL = "h2"  # what gRPC speaks inside TLS
# OpenSSL's numbers for what is wrong with the peer's certificate.
_NOT_YET, _EXPIRED, _WRONG_NAME = 9, 10, 62
_ALERTS = {
    "UNKNOWN_CA": "it is not from a CA that is trusted there",
    "CERTIFICATE_EXPIRED": "it is expired",
    "CERTIFICATE_REQUIRED": "it was missing",
    "BAD_CERTIFICATE": "it is damaged or of a wrong kind",
}
_CLOSED = (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)


def explain(address: str, *, identity: Identity, peer: str, timeout: float = 5.0) -> str | None:
    """Return why `peer` cannot be reached at an address, or None if it can."""
    problem = diagnose(address, identity=identity, peer=peer, timeout=timeout)
    return None if problem is None else str(problem)


def diagnose(address: str, *, identity: Identity, peer: str, timeout: float) -> TacitError | None:
    """Return the same as an error; it is a LostError where trying again may help."""
    try:
        verified_certificate(address, identity=identity, peer=peer, timeout=timeout)
    except TacitError as error:
        return error
    return None


def verified_certificate(address: str, *, identity: Identity, peer: str, timeout: float) -> bytes:
    """Return the certificate of the party that listens at an address, in PEM.

    Guarantee: it is from our CA and valid now, whoever listens there has its key, and it names
    `peer` by the rule of ``party_name``. A connection that trusts this certificate alone leads to
    its holder.
    """
    check_name(peer)
    try:
        return _attempt(address, identity=identity, peer=peer, timeout=timeout)
    except PeerError:
        # A peer that dies now closes as one that refuses does, but only the latter does so twice.
        return _attempt(address, identity=identity, peer=peer, timeout=timeout)


def _attempt(address: str, *, identity: Identity, peer: str, timeout: float) -> bytes:
    context = _context(identity, strict=True)
    try:
        with _connect(context, address, name=peer, timeout=timeout) as secure:
            return _certificate(secure, identity=identity, peer=peer, at=address)
    except ssl.SSLCertVerificationError as error:
        problem = _their_certificate(error, address, identity=identity, peer=peer, timeout=timeout)
    except ssl.SSLError as error:
        problem = _handshake(error, address, peer)
    except TimeoutError:
        problem = LostError(
            f"{address} gave no answer within {timeout:g} s: check the address, the network and "
            "whether a firewall is in between"
        )
    except ConnectionRefusedError:
        problem = LostError(
            f"nobody listens at {address}: start {peer} first, or check the address"
        )
    except OSError as error:
        problem = LostError(f"{address} cannot be reached: {error.strerror or error}")
    raise problem


def _connect(context: ssl.SSLContext, address: str, *, name: str, timeout: float) -> ssl.SSLSocket:
    """Return a connection after its handshake; the first IP address that answers is taken.

    The socket is wrapped before it connects: Python never closes one that the peer resets between
    the two.
    """
    problem: OSError = ConnectionRefusedError()
    for family, endpoint in resolve(address):
        plain = socket.socket(family, socket.SOCK_STREAM)
        secure = context.wrap_socket(plain, server_hostname=name + SUFFIX)
        secure.settimeout(timeout)
        try:
            secure.connect(endpoint)
        except OSError as error:
            secure.close()
            if isinstance(error, ssl.SSLError):
                raise
            problem = error
        else:
            return secure
    raise problem


def _context(identity: Identity, *, strict: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = strict
    context.hostname_checks_common_name = False
    context.set_alpn_protocols([PROTOCOL])
    context.load_verify_locations(cadata=identity.ca_pem.decode())
    # Python reads a key only from a file: this one has no name, so nobody else can open it.
    with tempfile.TemporaryFile() as file:
        file.write(identity.key_pem + b"\n" + identity.certificate_pem)
        file.seek(0)
        context.load_cert_chain(f"/dev/fd/{file.fileno()}")
    return context


def _certificate(secure: ssl.SSLSocket, *, identity: Identity, peer: str, at: str) -> bytes:
    if secure.selected_alpn_protocol() != PROTOCOL:
        raise UsageError(f"{at} is not a party that listens: check the address")
    shown = secure.getpeercert(binary_form=True) or b""
    _check_rule(shown, peer=peer, at=at)
    # With TLS 1.3 the handshake ends here before the peer has looked at our certificate.
    first = b""
    with suppress(*_CLOSED):
        first = secure.recv(1)
    if not first:
        raise PeerError(_our_certificate(identity, peer, at))
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def _check_rule(shown: bytes, *, peer: str, at: str) -> None:
    try:
        name = peer_name(shown)
    except UsageError as error:
        raise PeerError(f"the certificate at {at} is not a party's: {error}") from None
    if name != peer:
        raise PeerError(_other(at, f"party {name}", peer))


def _other(at: str, name: str, peer: str) -> str:
    return (
        f"the certificate at {at} is for {name}, not for party {peer}: check the address and the "
        "peer's name"
    )


def _our_certificate(identity: Identity, peer: str, at: str) -> str:
    """Say why a peer hung up without a word, as gRPC does, on seeing our certificate."""
    try:
        check_identity(identity)
    except UsageError as error:
        return f"{peer} at {at} refused our certificate: {error}"
    return (
        f"{peer} at {at} refused our certificate: its CA file or its clock is not ours; the "
        f"reason is on its side, in what it wrote to stderr"
    )


def _their_certificate(
    error: ssl.SSLCertVerificationError, at: str, *, identity: Identity, peer: str, timeout: float
) -> TacitError:
    whose = f"the certificate of {peer} at {at}"
    match error.verify_code:
        case code if code == _EXPIRED:
            return PeerError(f"{whose} is expired: have {peer} make a new one")
        case code if code == _NOT_YET:
            return PeerError(f"{whose} is not valid yet: check the clocks on both sides")
        case code if code == _WRONG_NAME:
            name = _name_at(at, identity=identity, timeout=timeout)
            return PeerError(_other(at, name, peer))
    return PeerError(
        f"{whose} is not from our CA: both sides need the same CA ({error.verify_message})"
    )


def _name_at(at: str, *, identity: Identity, timeout: float) -> str:
    """Return whom the certificate there is for; that it is from our CA is still checked."""
    with suppress(OSError, TacitError):
        context = _context(identity, strict=False)
        with _connect(context, at, name="any", timeout=timeout) as secure:
            return f"party {peer_name(secure.getpeercert(binary_form=True) or b'')}"
    return "another name"


def _handshake(error: ssl.SSLError, at: str, peer: str) -> TacitError:
    if isinstance(error, _CLOSED):
        return LostError(f"{peer} at {at} hung up during the handshake: it is busy or stopping")
    reason = error.reason or ""
    for alert, meaning in _ALERTS.items():
        if alert in reason:
            return PeerError(f"{peer} at {at} refused our certificate: {meaning}")
    if "ALERT" in reason:
        said = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return PeerError(f"{peer} at {at} refused the handshake: {said}")
    return UsageError(f"what listens at {at} does not speak TLS: check the address")
