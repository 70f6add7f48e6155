"""Lines over gRPC: one call with a stream of frames each way, under mutual TLS, never without.

gRPC does TLS, flow control and keepalive; a frame is one message of raw bytes. Each line has two
threads, one per direction, that gRPC feeds or waits for, with a pipe of few frames in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Thread
from time import monotonic
from typing import Any, final

import grpc

from tacit.errors import InputError, LostError, PeerError, TacitError
from tacit.runtime._address import resolve
from tacit.runtime._frame_header import Limits
from tacit.runtime._pipe import FOREVER, Pipe
from tacit.runtime.identity import SUFFIX, Identity, check_identity
from tacit.runtime.line import Line

__all__ = ["ACCEPTED", "METHOD", "SERVICE", "GrpcLine", "dial", "options"]

SERVICE, METHOD = "tacit.Line", "Frames"
ACCEPTED = ("tacit-accepted", "1")
WAITING = 2  # frames; a queue of large ones is memory that the peer decides about
FLUSH = 2.0  # seconds for what was handed over to leave when a line is closed
ALIVE = 10_000  # ms between signs of life, and until a missing one is a lost connection


@final
class GrpcLine(Line):
    """One end of a call.

    Args:
        peer: the name in the peer's certificate.
        limits: of both directions.
        hang_up: ends the call at once.
    """

    def __init__(self, peer: str, *, limits: Limits, hang_up: Callable[[], object]) -> None:
        self._peer = peer
        self._most = limits.max_bytes
        self._hang_up = hang_up
        self._outgoing = Pipe(waiting=WAITING, peer=peer)
        self._incoming = Pipe(waiting=WAITING, peer=peer)
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
            raise InputError(f"a frame has at most {self._most} bytes, got {len(frame)}: "
                             f"use a smaller batch, or raise the limit on both sides")  # fmt: skip
        self._outgoing.put(frame, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Return the next frame that the receiving thread has."""
        return self._incoming.get(timeout=timeout)

    def close(self) -> None:
        """Let what was handed over leave, for two seconds at most, then end the call."""
        closed = LostError(f"the connection to {self._peer} was closed at this end")
        self._incoming.end(closed, drop=True)
        self._outgoing.end(closed)
        self._over.wait(FLUSH)
        self._hang_up()

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
        self.end(LostError(f"{self._peer} closed the connection"))

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
    """Return the channel arguments that both sides share."""
    return [
        ("grpc.max_send_message_length", limits.max_bytes),
        ("grpc.max_receive_message_length", limits.max_bytes),
        ("grpc.keepalive_time_ms", ALIVE),
        ("grpc.keepalive_timeout_ms", ALIVE),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def dial(address: str, *, identity: Identity, peer: str, limits: Limits, timeout: float) -> Line:
    """Connect to a party that listens; its certificate must be for `peer`.

    Raises ``LostError`` if it may be tried again, ``PeerError`` or ``UsageError`` if that is
    pointless.
    """
    check_identity(identity)
    resolve(address)
    deadline = monotonic() + timeout
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.ca_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )
    own = [
        ("grpc.ssl_target_name_override", peer + SUFFIX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
    ]
    channel = grpc.secure_channel(f"dns:///{address}", credentials, options(limits) + own)
    line = GrpcLine(peer, limits=limits, hang_up=channel.close)
    accepted, settled = Event(), Event()
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(line.outgoing())
    call.add_done_callback(lambda _: line.finish())
    Thread(target=_receive, args=(line, call, accepted, settled), daemon=True).start()
    settled.wait(deadline - monotonic())
    if not accepted.is_set():
        channel.close()
        raise _refused(call, address, peer)
    return line


def _receive(line: GrpcLine, call: Any, accepted: Event, settled: Event) -> None:  # noqa: ANN401
    try:
        if ACCEPTED in call.initial_metadata():
            accepted.set()
            settled.set()
        line.take(call)
    except grpc.RpcError:
        line.end(LostError(f"the connection to {line.peer} is gone: {call.details()}"))
    finally:
        settled.set()


def _refused(call: Any, address: str, peer: str) -> TacitError:  # noqa: ANN401
    code = call.code()
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return PeerError(f"{peer} at {address} refused: {call.details()}")
    return LostError(f"{peer} at {address} cannot be reached: {call.details()}")
