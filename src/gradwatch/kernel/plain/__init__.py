"""The kernel in numpy: slower, needs no compiler, and gives the same answers."""

from gradwatch.kernel.plain.grid import count_cells, list_beyond
from gradwatch.kernel.plain.marks import hashes, sketch
from gradwatch.kernel.plain.memory import copy, nonfinite, read
from gradwatch.kernel.plain.moments import (
    measure,
    measure_all,
    measure_with_histograms,
    measure_with_sketches,
)
from gradwatch.kernel.plain.rows import row_spread
from gradwatch.kernel.plain.steps import adam, step, update

__all__ = [
    "adam",
    "copy",
    "count_cells",
    "hashes",
    "list_beyond",
    "measure",
    "measure_all",
    "measure_with_histograms",
    "measure_with_sketches",
    "nonfinite",
    "read",
    "row_spread",
    "sketch",
    "step",
    "update",
]
