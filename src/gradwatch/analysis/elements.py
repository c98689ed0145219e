"""The passes over a weight tensor's elements: robust spread, histogram, outliers.

Histograms stand on a grid whose cells are powers of two wide, so that they merge exactly. The width
is the Freedman–Diaconis one, rounded down to a power of two, and never so small that more than 256
cells are needed. Cells begin at multiples of their width; two cells of one grid are one cell of the
next coarser grid. Layers, shards and pieces of a tensor therefore add up to the cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, erfc, floor, log, log2, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.tensors import last_weights
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run, Subject, as_array
from gradwatch.run.given import as_real, by_name

ELEMENTS = "needs the elements; a run keeps only their statistics"


@dataclass(frozen=True)
class MeasuredTensor:
    """One weight: what it is called, its record and, unless it comes from a run, its elements."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    record: np.void
    values: NDArray[Any] | None

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(self.record["count"])

    @property
    def nonfinite(self) -> int:
        """Number of NaN and infinite elements."""
        return sum(int(self.record[name]) for name in ("nan", "pos_inf", "neg_inf"))

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nonfinite


Given = Mapping[str, Any] | Sequence[Any]


def named(tensors: Given) -> dict[str, NDArray[Any]]:
    """Arrays by name; those of a list are named by position."""
    return {name: as_array(item, name) for name, item in tensors_by_name(tensors).items()}


def tensors_by_name(tensors: Given) -> dict[str, Any]:
    """What was handed in, as it is."""
    wanted = "arrays by name, a list of arrays or a Run"
    if isinstance(tensors, list | tuple) and any(np.isscalar(item) for item in tensors):
        raise GradwatchError(
            f"Expected {wanted}, got a bare list of numbers. Put it into a list.", Exit.USAGE
        )
    return by_name(tensors, wanted)


def singles(tensors: Given) -> dict[str, NDArray[np.float32]]:
    """Flat and in 32 bits, as the original reads tensors."""
    with np.errstate(over="ignore"):
        return {name: as_real(array).astype(np.float32) for name, array in named(tensors).items()}


def from_run(run: Run) -> list[MeasuredTensor]:
    """The last measured weight of every parameter, in forward order; tied ones once."""
    columns, records, _ = last_weights(run)
    if not len(columns):
        raise GradwatchError(
            "This run has no recorded weights. Record them (they are by default), or hand in the "
            "arrays themselves."
        )
    measured: dict[str, tuple[Subject, np.void]] = {}
    for column, record in zip(columns, records, strict=True):
        subject = run.parameters[column]
        if measured.keys().isdisjoint(subject.tied_to):
            measured[subject.name] = subject, record
    return [
        MeasuredTensor(subject.name, subject.shape, subject.dtype, record, None)
        # Layers that no forward pass has met come last.
        for subject, record in sorted(
            measured.values(), key=lambda pair: (pair[0].order is None, pair[0].order or 0)
        )
    ]


def with_elements(tensors: Sequence[MeasuredTensor], given: Given) -> list[MeasuredTensor]:
    """The tensors with the elements they were measured from."""
    arrays = named(given)
    absent = [tensor.name for tensor in tensors if tensor.name not in arrays]
    if absent:
        raise GradwatchError(
            f"Expected the elements of every weight, got none of {absent[0]!r}.", Exit.USAGE
        )
    return [
        # complex numbers were measured as pairs of real ones: the shape is the array's
        replace(tensor, shape=arrays[tensor.name].shape, values=as_real(arrays[tensor.name]))
        for tensor in tensors
    ]


def floating(part: NDArray[Any]) -> NDArray[Any]:
    """In 32 or 64 bits, whichever holds the elements exactly; integers in 64."""
    if part.dtype in (np.float32, np.float64):
        return part
    return part.astype(np.float32 if part.dtype == np.float16 else np.float64)


PIECE = 1 << 18
"""Elements looked at together: cells and outliers are found while they are in the cache."""
SAMPLE = 1 << 16
"""The spread of larger tensors is that of so many elements, drawn with a fixed seed."""
ATOMS = 64
LEAST_NONZERO = 8
MOST_CELLS = 254
SMALLEST_EXPONENT, LARGEST_EXPONENT = -1000, 1023
LARGEST, FURTHEST = 2.0**900, float(np.finfo(np.float64).max)


# -- spread: not moved by the few elements it is to find -------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Robust centre and spread of a tensor's finite elements."""

    centre: float
    scale: float
    """1.4826 · MAD, the standard deviation of a Gaussian with that MAD; 0 if all are equal."""
    quartiles: float
    """Distance between the quartiles."""
    atoms: NDArray[np.float64]
    """Quantiles that stand for the tensor when several are pooled."""


