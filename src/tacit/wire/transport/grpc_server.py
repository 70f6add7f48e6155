"""The listening side of transports over gRPC: who may connect, and one transport each.

Connections come in through a ``ConnectionLimiter``, which bounds those that have not said who they
are, and are passed on to gRPC at a socket inside. Whoever connects is refused by TLS without a
certificate of our CA, and by name if the certificate is not for one of the peers. TLS is done
inside gRPC, which writes the reason of a failed handshake to stderr ("Handshake failed ...") and
tells nobody else; every other refusal goes to the log.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any, NoReturn, TypeAlias, final
from urllib.parse import unquote

import grpc

from tacit.errors import LostError, SilenceError, UsageError
from tacit.wire.address import open_sockets, parse_address
from tacit.wire.protocol.header import Limits
from tacit.wire.transport.base import Transport
from tacit.wire.transport.connection_limiter import ConnectionLimiter, ConnectionSlots
from tacit.wire.transport.grpc_client import (
    ACCEPTED,
    FLUSH,
    METHOD,
    SERVICE,
    GrpcTransport,
    options,
)
from tacit.wire.transport.tls import Identity, check_identity, check_name, peer_name

SPAN = 60.0  # seconds


@final
class LimitedLog:
    """Passes lines on, up to a number per minute.

    Args:
        log: called with each of them.
        most: lines per minute; the number of those left out comes with the next minute's first.
    """

    def __init__(self, log: Callable[[str], None], *, most: int) -> None:
        self._log, self._most = log, most
        self._start, self._count = time.monotonic(), 0
        self._lock = Lock()

    def __call__(self, line: str) -> None:
        """Pass a line on, or count it."""
        with self._lock:
            now, left_out = time.monotonic(), 0
            if now - self._start >= SPAN:
                left_out, self._start, self._count = max(0, self._count - self._most), now, 0
            self._count += 1
            told = self._count <= self._most
        if left_out:
            self._log(f"{left_out} more lines about connections were left out")
        if told:
            self._log(line)


SOCKET = "grpc"
_BEFORE = "tacit-socket-"


def socket_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a socket; it goes with the process, or with the next one's start."""
    for left in Path(tempfile.gettempdir()).glob(f"{_BEFORE}*"):
        with suppress(OSError):
            if _left_behind(left):
                shutil.rmtree(left)
    return tempfile.TemporaryDirectory(prefix=f"{_BEFORE}{os.getpid()}-")


