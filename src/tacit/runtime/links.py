"""The links between the workers of one party: gloo's, and proven to lead to workers of this party.

gloo takes whoever connects to its port first as the worker that it waits for. So before a link is
used, each worker draws a number, and all answer all numbers with the party's secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tacit.runtime.meeting import Round
from tacit.runtime.sealed_store import SIZE, code

__all__ = ["linked", "problem_of", "short"]

_CONNECTING = timedelta(seconds=30)
_SHORTEST, _LONGEST = 2e-5, 0.02


def linked(met: Round, worker: int, workers: int) -> Any:  # noqa: ANN401 - gloo has no types
    """Connect every worker with every other, on this machine's address in their network.

    Raises ``RuntimeError`` if one does not come, or cannot show that it knows the secret.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=met.host)]
    options._timeout = _CONNECTING
    links = gloo(met.store, worker, workers, options)
    drawn = _exchange(links, os.urandom(SIZE), worker, workers)
    right = [code(met.secret, met.name.encode(), bytes([n]), *drawn) for n in range(workers)]
    if _exchange(links, right[worker], worker, workers) != right:
        raise RuntimeError("someone without the key of this party took the place of a worker")
    return links


def _exchange(links: Any, own: bytes, worker: int, workers: int) -> list[bytes]:  # noqa: ANN401
    """Return what each worker puts in, in their order."""
    places = torch.zeros(workers, SIZE, dtype=torch.uint8)
    places[worker] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    options = dist.AllreduceOptions()
    options.timeout = _CONNECTING
    problem = problem_of(lambda these: these.allreduce([places], options), links)
    if problem is not None:
        raise RuntimeError(problem)
    return [bytes(place.numpy()) for place in places]


def problem_of(start: Callable[[Any], Any], links: Any) -> str | None:  # noqa: ANN401 - as above
    """Return what went wrong with some work; an error that is kept would keep the links open."""
    try:
        _finish(start(links))
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
    """Return what gloo says, without where in its source it says so."""
    text = str(error).partition("] ")[2] or str(error)
    return text.partition(". This is typically")[0][:120]