def spread(tensor: MeasuredTensor) -> Spread:
    """Of the finite elements; a mostly zero tensor is judged by its other elements."""
    values = _sample(tensor)
    # Differences and sums of the largest numbers would leave the range: a power of two is exact.
    unit = 2.0**64 if float(tensor.record["abs_max"]) > LARGEST else 1.0
    values /= unit
    values.sort()
    judged = values[values != 0] if np.count_nonzero(values == 0) * 2 >= len(values) else values
    judged = judged if len(judged) >= LEAST_NONZERO else values
    centre = float(_quantiles(judged, 0.5))
    low, high = _quantiles(values, np.array([0.25, 0.75]))
    middles = (np.arange(ATOMS) + 0.5) / ATOMS
    return Spread(
        centre * unit,
        _scale(judged, centre) * unit,
        float(high - low) * unit,
        _quantiles(values, middles) * unit,
    )


@np.errstate(invalid="ignore")  # a signalling NaN is left out like any other
def _sample(tensor: MeasuredTensor) -> NDArray[np.float64]:
    assert tensor.values is not None
    values = tensor.values
    if len(values) > SAMPLE:
        # With replacement, which is quick; the fixed seed gives a tensor the same spread each time.
        drawn = np.random.default_rng(0).integers(0, len(values), SAMPLE)
        picked = floating(values[drawn]).astype(np.float64)
        if tensor.nonfinite:
            picked = picked[np.isfinite(picked)]
        if len(picked) >= SAMPLE // 2:
            return picked
    every = floating(values).astype(np.float64)
    return every[np.isfinite(every)]


def _quantiles(ordered: NDArray[np.float64], shares: float | NDArray[np.float64]) -> Any:
    """Linear between neighbours (type 7), of sorted values."""
    at = np.asarray(shares) * (len(ordered) - 1)
    under = at.astype(np.intp)
    left, right = ordered[under], ordered[np.minimum(under + 1, len(ordered) - 1)]
    return np.where(at == under, left, (right - left) * (at - under) + left)


