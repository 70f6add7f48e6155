"""Machine code for the passes over a batch that every release makes."""

from tacit.machine.matrices import (
    Directed,
    Moments,
    add_shaped,
    directed,
    factor,
    fits_matrices,
    moments,
)
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
    "Directed",
    "Moments",
    "add_along",
    "add_shaped",
    "add_to_rows",
    "box_muller",
    "class_sums",
    "directed",
    "factor",
    "fits",
    "fits_matrices",
    "moments",
    "peak",
    "row_squares",
    "same",
]
