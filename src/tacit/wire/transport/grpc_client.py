"""Transports over gRPC: one call with a stream of frames each way, under mutual TLS, never without.

gRPC does TLS, flow control and keepalive; a frame is one message of raw bytes. Each end has two
threads, one per direction, with a queue of few frames between them and whoever uses it: gRPC
reads no further while nobody takes a frame, and so holds a flood back at its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic
from typing import Any, TypeAlias, final

import grpc

from tacit.errors import InputError, LostError, PeerError, TacitError
from tacit.wire.protocol.header import Limits
from tacit.wire.transport.base import FOREVER, BoundedQueue, Transport
from tacit.wire.transport.tls import SUFFIX, Identity, check_identity, check_name
from tacit.wire.transport.tls_diagnose import diagnose, verified_certificate

SERVICE, METHOD = "tacit.Line", "Frames"
ACCEPTED = ("tacit-accepted", "1")
WAITING = 2  # frames; a queue of large ones is memory that the peer decides about
FLUSH = 2.0  # seconds for what was handed over to leave when a transport is closed
ALIVE = 10_000  # ms between signs of life, and as many until a missing one means a lost peer
Call: TypeAlias = Any  # gRPC ships no types


@final
class GrpcTransport(Transport):
    """One end of a call.

    Args:
        peer: the name in the peer's certificate.
        limits: of both directions.
        hang_up: ends the call at once.
        drain: waits until what gRPC has written has left the process.
    """

    def __init__(
        self,
        peer: str,
        *,
        limits: Limits,
        hang_up: Callable[[], object],
        drain: Callable[[], object] | None = None,
    ) -> None:
        self._peer = peer
        self._most = limits.max_bytes
        self._hang_up = hang_up
        self._drain = drain
        self._outgoing = BoundedQueue(waiting=WAITING, peer=peer)
        self._incoming = BoundedQueue(waiting=WAITING, peer=peer)
        self._over = Event()

    @property
    def peer(self) -> str:
        """The name in the peer's certificate, which TLS has checked."""
        return self._peer

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        return self._over.is_set()

    def send(self, frame: bytes, *, timeout: float) -> None:
        """Hand a frame to gRPC's thread."""
        if len(frame) > self._most:
            raise InputError(
                f"a frame has at most {self._most} bytes, got {len(frame)}: "
                f"use a smaller batch, or raise the limit on both sides"
            )
        self._outgoing.put(frame, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Return the next frame that the receiving thread has."""
        return self._incoming.get(timeout=timeout)

    def close(self) -> None:
        """Let what was handed over leave, for two seconds at most, then end the call."""
        closed = LostError(f"the connection to {self._peer} was closed at this end")
        self._incoming.end(closed, drop=True)
        self._outgoing.end(closed)
        if self._over.wait(FLUSH) and self._drain is not None:
            self._drain()
        self.cut()

    def cut(self) -> None:
        """End the call at once."""
        # In a thread, because gRPC first waits for a write that the network may never take.
        Thread(target=self._hang_up, daemon=True).start()

    def outgoing(self) -> Iterator[bytes]:
        """Yield what is to be sent until the end; runs in a thread of gRPC's."""
        while True:
            try:
                frame = self._outgoing.get(timeout=FOREVER)
            except TacitError:
                return
            yield frame

    def take(self, frames: Iterator[bytes]) -> None:
        """Receive until the peer ends its stream, or raise what gRPC raises."""
        for frame in frames:
            try:
                self._incoming.put(frame, timeout=FOREVER)
            except TacitError:
                return  # closed at this end

    def end(self, error: TacitError) -> None:
        """Note that nothing more will come; what came can still be received."""
        self._incoming.end(error)
        self._outgoing.end(error)

    def finish(self) -> None:
        """Note that the call is over."""
        # The incoming pipe ends when the receiving thread has read what came before the end.
        self._outgoing.end(LostError(f"the connection to {self._peer} is gone"), drop=True)
        self._over.set()


def options(limits: Limits) -> list[tuple[str, Any]]:
    """Return the channel arguments that both sides share.

    Windows and buffers are gRPC's own: larger ones were measured and made nothing faster.
    """
    return [
        ("grpc.max_send_message_length", limits.max_bytes),
        ("grpc.max_receive_message_length", limits.max_bytes),
        ("grpc.keepalive_time_ms", ALIVE),
        ("grpc.keepalive_timeout_ms", ALIVE),
        ("grpc.http2.ping_timeout_ms", ALIVE),  # or a stopped peer is waited for a whole minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # as many as it takes: a peer may compute long
        ("grpc.http2.min_ping_interval_without_data_ms", ALIVE // 2),
        ("grpc.max_metadata_size", 8192),
    ]


def dial(
    address: str, *, identity: Identity, peer: str, limits: Limits, timeout: float
) -> Transport:
    """Connect to a party that listens; its certificate must be for `peer`.

    gRPC takes a name that is only the common name, or a pattern, and does not show the certificate
    to this side. So a handshake of our own checks the certificate first, and gRPC is then given
    that one certificate to trust and nothing else: it connects to the holder of that certificate's
    key or to nobody.

    Raises ``LostError`` if it may be tried again, ``PeerError`` or ``UsageError`` if that is
    pointless.
    """
    check_identity(identity)
    check_name(peer)
    end = monotonic() + timeout
    known = verified_certificate(address, identity=identity, peer=peer, timeout=timeout)
    channel = _channel(address, identity, peer, known, limits)
    transport = GrpcTransport(peer, limits=limits, hang_up=channel.close)
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(transport.outgoing())
    call.add_done_callback(lambda _: transport.finish())
    answer: Future[TacitError | None] = Future()
    Thread(target=_receive, args=(transport, call, answer), daemon=True).start()
    try:
        problem = answer.result(max(0.0, end - monotonic()))
    except TimeoutError:
        transport.cut()
        raise LostError(f"{peer} at {address} has not answered within {timeout:g} s") from None
    if problem is None:
        return transport
    transport.cut()
    if call.code() is grpc.StatusCode.UNAVAILABLE:
        # gRPC's message is for its developers; our own handshake gives one for operators.
        left = max(1.0, end - monotonic())
        problem = diagnose(address, identity=identity, peer=peer, timeout=left) or problem
    raise problem


def _channel(address: str, identity: Identity, peer: str, known: bytes, limits: Limits) -> Any:  # noqa: ANN401
    credentials = grpc.ssl_channel_credentials(
        root_certificates=known,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    own = [
        ("grpc.ssl_target_name_override", peer + SUFFIX),
        ("grpc.use_local_subchannel_pool", 1),  # a new transport is a new connection
        ("grpc.enable_http_proxy", 0),  # the address given, not one from the environment
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]
    return grpc.secure_channel(f"dns:///{address}", credentials, options(limits) + own)


def _receive(transport: GrpcTransport, call: Call, answer: Future[TacitError | None]) -> None:
    """Wait until the peer takes the call, then receive; runs in a thread of its own."""
    problem: TacitError = LostError(f"{transport.peer} closed the connection")
    try:
        if ACCEPTED in call.initial_metadata():
            answer.set_result(None)
        transport.take(call)
    except grpc.RpcError:
        problem = _problem(call, transport.peer)
    transport.end(problem)
    if not answer.done():
        answer.set_result(problem)


def _problem(call: Call, peer: str) -> TacitError:
    """Return why a call has ended; trying again helps where the error is a LostError."""
    code, details = call.code(), " ".join((call.details() or "").split())
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return PeerError(f"{peer} refused the connection: {details}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PeerError(f"{peer} speaks another protocol: run the same release on both sides")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        whose = f"a frame for {peer}" if "SERVER" in details else f"a frame from {peer}"
        return PeerError(f"{whose} is too large: {details}: agree on smaller batches")
    return LostError(f"the connection to {peer} is gone: {details}")
