"""Processes that are killed for real, in the middle of their work."""

import os
import random
import signal
import subprocess
import sys
import time


def killed(code, *arguments, times, seed, longest):
    """Run the code's work, kill it within ``longest`` seconds, and yield; ``times`` times."""
    rng = random.Random(seed)  # noqa: S311
    parent = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        for _ in range(times):
            parent.stdin.write("go\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            time.sleep(rng.uniform(longest / 20, longest))
            os.kill(child, signal.SIGKILL)
            assert parent.stdout.readline() == "dead\n"
            yield
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
