"""How many threads a party computes with, the same for a whole run."""

from __future__ import annotations

from tacit.runtime.cores import cores
from tacit.runtime.state_folder import StateFolder
from tacit.study.company import Log, checkpoints_of
from tacit.study.party_config import PartyConfig

__all__ = ["THREADS", "threads_of"]

THREADS = "threads.json"


def threads_of(config: PartyConfig, folder: StateFolder, *, log: Log) -> int:
    """Return how many threads to compute with: as configured, as before, or all cores.

    Sums depend in their last bits on how many threads share them, and a step that is taken again
    must come out the same. So a run keeps the number that it began with, on whatever machine it
    goes on; one from before the number was kept had one thread.
    """
    held = folder.read(THREADS)
    before = int(held["threads"]) if held is not None else None
    if before is None and checkpoints_of(config).steps():
        before = 1
    chosen = config.threads or before or cores()
    if before not in (None, chosen):
        log(f"{chosen} threads, where this run had {before}: steps that are taken again may differ "
            "in their last bits, and the label party refuses those")  # fmt: skip
    return chosen
