"""Print the benchmark table: ``make bench``. Every number is a ratio or median of one run."""

from __future__ import annotations

import platform

import torch

import audit
import leak
import pipeline
import release
import session
import solver
import start


def main() -> None:
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}"
    )
    parts = (solver, release, start, leak, pipeline, session, audit)
    table = [("what", "measured", "target"), *(row for part in parts for row in part.rows())]
    wide = max(len(row[0]) for row in table)
    for what, measured, target in table:
        print(f"{what:{wide}}  {measured:>10}  {target:>10}")


if __name__ == "__main__":
    main()