def _left_behind(folder: Path) -> bool:
    """Whether a folder is this user's, its process is gone and nobody listens in it."""
    number = folder.name.removeprefix(_BEFORE).partition("-")[0]
    if folder.lstat().st_uid != os.getuid() or not number.isdigit() or _alive(int(number)):
        return False
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(folder / SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
    return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


Context: TypeAlias = Any  # gRPC ships no types
MOST_CONNECTIONS = 512  # inside, where no more can come than the acceptor lets in
LOG_LINES = 60  # in the log per minute: clients decide how often they connect
HANDSHAKE = 5_000  # ms for a connection to become one; only then is its slot free again
SLOTS = ConnectionSlots()
IDLE = 20_000  # ms that a connection may have no transport


@final
class Listener:
    """Waits for the parties in `peers`, each with one transport at a time.

    Args:
        address: host and port to listen at; port 0 takes a free one.
        identity: who listens.
        peers: the names of the parties that may connect.
        limits: on the frames of every transport.
        log: takes one sentence per connection that comes, is replaced or refused.
    """

    def __init__(
        self,
        address: str,
        *,
        identity: Identity,
        peers: Collection[str],
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        check_identity(identity)
        self._peers = frozenset(map(check_name, peers))
        self._limits, self._log = limits, LimitedLog(log, most=LOG_LINES)
        self._transports: dict[str, GrpcTransport] = {}
        self._connections: dict[str, str] = {}  # by which each peer's transport came
        self._fresh: dict[str, GrpcTransport] = {}  # not yet accepted: the newest of each peer
        self._closed = False
        self._changed = Condition()
        self._host, sockets = parse_address(address)[0], open_sockets(address)
        self._port: int = sockets[0].getsockname()[1]
        self._folder = socket_folder()
        inner = Path(self._folder.name, SOCKET)
        self._acceptor = ConnectionLimiter(sockets, inner=inner, slots=SLOTS, log=self._log)
        self._server = _server(self._talk, len(self._peers), limits)
        try:
            _add_port(self._server, inner, identity)
        except UsageError:
            self._acceptor.close()
            self._folder.cleanup()
            raise
        self._server.start()
        self._acceptor.start()
        if os.environ.get("GRPC_VERBOSITY", "").upper() in {"ERROR", "NONE"}:
            log("GRPC_VERBOSITY hides why TLS refuses a connection: unset it to see that on stderr")

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        """Host and port, as a peer dials them."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def accept(self, *, timeout: float) -> Transport:
        """Return the next connection of an allowed peer; SilenceError if none comes in time."""
        with self._changed:
            if not self._changed.wait_for(self._may_accept, timeout):
                raise SilenceError(f"no peer has connected to {self.address} for {timeout:g} s")
            if self._closed:
                raise LostError(f"the listener at {self.address} is closed")
            return self._fresh.pop(next(iter(self._fresh)))

    def close(self) -> None:
        """End all transports, letting what was handed over leave, and stop listening."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            transports = list(self._transports.values())
        closers = [Thread(target=transport.close, daemon=True) for transport in transports]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        self._server.stop(0).wait(FLUSH)
        self._acceptor.close()
        self._folder.cleanup()

    def _may_accept(self) -> bool:
        self._fresh = {
            name: transport for name, transport in self._fresh.items() if not transport.over
        }
        return bool(self._fresh) or self._closed

    def _talk(self, frames: Iterator[bytes], context: Context) -> Iterator[bytes]:
        """Take a call; runs in a thread of its own, which then sends what the iterator yields."""
        connection = _connection(context)
        transport = GrpcTransport(
            self._name(context),
            limits=self._limits,
            hang_up=context.cancel,
            drain=partial(self._acceptor.catch_up, connection, timeout=FLUSH),
        )
        if not context.add_callback(transport.finish):
            transport.finish()
        self._enter(transport, connection)
        context.send_initial_metadata((ACCEPTED,))
        Thread(target=_receive, args=(transport, frames), daemon=True).start()
        return self._outgoing(transport, context)

    def _name(self, context: Context) -> str:
        """Return whose certificate TLS has checked, or refuse the call."""
        try:
            name = peer_name(context.auth_context()["x509_pem_cert"][0])
        except (UsageError, LookupError) as error:
            self._refuse(context, str(error))
        if name not in self._peers:
            self._refuse(context, f"party {name} is not one of the peers here")
        return name

    def _refuse(self, context: Context, reason: str) -> NoReturn:
        connection = _connection(context)
        self._log(f"refused a connection from {self._acceptor.origin(connection)}: {reason}")
        self._acceptor.drop(connection)
        context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        raise AssertionError("abort has raised")

    def _enter(self, transport: GrpcTransport, connection: str) -> None:
        """Make this the transport of its peer: after a cut the older one may only look alive."""
        self._acceptor.admit(connection)
        with self._changed:
            old, before = (
                self._transports.get(transport.peer),
                self._connections.get(transport.peer),
            )
            self._transports[transport.peer] = self._fresh[transport.peer] = transport
            self._connections[transport.peer] = connection
            self._changed.notify_all()
        self._log(f"{transport.peer} connected from {self._acceptor.origin(connection)}")
        if old is not None and not old.over:
            self._log(f"the older connection of {transport.peer} ends: a newer one replaces it")
            old.end(LostError(f"a newer connection of {transport.peer} replaced this one"))
            Thread(target=old.close, daemon=True).start()
        if before not in (None, connection):
            self._acceptor.drop(before)

    def _outgoing(self, transport: GrpcTransport, context: Context) -> Iterator[bytes]:
        yield from transport.outgoing()
        if self._transports[transport.peer] is not transport:
            reason = f"a newer connection of {transport.peer} replaced this one"
            context.abort(grpc.StatusCode.ABORTED, reason)


def _receive(transport: GrpcTransport, frames: Iterator[bytes]) -> None:
    # gRPC tells the reason of an end only to the side that called.
    with suppress(grpc.RpcError):
        transport.take(frames)
    transport.end(LostError(f"{transport.peer} has closed the connection or is gone"))


def _connection(context: Context) -> str:
    """Return the name by which the acceptor has passed this connection on."""
    return unquote(context.peer()).partition(":")[2]


def _server(talk: Callable[..., Iterator[bytes]], peers: int, limits: Limits) -> Any:  # noqa: ANN401
    own = [
        ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
        ("grpc.max_concurrent_streams", 2),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE),
        ("grpc.max_connection_idle_ms", IDLE),
    ]
    # Two transports per peer while one replaces the other, and room for calls to be refused.
    most = 4 * peers + 16
    server = grpc.server(_Threads(), options=options(limits) + own, maximum_concurrent_rpcs=most)
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    return server


def _add_port(server: Any, inner: Path, identity: Identity) -> None:  # noqa: ANN401
    credentials = grpc.ssl_server_credentials(
        [(identity.key_pem, identity.certificate_pem)],
        root_certificates=identity.ca_pem,
        require_client_auth=True,
    )
    try:
        server.add_secure_port(f"unix:{inner}", credentials)
    except RuntimeError:
        raise UsageError(
            f"gRPC cannot listen at {inner}: let TMPDIR name a folder with a short path"
        ) from None


@final
class _Threads(Executor):
    """A thread for each call, that does not keep the process alive as a pool's threads do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Run a function in a thread of its own."""
        future: Future[Any] = Future()
        Thread(target=_run, args=(future, fn, args, kwargs), daemon=True).start()
        return future


def _run(future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:  # noqa: ANN401
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
