"""Trials as plain Ray tasks; the only module that imports ray, and only when it is asked for."""

from __future__ import annotations

import os
import secrets
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from tacit.errors import TacitError, UsageError
from tacit.experiment.local_pool import Ended, Job

if TYPE_CHECKING:
    from types import ModuleType


_PATIENCE = 10.0
_RECOUNT = 5.0
_DEEP = 2  # tasks per core that are under way, so that no core waits for the driver


def _on_node(message: dict[str, Any]) -> dict[str, Any]:
    """Run one job on whatever node Ray chose, and say which."""
    from tacit.experiment.sweep_worker import (  # noqa: PLC0415 - torch loads only when it is used
        perform,
    )

    answer = perform(message)
    answer["run"]["node"] = import_module("ray").get_runtime_context().get_node_id()
    return answer


@final
class RayPool:
    """Tasks on the cluster at an address, or on one that is started here and ends with the sweep.

    Every node must have tacit and the data sets, as a worker on this machine has.
    """

    def __init__(self, address: str | None, *, workers: int | None) -> None:
        self._ray = _module(own=address is None)
        if address is not None:
            _require_cluster(address)
        self._connect(address, workers)
        self._most = workers
        # Ray would start a lost task again by itself; the sweep counts how often.
        remote = self._ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        self._task = remote(_on_node)
        self._running: dict[Any, Job] = {}
        self._counted = (-_RECOUNT, 0)

    def _connect(self, address: str | None, workers: int | None) -> None:
        own = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
        try:
            self._ray.init(
                address=address or "local", log_to_driver=False, logging_level="ERROR", **own
            )
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            where = f"--address {address}" if address else "--on ray"
            raise TacitError(
                f"{where}: Ray does not let us in ({_short(error)}); "
                f"check its version and RAY_AUTH_MODE and RAY_AUTH_TOKEN, as on the cluster"
            ) from None

    @property
    def slots(self) -> int:
        """How many tasks are under way at most; nodes may come and go."""
        when, found = self._counted
        if time.monotonic() - when >= _RECOUNT:
            cores = int(self._ray.cluster_resources().get("CPU", 1))
            found = _DEEP * max(1, cores) if self._most is None else self._most
            self._counted = (time.monotonic(), found)
        return found

    def submit(self, job: Job) -> None:
        """Hand a job to the cluster."""
        self._running[self._task.remote(job.message())] = job

    def wait(self) -> list[Ended]:
        """Return the jobs that have ended, as soon as there is one."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        return [self._ended(task, self._running.pop(task)) for task in ready]

    def _ended(self, task: object, job: Job) -> Ended:
        try:
            return Ended(job=job, answer=self._ray.get(task))
        except self._ray.exceptions.RayError as error:
            return Ended(job=job, lost=f"Ray lost it ({_short(error)})")

    def close(self) -> None:
        """Leave the cluster, which ends what still runs there for us; end one of our own."""
        self._ray.shutdown()


def _module(*, own: bool) -> ModuleType:
    """Return ray; a cluster that is started here takes tasks only from clients with its token."""
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and not (
            os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
        ):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        return import_module("ray")
    except ImportError:
        raise UsageError("--on ray needs its package: pip install 'tacit[ray]'") from None


def _require_cluster(address: str) -> None:
    """Check that something answers at the address: Ray itself would retry for minutes."""
    import grpc  # noqa: PLC0415 - loads only when used

    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise UsageError(f"--address {address}: must be HOST:PORT of the head node, or auto")
    secure = os.environ.get("RAY_USE_TLS", "0") == "1"  # then Ray's own handshake decides
    with grpc.insecure_channel(address) as channel:
        try:
            if not secure:
                grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
        except grpc.FutureTimeoutError:
            raise TacitError(
                f"--address {address}: no Ray cluster answered within {_PATIENCE:.0f} seconds; "
                f"check the address (`ray start --head` prints it) and the network"
            ) from None


def _short(error: BaseException) -> str:
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first}"[:200]
