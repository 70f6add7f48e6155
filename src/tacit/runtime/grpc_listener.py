"""The listening side of lines over gRPC: who may connect, how many at once, and one line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from threading import Condition, Thread
from typing import Any, final

import grpc

from tacit.errors import LostError, SilenceError, UsageError
from tacit.runtime._address import parse_address
from tacit.runtime._frame_header import Limits
from tacit.runtime.grpc_line import ACCEPTED, METHOD, SERVICE, GrpcLine, options
from tacit.runtime.identity import Identity, check_identity, peer_name
from tacit.runtime.line import Line

__all__ = ["Listener"]


@final
class Listener:
    """Waits for the parties in `peers`, each with one line at a time."""

    def __init__(self, address: str, *, identity: Identity, peers: Collection[str],
                 limits: Limits, log: Callable[[str], None]) -> None:  # fmt: skip
        check_identity(identity)
        self._peers, self._limits, self._log = frozenset(peers), limits, log
        self._lines: dict[str, GrpcLine] = {}
        self._fresh: list[GrpcLine] = []
        self._changed = Condition()
        self._server = grpc.server(
            _Threads(), options=_server_options(limits), maximum_concurrent_rpcs=4 * len(peers) + 4
        )
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
        )
        credentials = grpc.ssl_server_credentials(
            [(identity.key_pem, identity.certificate_pem)],
            root_certificates=identity.ca_pem,
            require_client_auth=True,
        )
        host, _ = parse_address(address)
        self._port: int = self._server.add_secure_port(address, credentials)
        self._host = f"[{host}]" if ":" in host else host
        self._server.start()

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        """Host and port, as a peer dials them."""
        return f"{self._host}:{self._port}"

    def accept(self, *, timeout: float) -> Line:
        """Return the next connection of an allowed peer; SilenceError if none comes in time."""
        with self._changed:
            if not self._changed.wait_for(self._waiting, timeout):
                raise SilenceError(f"no peer has connected for {timeout:g} s")
            return self._fresh.pop(0)

    def close(self) -> None:
        """End all lines, letting what was handed over leave, and stop listening."""
        with self._changed:
            lines, self._lines, self._fresh = list(self._lines.values()), {}, []
        closers = [Thread(target=line.close, daemon=True) for line in lines]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        self._server.stop(None)

    def _waiting(self) -> bool:
        self._fresh = [line for line in self._fresh if not line.over]
        return bool(self._fresh)

    def _talk(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:  # noqa: ANN401
        line = GrpcLine(self._name(context), limits=self._limits, hang_up=context.cancel)
        if not context.add_callback(line.finish):
            line.finish()
        context.send_initial_metadata((ACCEPTED,))
        self._replace(line)
        Thread(target=_receive, args=(line, frames), daemon=True).start()
        return line.outgoing()

    def _name(self, context: Any) -> str:  # noqa: ANN401
        try:
            name = peer_name(context.auth_context()["x509_pem_cert"][0])
        except (UsageError, LookupError) as error:
            self._refuse(context, f"no party: {error}")
        if name not in self._peers:
            self._refuse(context, f"party {name} is not one of the peers")
        return name

    def _refuse(self, context: Any, reason: str) -> None:  # noqa: ANN401
        self._log(f"refused a connection from {context.peer()}: {reason}")
        context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    def _replace(self, line: GrpcLine) -> None:
        with self._changed:
            old = self._lines.get(line.peer)
            self._lines[line.peer] = line
            self._fresh.append(line)
            self._changed.notify_all()
        if old is not None and not old.over:
            old.end(LostError(f"{old.peer} connected anew"))
            Thread(target=old.close, daemon=True).start()


def _receive(line: GrpcLine, frames: Iterator[bytes]) -> None:
    try:
        line.take(frames)
    except grpc.RpcError:
        line.end(LostError(f"the connection to {line.peer} is gone"))


def _server_options(limits: Limits) -> list[tuple[str, Any]]:
    return [*options(limits), ("grpc.so_reuseport", 0)]


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
