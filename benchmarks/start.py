"""From the start of a process to its first release, against importing torch alone."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from timing import paired_medians

TORCH = "import torch"
RELEASE = """
import tacit
from tacit.testing import low_rank_cut
tacit.Guard("marvell(s=4)").release(low_rank_cut(1024, 128))
"""


def rows() -> list[tuple[str, str, str]]:
    """Return how much longer a process takes that releases once, with a warm cache of numba's."""
    release, torch = paired_medians(partial(_run, RELEASE), partial(_run, TORCH), repeats=7)
    name = "process start to first release - importing torch, seconds"
    return [(name, f"{release - torch:.2f} ({torch:.2f} for torch)", "<= 1.5")]


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - this file's own


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
