"""The workers of one party as a group: sums, gathers, scatters and broadcasts among them.

Tensors and bytes only, over gloo: nothing that could execute. The group lives inside one party and
is not encrypted; see ``rendezvous``.

The group is a ``ProcessGroupGloo`` of its own and not the one that ``init_process_group`` makes,
because that one cannot keep what is promised here (seen in torch 2.13):

* It takes no options for gloo. Gloo then listens on the address that the machine's name stands for,
  and not on the one in the configuration: a group at 127.0.0.1 would be open to the network.
* There is one in a process, without an owner: it could not be made again for one party while
  another one, in another thread, goes on with its own.
* Its collectives share one time limit. Connecting must fail within seconds, a step within minutes,
  and the others may wait for days while worker 0 matches ids.

So three names of gloo's options are private ones: ``_Options``, ``_devices`` and ``_timeout``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tacit.errors import BudgetError, LostError, PeerError, TacitError
from tacit.party.workers.rendezvous import SIZE, Rendezvous, Round, code
from tacit.wire.transport.base import Transport

_CONNECTING = timedelta(seconds=30)
_SHORTEST, _LONGEST = 2e-5, 0.02


def connect(found: Round, worker: int, workers: int) -> Any:  # noqa: ANN401 - gloo has no types
    """Connect every worker with every other, on this machine's address in their network.

    Raises ``RuntimeError`` if one does not come, or cannot show that it knows the secret.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=found.host)]
    options._timeout = _CONNECTING
    made = gloo(found.store, worker, workers, options)
    drawn = _exchange(made, os.urandom(SIZE), worker, workers)
    right = [code(found.secret, found.name.encode(), bytes([n]), *drawn) for n in range(workers)]
    if _exchange(made, right[worker], worker, workers) != right:
        raise RuntimeError("someone without the key of this party posed as a worker")
    return made


def _exchange(gloo: Any, own: bytes, worker: int, workers: int) -> list[bytes]:  # noqa: ANN401
    """Return what each worker puts in, in their order."""
    table = torch.zeros(workers, SIZE, dtype=torch.uint8)
    table[worker] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    options = dist.AllreduceOptions()
    options.timeout = _CONNECTING
    problem = problem_of(lambda group: group.allreduce([table], options), gloo)
    if problem is not None:
        raise RuntimeError(problem)
    return [bytes(row.numpy()) for row in table]


def problem_of(start: Callable[[Any], Any], gloo: Any) -> str | None:  # noqa: ANN401 - as above
    """Return the error of some work as text; keeping the exception would keep the group open."""
    try:
        _finish(start(gloo))
    except RuntimeError as error:
        return short(error)
    return None


def _finish(work: Any) -> None:  # noqa: ANN401 - gloo has no types
    """Wait for the end of some work, open to interrupts all the while."""
    pause = _SHORTEST
    while not work.is_completed():
        time.sleep(pause)
        pause = min(1.2 * pause, _LONGEST)
    work.wait()


def short(error: Exception) -> str:
    """Return gloo's message without the position in its source."""
    text = str(error).partition("] ")[2] or str(error)
    return text.partition(". This is typically")[0][:120]


Made = TypeVar("Made")

PATIENCE = timedelta(minutes=10)
"""How long a worker may be busy; one that has ended is noticed at once."""
LONGEST = timedelta(days=2)
"""How long the others may wait while worker 0 matches ids."""
WATCH = 0.5
_ATTEMPTS = 5
_KINDS: dict[str, type[TacitError]] = {
    "BudgetError": BudgetError,
    "PeerError": PeerError,
    "TacitError": TacitError,
}


@final
class WorkersLostError(LostError):
    """A worker of this party is gone, or the workers are not at the same step."""


