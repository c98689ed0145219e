"""The second pass over the elements: histogram cells and outliers, piece by piece."""

from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.weights.grid import Grid
from gradwatch.analysis.weights.spread import Spread, outlier_limit
from gradwatch.analysis.weights.tensors import Tensor
from gradwatch.kernel import Batch, batch_of, list_beyond

PIECE = 1 << 18
"""Elements looked at together: cells and outliers are found while they are in the cache."""


@dataclass
class Far:
    """Elements beyond the limit: how many, and the furthest of them."""

    total: int
    limit: float
    expected: float
    indices: NDArray[np.int64]
    distances: NDArray[np.float64]


def scan(tensor: Tensor, spread: Spread, cells: int, kept: int) -> tuple[Grid, Far]:
    """The tensor's histogram on cells 2^`cells` wide, and its outliers (the `kept` furthest)."""
    low, high = float(tensor.record["min"]), float(tensor.record["max"])
    grid = Grid.over(low, high, cells)
    search = _Search(spread, outlier_limit(tensor.finite), kept)
    looking = search.may_find(low, high)
    assert tensor.values is not None
    for begin in range(0, len(tensor.values), PIECE):
        batch, owners = batch_of([tensor.values[begin : begin + PIECE]])
        grid.add(batch)
        if looking:
            search.look(batch, owners[0], begin)
    return grid, search.found(tensor.finite)


class _Search:
    """Robust distances beyond a limit; memory stays bounded however many there are."""

    def __init__(self, spread: Spread, limit: float, kept: int) -> None:
        self.centre, self.scale, self.limit, self.kept = spread.centre, spread.scale, limit, kept
        self.total = 0
        self.indices = np.empty(0, np.int64)
        self.distances = np.empty(0, np.float64)
        with np.errstate(over="ignore"):
            self.bounds = (
                np.nextafter(np.float32(self.centre - limit * self.scale), np.float32(np.inf)),
                np.nextafter(np.float32(self.centre + limit * self.scale), np.float32(-np.inf)),
            )

    def may_find(self, low: float, high: float) -> bool:
        reach = self.limit * self.scale
        return self.scale > 0 and (low < self.centre - reach or high > self.centre + reach)

    def look(self, batch: Batch, part: NDArray[Any], begin: int) -> None:
        low, high = self.bounds  # rounded inwards: candidates, decided in 64 bits
        at = list_beyond(batch, [low], [high], most=len(part)).indices[0]
        if not len(at):
            return
        z = (part[at].astype(np.float64) - self.centre) / self.scale
        far = np.isfinite(z) & (np.abs(z) > self.limit)
        self.total += int(far.sum())
        self.indices = np.concatenate([self.indices, at[far] + begin])
        self.distances = np.concatenate([self.distances, z[far]])
        if len(self.indices) > 4 * self.kept + 1024:
            self._trim()

    def _trim(self) -> None:
        furthest = np.lexsort((self.indices, -np.abs(self.distances)))[: self.kept]
        furthest.sort()
        self.indices, self.distances = self.indices[furthest], self.distances[furthest]

    def found(self, count: int) -> Far:
        self._trim()
        expected = count * erfc(self.limit / sqrt(2))
        return Far(self.total, self.limit, expected, self.indices, self.distances)
