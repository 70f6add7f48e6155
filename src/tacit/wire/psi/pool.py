"""Who does the arithmetic: this thread, or one process per core.

Threads would not do: the library lets go of Python's lock while it multiplies points, but not
while it finds them, which is a third of the work.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import ParamSpec, TypeVar, final

from tacit.errors import ParameterError
from tacit.wire.psi.curve import POINT, blind_ids, blind_points
from tacit.wire.psi.values import Values

P = ParamSpec("P")
T = TypeVar("T")

_PIECE = 256 * POINT
"""Bytes of one task: about 30 ms of work, so that all cores end a message together."""


@final
class InlineExecutor(Executor):
    """Runs each task at once, in the thread that asks: for few ids, and for tests."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a task and return its outcome."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised again where the result is asked for
            future.set_exception(error)
        return future


def process_pool(count: int | None = None) -> Executor:
    """Return processes that share the work, one per core that this process may use.

    Close them when the intersection is done: ``with process_pool() as pool: ...``.
    """
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if count is None or count < 1:
        raise ParameterError(f"count must be 1 or more worker processes, got {count}")
    # A fork would copy the locks of threads that talk to the peer, in whatever state they are.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_attend)


@final
class OwnPoints:
    """Own ids' points, blinded, in chunks; the next chunk is under way while the peer works."""

    def __init__(self, executor: Executor, scalar: bytes, hashes: Values, *, chunk: int) -> None:
        self._executor = executor
        self._scalar = scalar
        self._hashes = hashes
        self._chunk = chunk
        self._begun = 0
        self._ahead: deque[list[Future[bytes]]] = deque()

    def __next__(self) -> bytes:
        """Return the next chunk's points; nothing where all have been returned."""
        while len(self._ahead) < 2 and self._begun < len(self._hashes):
            self._begin()
        return _joined(self._ahead.popleft()) if self._ahead else b""

    def _begin(self) -> None:
        chunk = self._hashes[self._begun : self._begun + self._chunk].tobytes()
        self._begun += self._chunk
        self._ahead.append(
            [self._executor.submit(blind_ids, self._scalar, piece) for _, piece in _pieces(chunk)]
        )


def blind_again(executor: Executor, scalar: bytes, points: bytes, *, first: int) -> bytes:
    """Return a peer's points, blinded again, in their order; PeerError says which is none."""
    return _joined(
        [
            executor.submit(blind_points, scalar, piece, first + at // POINT)
            for at, piece in _pieces(points)
        ]
    )


def _pieces(content: bytes) -> Iterable[tuple[int, bytes]]:
    return ((at, content[at : at + _PIECE]) for at in range(0, len(content), _PIECE))


def _joined(futures: list[Future[bytes]]) -> bytes:
    return b"".join([future.result() for future in futures])


def _attend() -> None:
    """Leave the keyboard to the parent, and do not outlive it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