@final
class Collectives:
    """This worker among those of its party.

    Guarantee: when a worker is gone, every call here raises ``WorkersLostError``, now or as soon as
    it needs that worker; no call returns a part of what was asked for.

    Args:
        rendezvous: how the workers find each other.
        log: called when they connect again, with the reason.
    """

    def __init__(self, rendezvous: Rendezvous, *, log: Callable[[str], None]) -> None:
        self._rendezvous = rendezvous
        self._log = log
        self.worker, self.workers = rendezvous.worker, rendezvous.workers
        self.finished: Callable[[], bool] = lambda: False
        self._gloo: Any = None
        self._why: str | None = None
        self._round: Round | None = None
        self._transports: list[Transport] = []
        self._over = threading.Event()
        self._broken = threading.Event()

    @property
    def first(self) -> bool:
        """Whether this is worker 0, which protects, counts and saves for the party."""
        return self.worker == 0

    def form(self, *, limit: float | None = None) -> None:
        """Connect to all other workers anew."""
        self.leave()
        if self._round is not None:
            self._round.give_up()
        if self._why is not None:
            self._log(f"{self._why}: nothing is done until all {self.workers} workers are here")
            self._why = None
        for attempt in range(_ATTEMPTS):
            found = self._rendezvous.join(limit=limit)
            try:
                self._gloo = connect(found, self.worker, self.workers)
            except RuntimeError as error:  # one went away between signing up and connecting
                if attempt == _ATTEMPTS - 1:
                    raise LostError(
                        f"the workers of {self._rendezvous.party} cannot connect to each other "
                        f"({short(error)}): let them reach any port of each other"
                    ) from None
            else:
                self._round, self._over, self._broken = found, threading.Event(), threading.Event()
                watch = (found, self._over, self._broken)
                threading.Thread(target=self._watch, args=watch, daemon=True).start()
                return

    def leave(self) -> None:
        """Leave the group; the others notice it as soon as they need this worker."""
        self._over.set()
        self._gloo = None
        self._transports = []

    def hold(self, transport: Transport) -> Transport:
        """Register a transport, which is closed when a worker gives the round up; return it."""
        self._transports.append(transport)
        self.check()
        return transport

    def drop_ended(self) -> None:
        """Forget transports that are over, such as those of a peer that was refused."""
        self._transports = [each for each in self._transports if not getattr(each, "over", False)]

    def check(self) -> None:
        """Raise if a worker has given the round up."""
        if self._broken.is_set():
            for transport in self._transports:
                transport.close()
            self._fail(f"another worker of {self._rendezvous.party} begins again")

    def _watch(self, found: Round, over: threading.Event, broken: threading.Event) -> None:
        """Close this worker's transports when another gives up, and give up when one of them ends.

        Without it, workers of two parties could wait for each other in a circle: each for one that
        is there, and none for the one that is not.
        """
        while not over.wait(WATCH):
            ended = any(getattr(each, "over", False) for each in list(self._transports))
            if ended and self.finished():
                return
            if ended or found.broken():
                broken.set()
                found.give_up()
                for transport in list(self._transports):
                    transport.close()
                return

    def add(self, values: Tensor) -> Tensor:
        """Return the sum over all workers, bitwise the same at each of them."""
        total = values.detach().clone().contiguous()
        options = dist.AllreduceOptions()
        options.timeout = PATIENCE
        self._do(lambda gloo: gloo.allreduce([total], options))
        return total

    def gather(self, piece: Tensor) -> list[Tensor] | None:
        """Return the pieces of all workers at worker 0, in their order; all are equally long."""
        options = dist.GatherOptions()
        options.rootRank, options.timeout = 0, PATIENCE
        piece = piece.detach().contiguous()
        pieces = [torch.empty_like(piece) for _ in range(self.workers)] if self.first else []
        self._do(lambda gloo: gloo.gather([pieces] if self.first else [], [piece], options))
        return pieces if self.first else None

    def gather_rows(self, rows: Tensor) -> Tensor | None:
        """Return the rows of all workers at worker 0, in their order, however many each has."""
        counts = torch.zeros(self.workers, dtype=torch.int64)
        counts[self.worker] = len(rows)
        counts = self.add(counts)
        padded = rows.new_zeros((int(counts.max()), *rows.shape[1:]))
        padded[: len(rows)] = rows
        pieces = self.gather(padded)
        if pieces is None:
            return None
        return torch.cat([p[:n] for p, n in zip(pieces, counts.tolist(), strict=True)])

    def scatter(self, whole: Tensor | None, *, like: Tensor) -> Tensor:
        """Return this worker's equal share of the rows that worker 0 hands out."""
        options = dist.ScatterOptions()
        options.rootRank, options.timeout = 0, PATIENCE
        share = torch.empty_like(like)
        shares = [] if whole is None else [list(whole.detach().contiguous().chunk(self.workers))]
        self._do(lambda gloo: gloo.scatter([share], shares, options))
        return share

    def broadcast(
        self, what: str, content: bytes | None = None, *, limit: timedelta = PATIENCE
    ) -> bytes:
        """Return at all workers what worker 0 passes; all must ask for the same ``what``."""
        head = json.dumps([what, len(content or b"")]).encode()
        size = self._broadcast(torch.tensor([len(head)]), limit=limit)
        named = self._broadcast(_as_tensor(head, int(size)))
        told, length = json.loads(bytes(named.numpy()))
        if told != what:
            self._fail(f"worker 0 of {self._rendezvous.party} is at {told!r}, this one at {what!r}")
        return bytes(self._broadcast(_as_tensor(content or b"", length)).numpy())

    def only_first(self, what: str, make: Callable[[], Made]) -> Made | None:
        """Let worker 0 do something; where that fails, it fails at all workers."""
        if not self.first:
            kind, text = json.loads(self.broadcast(what))
            if kind:
                raise _KINDS[kind](text)
            return None
        try:
            made = make()
        except TacitError as error:
            kind = next(name for name, cls in _KINDS.items() if isinstance(error, cls))
            said = f"worker 0 of {self._rendezvous.party} stopped: {error}"
            self.broadcast(what, json.dumps([kind, said]).encode())
            raise
        self.broadcast(what, json.dumps(["", ""]).encode())
        return made

    def same(self, what: str, digest: bytes) -> None:
        """Raise unless all workers have the same digest."""
        differs = self.broadcast(what, digest if self.first else None) != digest
        if int(self.add(torch.tensor([int(differs)]))):
            raise TacitError(
                f"the workers of {self._rendezvous.party} differ in {what}: use the same machine "
                "type and number of threads for all, then start them again from the last checkpoint"
            )

    def add_gradients(self, model: nn.Module, *, scale: float = 1.0) -> None:
        """Replace a model's gradients by the sum over all workers, times a scale."""
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = self.add(torch.cat([grad.reshape(-1) for grad in grads]))
        if scale != 1.0:
            total *= scale
        _spread(total, grads)

    def copy_first(self, model: nn.Module) -> None:
        """Take the weights that worker 0 has."""
        values = list(model.state_dict().values())
        with torch.no_grad():
            for value in values:
                value.copy_(self._broadcast(value.detach().clone().contiguous()))

    def _broadcast(self, values: Tensor, *, limit: timedelta = PATIENCE) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, limit
        if values.numel():
            self._do(lambda gloo: gloo.broadcast([values], options))
        return values

    def _do(self, start: Callable[[Any], Any]) -> None:
        """Carry out one piece of work among all workers."""
        if self._gloo is None:
            self._fail("the workers are not together")
        problem = problem_of(start, self._gloo)
        if problem is not None:
            self._fail(f"a worker of {self._rendezvous.party} is gone ({problem})")

    def _fail(self, why: str) -> NoReturn:
        self.leave()
        self._why = why
        raise WorkersLostError(why)


def _as_tensor(content: bytes, length: int) -> Tensor:
    if len(content) == length and length:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return torch.zeros(length, dtype=torch.uint8)


def _spread(flat: Tensor, over: Iterable[Tensor]) -> None:
    """Put the parts of one long tensor back into those that it was made of."""
    at = 0
    for part in over:
        part.copy_(flat[at : at + part.numel()].view_as(part))
        at += part.numel()
