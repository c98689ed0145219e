"""From the bytes of a tensor to its statistics: one pass, shard by shard, then joined in order.

How a checkpoint is cut into units of work depends on the checkpoint alone, and what they give is
joined in the tensor's order. So the result is the same to the last bit whoever does the work.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints import limits
from gradwatch.checkpoints.blocks import (
    Access,
    ReadBytes,
    TensorBlock,
    blocks,
    mapping,
    typed,
    verify_checksum,
)
from gradwatch.checkpoints.elements import Element, as_floats, measurable
from gradwatch.checkpoints.index import Checksum, FileId, Index, Shard, TensorEntry
from gradwatch.checkpoints.parallel import ScanOptions, WorkUnit, do_work
from gradwatch.kernel import (
    MOMENTS,
    Batch,
    Bins,
    hashes,
    measure,
    measure_arrays,
    merge,
    row_spread,
)
from gradwatch.run import Histogram

OVERFLOW = "the elements are too large or too small for it to be computed in 64 bits"
_GROUP = 16
"""Neighbouring columns share a line of the cache: they are sampled in groups."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Which elements are looked at; the same for all shards of a tensor."""

    exact: bool
    groups: tuple[slice, ...]
    """Columns from which rows are judged."""
    rows: NDArray[np.int64]
    """Rows from which columns are judged, unless all are."""
    weights: NDArray[np.uint64]
    """Odd factors, one for each sampled column: a row's hash is its bits times these."""


@lru_cache(maxsize=2)
def _sampling(rows: int, columns: int, size: int) -> _Sampling:
    small = rows * columns * size <= limits.WHOLE_BYTES
    exact = small or columns <= _GROUP * limits.SAMPLED_GROUPS
    groups, sampled = [slice(0, columns)], np.empty(0, np.int64)
    if not exact:
        starts = evenly_spread(columns - _GROUP + 1, limits.SAMPLED_GROUPS)
        groups = [slice(int(start), int(start) + _GROUP) for start in starts]
        sampled = evenly_spread(rows, limits.SAMPLED_ROWS)
    width = sum(group.stop - group.start for group in groups)
    # A fixed seed: shards are hashed in other processes, and their rows must be comparable.
    weights = np.random.default_rng(0).integers(1, 1 << 62, width, np.uint64)
    odd = weights * np.uint64(2) + np.uint64(1)
    return _Sampling(exact, tuple(groups), sampled, odd)


