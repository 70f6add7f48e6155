"""How many cores this process may use: in a container often fewer than the machine has."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from time import sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.party.config import PartyConfig
    from tacit.party.state_files import Log
    from tacit.state_dir import StateFolder

_LOOKS, _APART = 7, 0.02
"""How often and how many seconds apart the running threads are counted."""


def cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may run on, less where its group has a smaller share.

    The share is what a container or a systemd unit was given (``cpu.max``, ``cpu.cfs_quota_us``);
    a part of a core does not count, and at least one does. ``joblib.cpu_count`` reads the limit of
    the topmost group alone: it does not see that of a systemd unit or of a nested group.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    here = len(os.sched_getaffinity(0)) if has_affinity else (os.cpu_count() or 1)
    return max(1, int(min([here, *_shares(root)])))


def free_cores(root: Path = Path("/")) -> int:
    """Return the cores of this process that nothing else computes on now; at least one.

    More threads than free cores wait for each other at every step: with both cores of a machine
    taken, two threads that spin while they wait trained at a tenth of the speed of one.
    """
    machine = os.cpu_count() or 1
    return max(1, min(cores(root), machine - _busy(root)))


def let_idle_threads_sleep() -> None:
    """Let threads without work sleep: spinning takes cores from all others.

    The libraries read it when they are loaded, which is when torch is. What is set already stays.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("KMP_BLOCKTIME", "0")


def _busy(root: Path) -> int:
    """Return how many other threads run or want to: the median of a few looks."""
    try:
        looks = [_running(root)]
        for _ in range(_LOOKS - 1):
            sleep(_APART)
            looks.append(_running(root))
    except (OSError, ValueError, IndexError):
        return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(0, sorted(looks)[_LOOKS // 2] - 1)  # this one runs too


def _running(root: Path) -> int:
    text = (root / "proc/stat").read_text()
    return int(text.split("procs_running", 1)[1].split()[0])


def _shares(root: Path) -> list[float]:
    """Return every limit in cores on the group of this process and the groups around it."""
    found: list[float] = []
    with suppress(OSError):
        for text in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = text.split(":", 2)
            if kinds and "cpu" not in kinds.split(","):
                continue
            groups = root / "sys/fs/cgroup" / ("cpu" if kinds else "")
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                found += _share(groups / str(group).lstrip("/"))
    return found


def _share(group: Path) -> list[float]:
    """Return the limit of one group, nothing where it has none."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            words = " ".join((group / name).read_text() for name in names).split()
            quota, period = (int(word) for word in words)
            if quota > 0 < period:
                return [quota / period]
    return []


THREADS = "threads.json"


def threads_of(config: PartyConfig, folder: StateFolder, *, log: Log) -> int:
    """Return how many threads to compute with: as configured, as before, or all cores.

    Sums depend in their last bits on how many threads share them, and a step that is taken again
    must come out the same. So a run keeps the number that it began with, on whatever machine it
    goes on; one from before the number was kept had one thread.
    """
    from tacit.party.state_files import checkpoints_of  # noqa: PLC0415 - loads torch

    held = folder.read(THREADS)
    before = int(held["threads"]) if held is not None else None
    if before is None and checkpoints_of(config).steps():
        before = 1
    chosen = config.threads or before or cores()
    if before not in (None, chosen):
        log(
            f"{chosen} threads, where this run had {before}: steps that are taken again may differ "
            "in their last bits, and the label party refuses those"
        )
    return chosen
