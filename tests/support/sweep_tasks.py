"""Tasks that end in ways a training does not, for the workers of a sweep."""

import os
import signal
from pathlib import Path


def dies(config):
    """Kill the worker: seed 1 once, seed 2 always; write down every start."""
    with (Path(os.environ["SWEEP_NOTES"]) / str(config.seed)).open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    starts = (Path(os.environ["SWEEP_NOTES"]) / str(config.seed)).read_text().count("\n")
    if config.seed == 2 or (config.seed == 1 and starts == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if config.seed == 3:
        raise ZeroDivisionError("of its own\nfault")
    print("a task may print")  # noqa: T201
    return {"test": {"auc": 0.5 + config.seed}, "seconds": 1.0}
