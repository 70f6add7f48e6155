"""Timing in turns: a busy machine slows both sides alike, so their ratio means something."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter


def paired_medians(
    first: Callable[[], object], second: Callable[[], object], *, repeats: int
) -> tuple[float, float]:
    """Return the median seconds of two functions run in turn; the first rounds warm up."""
    times = [(_seconds(first), _seconds(second)) for _ in range(repeats + 3)][3:]
    return median(a for a, _ in times), median(b for _, b in times)


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start
