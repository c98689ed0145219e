"""Histograms on a grid whose cells are powers of two wide, so that they merge exactly.

The width is the Freedman–Diaconis one, rounded down to a power of two, and never so small that more
than 256 cells are needed. Cells begin at multiples of their width; two cells of one grid are one
cell of the next coarser grid. Layers, shards and chunks of a tensor therefore add up to the cell.
"""

from dataclasses import dataclass
from math import ceil, floor, log, log2

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import Batch, count_cells

LARGEST = 254
SMALLEST = -1000


@dataclass
class Grid:
    """Cell i covers [(first + i) · 2^exponent, (first + i + 1) · 2^exponent)."""

    exponent: int
    first: int
    counts: NDArray[np.int64]

    @classmethod
    def over(cls, low: float, high: float, exponent: int) -> "Grid":
        first, last = _cell(low, exponent), _cell(high, exponent)
        return cls(exponent, first, np.zeros(last - first + 1, np.int64))

    def add(self, batch: Batch) -> None:
        """Count the finite elements of one tensor, all of which lie on the grid."""
        cells = count_cells(batch, [self.exponent], [self.first], cells=len(self.counts))
        self.counts += cells.counts[0].astype(np.int64)

    def coarser(self, exponent: int) -> "Grid":
        """The same values on a grid of wider cells."""
        shift = exponent - self.exponent
        cells = (self.first + np.arange(len(self.counts))) >> shift
        counts = np.bincount(cells - cells[0], weights=self.counts).astype(np.int64)
        return Grid(exponent, int(cells[0]), counts)

    def merge(self, other: "Grid") -> None:
        """Add one that lies inside and has cells of the same width."""
        at = other.first - self.first
        self.counts[at : at + len(other.counts)] += other.counts

    @property
    def entropy(self) -> float:
        """Shannon's, in bits, with the Miller–Madow term for cells that chance left empty."""
        filled = self.counts[self.counts > 0]
        n = int(filled.sum())
        share = filled / n
        plain = -float((share * np.log2(share)).sum()) + 0.0
        return min(plain + (len(filled) - 1) / (2 * n * log(2)), log2(len(self.counts)))

    @property
    def normalized_entropy(self) -> float:
        """Over its largest value; 0 with a single cell."""
        cells = len(self.counts)
        return self.entropy / log2(cells) if cells > 1 else 0.0


def _cell(x: float, exponent: int) -> int:
    """The cell that holds x; a negative one whose product underflows lies under 0 all the same."""
    scaled = x * 2.0**-exponent
    return -1 if scaled == 0 and x < 0 else floor(scaled)


def exponent(quartiles: float, count: int, low: float, high: float) -> int:
    """Of the cell width for `count` values between `low` and `high`."""
    if high == low:
        return max(floor(log2(abs(high))), SMALLEST) if high else 0
    step = high / LARGEST - low / LARGEST
    least = max(ceil(log2(step)), SMALLEST) if step > 0 else SMALLEST
    wanted = 2.0 * quartiles * count ** (-1 / 3)
    return max(floor(log2(wanted)), least) if wanted > 0 else least