@dataclass(slots=True)
class Structure:
    """Rows and columns of one shard: their size, which are dead, which are copies, block by block.

    Small tensors are looked at whole. Of large ones the sizes of rows come from 32 columns and the
    sizes of columns from 64 rows, both evenly spread; which rows and columns are dead is exact.
    """

    tensor_rows: int
    first_row: int
    """Which row of the tensor is the first one here."""
    element: Element
    row_rms: NDArray[np.float64]
    row_hashes: NDArray[np.uint64]
    """Equal rows have equal ones."""
    column_squares: NDArray[np.float64]
    column_alive: NDArray[np.bool_]
    column_rows: int = 0
    """How many rows `column_squares` are the sum of."""

    @classmethod
    def of(cls, tensor: TensorEntry, shard: Shard) -> "Structure | None":
        """None where there is too much or too little to look at, or rows lie in several blocks."""
        rows, columns = tensor.shape[0], shard.row_size
        if not tensor.whole_rows(shard) or not 2 <= rows <= limits.ROWS_LOOKED_AT:
            return None
        if not 2 <= columns <= min(limits.COLUMNS_LOOKED_AT, limits.BLOCK):
            return None
        return cls(
            rows,
            shard.first_row,
            tensor.element,
            np.zeros(shard.rows),
            np.zeros(shard.rows, np.uint64),
            np.zeros(columns),
            np.zeros(columns, bool),
        )

    @property
    def exact(self) -> bool:
        """Whether every column of a row is looked at, not a sample of them."""
        return self._sampling.exact

    @property
    def _sampling(self) -> _Sampling:
        return _sampling(self.tensor_rows, len(self.column_squares), self.element.size)

    def add(self, block: TensorBlock) -> None:
        """Look at one block of whole rows."""
        table = block.bits.reshape(block.rows, len(self.column_squares))
        self._add_rows(table, slice(block.first_row, block.first_row + block.rows))
        self._add_columns(table, self.first_row + block.first_row)

    def _add_rows(self, table: NDArray[np.generic], rows: slice) -> None:
        sampling = self._sampling
        picked = np.concatenate([table[:, group] for group in sampling.groups], axis=1)
        bits = picked.view(f"u{picked.dtype.itemsize}").astype(np.uint64)
        squares = _squares(as_floats(picked, self.element))
        self.row_rms[rows] = np.sqrt(squares.mean(axis=1))
        self.row_hashes[rows] = np.einsum("ij,j->i", bits, sampling.weights)

    def _add_columns(self, table: NDArray[np.generic], first: int) -> None:
        exact, sampled, alive = self.exact, self._sampling.rows, self.column_alive
        begin, end = np.searchsorted(sampled, [first, first + len(table)])
        if exact or end > begin:
            picked = table if exact else table[sampled[begin:end] - first]
            values = as_floats(picked, self.element)
            squares = _squares(values).sum(axis=0)
            self.column_squares += squares
            self.column_rows += len(picked)
            # Where squares vanish although the elements do not, the exact look below decides.
            alive |= (values != 0).any(axis=0) if exact else squares > 0
        quiet = np.flatnonzero(~alive)
        if len(quiet) and not exact:
            for group in np.array_split(quiet, -(-len(quiet) // 1024)):
                rest = as_floats(np.ascontiguousarray(table[:, group]), self.element)
                alive[group] = (rest != 0).any(axis=0)


def evenly_spread(size: int, wanted: int) -> NDArray[np.int64]:
    """So many of the numbers from 0 to `size`, both ends among them; all where there are fewer."""
    return np.unique(np.linspace(0, size - 1, min(size, wanted)).astype(np.int64))


def _squares(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Squares, in float64 where float32 has no room; what is not finite counts as zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares: NDArray[np.floating] = values * values
    largest = squares.max(initial=0.0)
    if 1e-30 < largest < 1e30:
        return squares
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(values, dtype=np.float64)
    squares[~np.isfinite(squares)] = 0.0
    return squares


_Item = TypeVar("_Item")
_NONFINITE = ("nan", "pos_inf", "neg_inf")


@dataclass(frozen=True)
class MatrixLines:
    """The rows or the columns of a matrix."""

    rms: NDArray[np.float64]
    """Root mean square of each."""
    alive: NDArray[np.bool_]
    """Whether it holds anything but zeros."""
    exact: bool
    """Whether `rms` comes from all elements and not from a sample of them."""


@dataclass(frozen=True)
class TensorStats:
    """One tensor, measured."""

    tensor: TensorEntry
    moments: np.void
    histogram: Histogram | None
    content_hash: int
    """64 bits of a hash of all elements; 0 where none was wanted."""
    first_nonfinite: int | None
    """Flat index of the first NaN or Inf."""
    row_spread: float
    rows: MatrixLines | None
    columns: MatrixLines | None
    row_hashes: NDArray[np.uint64] | None

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite."""
        return sum(int(self.moments[name]) for name in _NONFINITE)

    @property
    def finite(self) -> int:
        """How many elements are neither NaN nor infinite."""
        return int(self.moments["count"]) - self.nonfinite

    @property
    def zero_fraction(self) -> float:
        """Share of the elements that are exactly zero; NaN without elements."""
        count = int(self.moments["count"])
        return int(self.moments["zeros"]) / count if count else math.nan

    @property
    def first_position(self) -> list[int] | None:
        """Where in the tensor the first NaN or Inf is."""
        if self.first_nonfinite is None:
            return None
        return [int(i) for i in np.unravel_index(self.first_nonfinite, self.tensor.shape)]


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Some rows of a shard to be measured, and what of them; small enough to travel."""

    file: FileId
    tensor: TensorEntry
    shard: Shard
    full: bool
    """Histograms, rows and columns too, not only moments."""
    hashed: bool
    """With a hash of all elements."""

    @property
    def bytes(self) -> int:
        """How much there is to read, by which work is shared out."""
        return self.shard.count * self.tensor.element.size


@dataclass(slots=True)
class PartialStats:
    """What was found in some rows of a shard."""

    name: str
    first_row: int
    moments: NDArray[np.void] | None = None
    bins: list[Bins] = field(default_factory=list)
    """Of each block."""
    content_hash: int = 0
    nonzero_rows: NDArray[np.uint8] | None = None
    structure: Structure | None = None
    first_nonfinite: int | None = None
    row_spread: float = math.nan


def measure_tensors(
    index: Index, options: ScanOptions, *, full: bool, hashed: bool
) -> tuple[TensorStats, ...]:
    """Every tensor of a checkpoint, after its checksums were found right."""
    units = [*_checksum_units(index), *measuring_units(index, full=full, hashed=hashed)]
    results = do_work(units, options, index.path, index.reach, limits.MEASURED_ALONE)
    return joined(index, chain.from_iterable(results))


def joined(index: Index, parts: Iterable[PartialStats]) -> tuple[TensorStats, ...]:
    """Every tensor from what was found in its shards."""
    by_name: dict[str, list[PartialStats]] = {tensor.name: [] for tensor in index.tensors}
    for part in parts:
        by_name[part.name].append(part)
    return tuple(_joined(tensor, by_name[tensor.name]) for tensor in index.tensors)


# -- cutting ---------------------------------------------------------------------------------------


def measuring_units(
    index: Index, *, full: bool, hashed: bool = False
) -> Iterator[WorkUnit[list[PartialStats]]]:
    """The tensors in order, some MiB at a time."""
    for group in _grouped(_cut(index, full, hashed), lambda rows: rows.bytes):
        size, files = sum(rows.bytes for rows in group), frozenset(rows.file for rows in group)
        yield WorkUnit(measure_group, (group,), size, files)


def _checksum_units(index: Index) -> Iterator[WorkUnit[list[PartialStats]]]:
    checksums = ((index.files[checksum.file], checksum) for checksum in index.checksums)
    for group in _grouped(checksums, lambda pair: pair[1].length):
        # no bytes: what is verified will be measured too, and progress counts it then
        yield WorkUnit(verify_group, (group,), 0, frozenset(file for file, _ in group))


def _cut(index: Index, full: bool, hashed: bool) -> Iterator[ShardRows]:
    for tensor in index.tensors:
        size = tensor.element.size
        for shard in tensor.shards:
            step = max(1, limits.TASK_BYTES // max(1, shard.row_size * size))
            if shard.packed:  # can only be inflated from its beginning
                step = max(1, shard.rows)
            for first in range(0, shard.rows, step):
                some = shard.some_rows(first, min(first + step, shard.rows), size)
                yield ShardRows(index.files[shard.file], tensor, some, full, hashed)


def _grouped(items: Iterable[_Item], size: Callable[[_Item], int]) -> Iterator[tuple[_Item, ...]]:
    """As many in a row as one worker should get at once."""
    group: list[_Item] = []
    total = 0
    for item in items:
        if group and total + size(item) > limits.TASK_BYTES:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size(item) + 4096  # a tiny tensor costs about as much as a page
    if group:
        yield tuple(group)


def verify_group(access: Access, group: Sequence[tuple[FileId, Checksum]]) -> list[PartialStats]:
    """Raise at the first checksum that does not fit; otherwise there is no result."""
    for file, checksum in group:
        verify_checksum(file, checksum)
    return []


def measure_group(access: Access, group: Sequence[ShardRows]) -> list[PartialStats]:
    """What is found in each of some shards."""
    read = access()
    results = []
    for rows in group:
        held = rows.shard.extent * rows.tensor.element.size
        # a large view that is not in row order can only be gathered from a mapped file
        mapped = not rows.shard.contiguous and held > limits.ALONE_BYTES
        results.append(measure_rows(rows, mapping() if mapped else read))
    return results


# -- measuring -------------------------------------------------------------------------------------


def measure_rows(rows: ShardRows, read: ReadBytes) -> PartialStats:
    """One pass over the blocks of some rows."""
    tensor, shard = rows.tensor, rows.shard
    part = PartialStats(tensor.name, shard.first_row)
    matrix = len(tensor.shape) >= 2
    if matrix and shard.rows <= limits.ROWS_LOOKED_AT:
        part.nonzero_rows = np.zeros(shard.rows, np.uint8)
    # rows that are shown several times are no rows that were learnt alike
    judged = rows.full and matrix and not shard.expanded
    if judged and tensor.element.floating:
        part.structure = Structure.of(tensor, shard)
    records = [
        _measure_block(part, rows, block)
        for block in blocks(read, rows.file, shard, tensor.element)
    ]
    if records:
        # Merged here and in this order, so that the bits do not depend on how work is shared out.
        part.moments = np.array([merge(np.concatenate(records))]) if records[1:] else records[0]
    if judged:
        part.row_spread = _row_spread(rows, read)
    return part


def _measure_block(part: PartialStats, rows: ShardRows, block: TensorBlock) -> NDArray[np.void]:
    """Add a block to what is known of the shard; its moments are handed back, to be merged."""
    values, dtype = measurable(block.bits, block.element)
    matrix = len(rows.tensor.shape) >= 2
    batch = Batch.of([values.ctypes.data], [values.size], [dtype], [block.rows if matrix else 0])
    touched = None
    if part.nonzero_rows is not None:
        touched = [part.nonzero_rows[block.first_row : block.first_row + block.rows]]
    found = measure(batch, bins=rows.full, touched=touched)
    if rows.full:
        part.bins += found.bins
    if rows.hashed:
        block_hash = _content_hash(rows, block, values, int(dtype))
        part.content_hash = (part.content_hash + block_hash) % (1 << 64)
    if part.first_nonfinite is None and any(int(found.records[name][0]) for name in _NONFINITE):
        place = int(np.flatnonzero(~np.isfinite(block.values))[0])
        part.first_nonfinite = _flat_index(rows, block, place)
    if part.structure is not None:
        part.structure.add(block)
    return found.records


def _flat_index(rows: ShardRows, block: TensorBlock, place: int) -> int:
    """From a place in a block to the flat index in the whole tensor."""
    shape, shard = rows.tensor.shape, rows.shard
    if not shape:
        return 0
    inner = block.first_row * shard.row_size + block.first_column + place
    local = np.unravel_index(inner, shard.shape)
    return int(
        np.ravel_multi_index([i + s for i, s in zip(local, shard.start, strict=True)], shape)
    )


def _content_hash(
    rows: ShardRows, block: TensorBlock, values: NDArray[np.generic], dtype: int
) -> int:
    """Of a block, from runs of elements that lie side by side in the whole tensor."""
    if rows.tensor.whole_rows(rows.shard):
        offsets, run = np.array([_flat_index(rows, block, 0)], np.int64), values.size
    else:
        offsets, run = _runs(rows, block)
    address = values.ctypes.data + np.arange(len(offsets)) * run * values.itemsize
    batch = Batch.of(address.tolist(), [run] * len(offsets), [dtype] * len(offsets))
    return int(hashes(batch, offsets).sum(dtype=np.uint64))


def _runs(rows: ShardRows, block: TensorBlock) -> tuple[NDArray[np.int64], int]:
    """Flat offsets and length of the runs of a shard that is narrower than the tensor."""
    shape = (block.rows, *rows.shard.shape[1:])
    run, depth = 1, len(shape)
    while depth and (depth == len(shape) or shape[depth] == rows.tensor.shape[depth]):
        depth -= 1
        run *= shape[depth]
    at = np.indices(shape[:depth]).reshape(depth, -1)
    starts = [block.first_row + rows.shard.start[0], *rows.shard.start[1:]]
    coordinates = [
        at[axis] + starts[axis] if axis < depth else np.full(at.shape[1], starts[axis])
        for axis in range(len(shape))
    ]
    return np.ravel_multi_index(coordinates, rows.tensor.shape).astype(np.int64), run


def _row_spread(rows: ShardRows, read: ReadBytes) -> float:
    """How far a few fixed rows lie from row 0; those rows are all the kernel would look at."""
    tensor, element = rows.tensor, rows.tensor.element
    shard = next((s for s in tensor.shards if s.shape == tensor.shape), None)
    if shard is None or (shard.file, shard.offset) != (rows.shard.file, rows.shard.offset):
        return math.nan  # these are not the first rows of all
    if shard.rows < 2 or not element.floating or shard.row_size * 17 > 1 << 24:
        return math.nan
    others = min(16, shard.rows - 1)
    chosen = [0, *(1 + k * (shard.rows - 1) // others for k in range(others))]
    size = shard.row_size * element.size
    if shard.row_access and shard.rows * size <= limits.WHOLE_BYTES:
        table = typed(read(rows.file, shard.offset, shard.rows * size), element)
        bits = [table.reshape(shard.rows, -1)[chosen].reshape(-1)]
    elif shard.row_access:
        raws = (read(rows.file, shard.offset + row * size, size) for row in chosen)
        bits = [typed(raw, element).copy() for raw in raws]
    elif shard.row_size <= limits.BLOCK:  # packed or in another order: gathered in passing
        tables = (
            (block.first_row, block.bits.reshape(block.rows, shard.row_size))
            for block in blocks(read, rows.file, shard, element)
        )
        bits = [table[r - at] for at, table in tables for r in chosen if at <= r < at + len(table)]
    else:
        return math.nan
    values, dtype = measurable(np.concatenate(bits), element)
    batch = Batch.of([values.ctypes.data], [values.size], [dtype], [len(chosen)])
    return float(row_spread(batch)[0])


# -- joining ---------------------------------------------------------------------------------------


def _joined(tensor: TensorEntry, parts: Sequence[PartialStats]) -> TensorStats:
    """All parts of one tensor, in the order of its shards and rows."""
    records = [part.moments for part in parts if part.moments is not None]
    if records:
        moments = merge(np.concatenate(records)) if len(records) > 1 else records[0][0]
    else:
        moments = measure_arrays([np.empty(tensor.shape, np.float32)])[0]
    nonzero = _nonzero_rows(tensor, parts)
    if nonzero is not None:  # parts of one row may lie in several blocks: the kernel's count is off
        counted = np.array([moments], MOMENTS)
        counted["zero_rows"] = np.count_nonzero(~nonzero)
        moments = counted[0]
    places = [part.first_nonfinite for part in parts if part.first_nonfinite is not None]
    rows, columns, row_hashes = _structure(tensor, parts, nonzero)
    return TensorStats(
        tensor,
        moments,
        _histogram(parts, moments),
        sum(part.content_hash for part in parts) % (1 << 64),
        min(places) if places else None,
        next((part.row_spread for part in parts if not math.isnan(part.row_spread)), math.nan),
        rows,
        columns,
        row_hashes,
    )


def _nonzero_rows(tensor: TensorEntry, parts: Sequence[PartialStats]) -> NDArray[np.bool_] | None:
    """Which rows hold anything but zeros; None where the rows were not followed."""
    if len(tensor.shape) < 2 or not parts:
        return None
    nonzero = np.zeros(tensor.shape[0], bool)
    for part in parts:
        if part.nonzero_rows is None:
            return None
        nonzero[part.first_row : part.first_row + len(part.nonzero_rows)] |= part.nonzero_rows != 0
    return nonzero


def _structure(
    tensor: TensorEntry, parts: Sequence[PartialStats], nonzero: NDArray[np.bool_] | None
) -> tuple[MatrixLines | None, MatrixLines | None, NDArray[np.uint64] | None]:
    """Rows, columns, and a hash of each row."""
    structures = [part.structure for part in parts if part.structure is not None]
    if not structures or len(structures) != len(parts) or nonzero is None:
        return None, None, None
    if sum(len(s.row_rms) for s in structures) != tensor.shape[0]:
        return None, None, None
    rms, row_hashes = np.zeros(len(nonzero)), np.zeros(len(nonzero), np.uint64)
    for s in structures:
        rms[s.first_row : s.first_row + len(s.row_rms)] = s.row_rms
        row_hashes[s.first_row : s.first_row + len(s.row_rms)] = s.row_hashes
    squares = np.sum([s.column_squares for s in structures], axis=0)
    used = sum(s.column_rows for s in structures)
    alive = np.any([s.column_alive for s in structures], axis=0)
    exact = structures[0].exact
    rows = MatrixLines(rms, nonzero, exact)
    return rows, MatrixLines(np.sqrt(squares / max(used, 1)), alive, exact), row_hashes


def _histogram(parts: Sequence[PartialStats], moments: np.void) -> Histogram | None:
    bins = [found for part in parts for found in part.bins]
    if not bins:
        return None
    spans = [(b.first_exponent, b.first_exponent + len(b.negative)) for b in bins if len(b[1])]
    first, last = min((a for a, _ in spans), default=0), max((b for _, b in spans), default=0)
    counts = np.zeros((2, last - first), np.uint64)
    for found in bins:
        some = slice(found.first_exponent - first, found.first_exponent - first + len(found[1]))
        counts[:, some if len(found[1]) else slice(0)] += found[1:]
    return Histogram(
        first,
        counts[0],
        counts[1],
        int(moments["zeros"]),
        *(int(moments[name]) for name in _NONFINITE),
    )


_TARGETS = {
    "bfloat16": (3.3895313892515355e38, -126, -133),
    "float16": (65504.0, -14, -24),
    "float8_e5m2": (57344.0, -14, -16),
    "float8_e4m3fn": (448.0, -6, -9),
}
"""The largest number of a type, and the exponents of its smallest normal and smallest number."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A tensor in a narrower type, without scaling."""

    headroom: float
    """Largest number of the type divided by the largest element; below 1 it overflows."""
    subnormal_fraction: float
    """Share of all elements that lose precision (not zero, below the smallest normal number)."""
    vanishing_fraction: float
    """Share that would become zero: below half of the smallest number."""


def overall_casts(tensors: Iterable[TensorStats]) -> dict[str, Cast]:
    """All floating tensors together: the least headroom, and shares of all elements."""
    counted = [(cast, stats.tensor.count) for stats in tensors if (cast := casts(stats))]
    total = sum(count for _, count in counted)
    return {
        target: Cast(
            min(cast[target].headroom for cast, _ in counted),
            sum(cast[target].subnormal_fraction * count for cast, count in counted) / total,
            sum(cast[target].vanishing_fraction * count for cast, count in counted) / total,
        )
        for target in (_TARGETS if counted else ())
    }


def casts(stats: TensorStats, targets: Iterable[str] = tuple(_TARGETS)) -> dict[str, Cast]:
    """By the name of the type; none for tensors without finite elements or a histogram."""
    histogram, count = stats.histogram, int(stats.moments["count"])
    if histogram is None or not stats.finite or not stats.tensor.element.floating:
        return {}
    up_to: list[int] = [0, *np.cumsum(histogram.negative + histogram.positive).tolist()]
    largest = float(stats.moments["abs_max"])

    def below(exponent: int) -> int:
        return up_to[min(max(0, exponent - histogram.first_exponent), len(up_to) - 1)]

    results = {}
    for target in targets:
        limit, normal, smallest = _TARGETS[target]
        vanishing = below(smallest - 1)
        subnormal = below(normal) - vanishing
        headroom = limit / largest if largest else math.inf
        results[target] = Cast(headroom, subnormal / count, vanishing / count)
    return results