def _scale(values: NDArray[np.float64], centre: float) -> float:
    apart = np.abs(values - centre)
    middle = [(len(apart) - 1) // 2, len(apart) // 2]
    apart.partition(middle)  # all the median needs of a sorted order
    mad = float(_quantiles(apart[middle], 0.5))
    if mad > 0:
        return mad / NormalDist().inv_cdf(0.75)
    # More than half are equal: fall back to the mean absolute deviation (of a Gaussian: √(2/π) σ).
    return float(np.abs(values - centre).mean()) * float(np.sqrt(np.pi / 2))


# -- histograms ------------------------------------------------------------------------------------


@dataclass
class ValueGrid:
    """Cell i covers [(first + i) · 2^exponent, (first + i + 1) · 2^exponent)."""

    exponent: int
    first: int
    counts: NDArray[np.int64]

    @classmethod
    def over(cls, low: float, high: float, exponent: int) -> "ValueGrid":
        """An empty grid that reaches from `low` to `high`."""
        first, last = _cell(low, exponent), _cell(high, exponent)
        return cls(exponent, first, np.zeros(last - first + 1, np.int64))

    @classmethod
    def pooled(cls, grids: Sequence["ValueGrid"]) -> "ValueGrid":
        """The sum of grids with cells of the same width."""
        first = min(grid.first for grid in grids)
        last = max(grid.first + len(grid.counts) for grid in grids)
        counts = np.zeros(last - first, np.int64)
        for grid in grids:
            begin = grid.first - first
            counts[begin : begin + len(grid.counts)] += grid.counts
        return cls(grids[0].exponent, first, counts)

    def add(self, part: NDArray[Any]) -> None:
        """Count the finite elements of one piece, all of which lie on the grid.

        A product with a power of two, a floor and the difference of two whole numbers are all
        exact where the result is a cell.
        """
        part = floating(part)
        part = part[np.isfinite(part)].astype(np.float64, copy=False)
        half = -self.exponent // 2  # 2^-exponent alone may be no number
        cells = np.floor(part * 2.0**half * 2.0 ** (-self.exponent - half))
        cells[(cells == 0) & (part < 0)] = -1  # it lies under 0 even if the product does not
        cells = (cells - self.first).astype(np.intp)
        self.counts += np.bincount(cells, minlength=len(self.counts))

    def coarser(self, exponent: int) -> "ValueGrid":
        """The same values on a grid of wider cells."""
        shift = exponent - self.exponent
        cells = (self.first + np.arange(len(self.counts))) >> shift
        counts = np.bincount(cells - cells[0], weights=self.counts).astype(np.int64)
        return ValueGrid(exponent, int(cells[0]), counts)

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


def cell_exponent(quartiles: float, count: int, low: float, high: float) -> int:
    """Of the cell width for `count` values between `low` and `high`."""
    if high == low:
        return _bounded(floor(log2(abs(high)))) if high else 0
    step = high / MOST_CELLS - low / MOST_CELLS
    least = _bounded(ceil(log2(step))) if step > 0 else SMALLEST_EXPONENT
    # Quartiles at both ends of the range are further apart than any number.
    wanted = min(2.0 * quartiles * count ** (-1 / 3), 2.0**LARGEST_EXPONENT)
    return max(floor(log2(wanted)), least) if wanted > 0 else least


def _bounded(exponent: int) -> int:
    return max(SMALLEST_EXPONENT, min(exponent, LARGEST_EXPONENT))


def common_exponent(tensors: Sequence[MeasuredTensor], spreads: Sequence[Spread]) -> int:
    """Of one cell width for all tensors together, by the quartiles of their pooled quantiles."""
    if not tensors:
        return 0
    atoms = np.concatenate([spread.atoms for spread in spreads])
    counts = [tensor.finite for tensor in tensors]
    weights = np.repeat(np.array(counts, float), [len(spread.atoms) for spread in spreads])
    order = np.argsort(atoms, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (atoms[order][np.searchsorted(reached, share)] for share in (0.25, 0.75))
    least = min(float(tensor.record["min"]) for tensor in tensors)
    most = max(float(tensor.record["max"]) for tensor in tensors)
    return cell_exponent(float(high) - float(low), sum(counts), least, most)


# -- outliers --------------------------------------------------------------------------------------


class Outliers:
    """Elements beyond a robust distance: how many, and the `kept` furthest of them.

    Memory stays bounded however many there are.
    """

    def __init__(self, spread: Spread, count: int, kept: int) -> None:
        self.limit = outlier_limit(count)
        self.expected = count * erfc(self.limit / sqrt(2))
        self.total = 0
        self.indices = np.empty(0, np.int64)
        self.distances = np.empty(0, np.float64)
        self._centre, self._scale, self._kept = spread.centre, spread.scale, kept

    def possible(self, low: float, high: float) -> bool:
        """Whether elements between these extremes can be outliers at all."""
        reach = self.limit * self._scale
        return self._scale > 0 and (low < self._centre - reach or high > self._centre + reach)

    def add(self, part: NDArray[Any], begin: int) -> None:
        """Look through one piece, whose first element is number `begin` of the tensor."""
        # The bounds are rounded inwards: what lies beyond them is decided in 64 bits below.
        with np.errstate(over="ignore"):
            reach = self.limit * self._scale
            low = np.nextafter(np.float32(self._centre - reach), np.float32(np.inf))
            high = np.nextafter(np.float32(self._centre + reach), np.float32(-np.inf))
        part = floating(part)
        at = np.flatnonzero((part <= low) | (part >= high))
        at = at[np.isfinite(part[at])]
        if not len(at):
            return
        z = part[at].astype(np.float64)
        if max(abs(self._centre), self._scale) > LARGEST:
            z = z / self._scale - self._centre / self._scale  # their difference is no number
        else:
            with np.errstate(over="ignore"):
                z = (z - self._centre) / self._scale
        z = np.clip(z, -FURTHEST, FURTHEST)
        far = np.abs(z) > self.limit
        self.total += int(far.sum())
        self.indices = np.concatenate([self.indices, at[far] + begin])
        self.distances = np.concatenate([self.distances, z[far]])
        if len(self.indices) > 4 * self._kept + 1024:
            self.trim()

    def trim(self) -> None:
        """Keep the furthest, in the order of the elements."""
        furthest = np.lexsort((self.indices, -np.abs(self.distances)))[: self._kept]
        furthest.sort()
        self.indices, self.distances = self.indices[furthest], self.distances[furthest]


def outlier_limit(count: int) -> float:
    """Robust distance one element in twenty tensors of this size passes by chance; at least 3.5."""
    return max(3.5, -NormalDist().inv_cdf(0.05 / (2 * max(count, 1))))


def scan(
    tensor: MeasuredTensor, spread: Spread, exponent: int, kept: int
) -> tuple[ValueGrid, Outliers]:
    """The tensor's histogram on cells 2^`exponent` wide, and its outliers (the `kept` furthest)."""
    assert tensor.values is not None
    low, high = float(tensor.record["min"]), float(tensor.record["max"])
    grid = ValueGrid.over(low, high, exponent)
    outliers = Outliers(spread, tensor.finite, kept)
    possible = outliers.possible(low, high)
    for begin in range(0, len(tensor.values), PIECE):
        part = tensor.values[begin : begin + PIECE]
        grid.add(part)
        if possible:
            outliers.add(part, begin)
    outliers.trim()
    return grid, outliers
