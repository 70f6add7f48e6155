"""Machine code for the passes over a batch that every release makes."""

from tacit.machine.passes import (
    add_along,
    add_to_rows,
    box_muller,
    class_sums,
    fits,
    peak,
    row_squares,
    same,
)

__all__ = [
    "add_along",
    "add_to_rows",
    "box_muller",
    "class_sums",
    "fits",
    "peak",
    "row_squares",
    "same",
]
