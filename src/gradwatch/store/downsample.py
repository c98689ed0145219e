"""Reading rollups: in place of rows that are gone, and to downsample a run without its rows."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.downsample import Downsampled
from gradwatch.stats import HAS_VALUE, Family, Stat, State
from gradwatch.store.chunks import WORST_STATE, Chunk, is_in
from gradwatch.store.column_file import ChunkKey, ColumnChunk
from gradwatch.store.column_format import STATE, ColumnPart
from gradwatch.store.rollups import FACTOR, LAST_ONLY, LEVELS, VALUED

# -- in place of rows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RollupChunk:
    """Some buckets of a rollup, standing in for rows that are no longer kept in full.

    Every value was measured on the step it is given for; the steps between are not sampled.
    """

    base: ColumnChunk
    buckets: NDArray[np.intp]

    def near(self, first: int, last: int) -> "RollupChunk | None":
        """Only the buckets that have steps around a range; None where there are none."""
        lowest, highest = self.base.edges
        kept = self.buckets[(lowest[self.buckets] <= last) & (highest[self.buckets] >= first)]
        if not len(kept):
            return None
        return self if len(kept) == len(self.buckets) else RollupChunk(self.base, kept)

    @property
    def family(self) -> Family:
        """Gradients, weights, … : what the rows are rows of."""
        return self.base.family

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each column, by the id its writer gave it."""
        return self.base.ids

    @property
    def stats(self) -> frozenset[Stat]:
        """The statistics the rollup has buckets of."""
        return self.base.stats

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step the chosen buckets cover, including those without a value of their own."""
        return self.base.steps[self._rows]

    @cached_property
    def seqs(self) -> NDArray[np.uint64]:
        """The record number of the row that each step once was."""
        return self.base.seqs[self._rows]

    def states(self, stat: Stat) -> NDArray[np.uint8] | None:
        """A bucket's extremes and its last row have a state; the steps between are not sampled."""
        last = self._part(STATE, ColumnPart.VALUE)
        valued = self._part(VALUED, ColumnPart.VALUE)
        extremes = self._extremes(stat)
        if last is None or valued is None or extremes is None:
            return None
        out = np.full((len(self._rows), len(self.ids)), State.NOT_SAMPLED, np.uint8)
        out[self._ends] = np.minimum(last, WORST_STATE)
        for cells, measured, _ in extremes:
            out[cells] = np.minimum(valued[measured], WORST_STATE)
        return out

    def column(self, stat: Stat) -> NDArray[Any] | None:
        """A bucket's lowest, highest and last value, each on the step it was measured on."""
        last = self._part(str(stat), ColumnPart.LAST)
        extremes = self._extremes(stat)
        if last is None or extremes is None:
            return None
        real = last.dtype.kind == "f"
        shape = (len(self._rows), len(self.ids))
        out: NDArray[Any] = np.full(shape, np.nan) if real else np.zeros(shape, np.uint64)
        out[self._ends] = last
        for cells, measured, values in extremes:
            out[cells] = values[measured]
        return out

    def _extremes(
        self, stat: Stat
    ) -> list[tuple[tuple[NDArray[Any], ...], NDArray[np.bool_], NDArray[Any]]] | None:
        """For the lowest and for the highest values: the cells (row, subject) they were measured
        in, which buckets [bucket, subject] have one, and the values of all buckets."""
        if str(stat) in LAST_ONLY:
            return []
        count = self._part(str(stat), ColumnPart.COUNT)
        extremes: list[tuple[tuple[NDArray[Any], ...], NDArray[np.bool_], NDArray[Any]]] = []
        for values_part, at_part in (
            (ColumnPart.LOW, ColumnPart.LOW_AT),
            (ColumnPart.HIGH, ColumnPart.HIGH_AT),
        ):
            values, at = self._part(str(stat), values_part), self._part(str(stat), at_part)
            if count is None or values is None or at is None:
                return None
            # A forged place beyond its bucket would write into another one.
            measured = (count > 0) & (at < self._sizes[:, None])
            buckets, subjects = np.nonzero(measured)
            starts = self._ends[buckets] + 1 - self._sizes[buckets]
            rows = starts + at[measured].astype(np.intp)
            extremes.append(((rows, subjects), measured, values))
        return extremes

    def _part(self, name: str, part: ColumnPart) -> NDArray[Any] | None:
        values = self.base.part(name, part)
        return None if values is None else values[self.buckets]

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return self.base.sizes[self.buckets]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._sizes) - 1

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """Which of the chunk's steps belong to the chosen buckets."""
        chosen = np.zeros(len(self.base.sizes), bool)
        chosen[self.buckets] = True
        return np.flatnonzero(np.repeat(chosen, self.base.sizes))


def standing_in(rollups: list[ColumnChunk], covered: NDArray[np.uint64]) -> list[RollupChunk]:
    """The buckets that hold rows not kept more finely, finest level first.

    `covered` lists the sequence numbers of the rows that are kept in full. A bucket is taken as
    soon as one of its rows is missing; the finer rows, which come later, then lie on top of it.
    """
    chunks = []
    kept = np.sort(covered)
    for level in LEVELS:
        added = []
        for rollup in (rollup for rollup in rollups if rollup.level == level):
            missing = ~is_in(rollup.seqs, kept)
            if not missing.any():
                continue
            buckets = np.flatnonzero(np.logical_or.reduceat(missing, rollup.starts))
            chunks.append(RollupChunk(rollup, buckets))
            added.append(chunks[-1].seqs)
        if added and level < max(LEVELS):
            kept = np.sort(np.concatenate([kept, *added]))
    return chunks


# -- downsampling --------------------------------------------------------------------------------


class Buckets(NamedTuple):
    """Rows or buckets of some subjects: [row or bucket, subject]; numbers as wide as stored."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ids: NDArray[np.uint32]
    low: NDArray[np.floating]
    high: NDArray[np.floating]
    final: NDArray[np.floating]
    seqs: NDArray[np.uint64]

    def within(self, first: int, last: int) -> "Buckets":
        """The buckets that lie wholly in a range of steps."""
        return self.only((self.first >= first) & (self.last <= last))

    def only(self, chosen: NDArray[np.bool_]) -> "Buckets":
        """Some of the buckets."""
        if chosen.all():
            return self
        return Buckets(
            self.first[chosen],
            self.last[chosen],
            self.sizes[chosen],
            self.ids,
            self.low[chosen],
            self.high[chosen],
            self.final[chosen],
            self.seqs[np.repeat(chosen, self.sizes)],
        )


class BucketCache:
    """Buckets of rollups that were read lately: panning over a long run reads each only once."""

    def __init__(self, limit: int = 96 << 20) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[str, ChunkKey, Stat], tuple[Buckets, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()  # a server reads from several threads

    def read(self, stat: Stat, rollup: ColumnChunk) -> Buckets | None:
        """All buckets of a chunk, or None where it is damaged."""
        key = rollup.file.path.name, rollup.key, stat
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        buckets = _read_buckets(stat, rollup)  # outside the lock: two threads may read the same
        if buckets is not None:
            self._keep(key, buckets)
        return buckets

    def _keep(self, key: tuple[str, ChunkKey, Stat], buckets: Buckets) -> None:
        size = sum(_weight(part) for part in buckets)
        with self._lock:
            if key not in self._held:
                self._held[key] = buckets, size
                self._size += size
            while self._size > self._limit:
                _, (_, gone) = self._held.popitem(last=False)
                self._size -= gone


def level_for(rows: int, points: int) -> int:
    """The coarsest level that still has five buckets for four points; 0 where rows must do."""
    return max((level for level in LEVELS if FACTOR**level * 5 * points <= 4 * rows), default=0)


@dataclass(frozen=True)
class RangeBuckets:
    """Collects the buckets of `level` between two steps, for one statistic."""

    stat: Stat
    first: int
    last: int
    level: int
    cache: BucketCache

    def collect(
        self, chunks: Sequence[Chunk], rollups: Sequence[ColumnChunk]
    ) -> list[Buckets] | None:
        """Buckets that lie within the range; where there is none, what is kept instead: coarser
        buckets of old steps, single rows of new ones. All chunks are of the stat's family."""
        collected: list[Buckets] = []
        for rollup in rollups:
            if rollup.level != self.level:
                continue
            buckets = self.cache.read(self.stat, rollup)
            if buckets is None:
                return None  # damaged: the caller downsamples what can be read instead
            collected.append(buckets.within(self.first, self.last))
        seqs = [buckets.seqs for buckets in collected]
        covered = np.sort(np.concatenate([*seqs, np.empty(0, np.uint64)]))
        for chunk in chunks:
            if isinstance(chunk, RollupChunk):
                collected += self._stand_ins(chunk, covered)
            else:
                collected += self._rows(chunk, covered)
        return collected

    def _stand_ins(self, chunk: RollupChunk, covered: NDArray[np.uint64]) -> Iterator[Buckets]:
        """Whole buckets as they are, unless they are of the level that was collected already; of
        one that reaches out of the range only its rows in it."""
        base = chunk.base
        lowest, highest = base.edges
        wanted = np.zeros(len(lowest), bool)
        wanted[chunk.buckets] = True
        wanted &= (lowest <= self.last) & (highest >= self.first)
        inside = (lowest >= self.first) & (highest <= self.last)
        if base.level == self.level:
            wanted &= ~inside
        if not wanted.any():
            return
        wanted &= np.logical_or.reduceat(~is_in(base.seqs, covered), base.starts)
        buckets = self.cache.read(self.stat, base) if (wanted & inside).any() else None
        if buckets is not None:
            yield buckets.only(wanted & inside)
        cut = np.flatnonzero(wanted & ~inside)
        if len(cut):
            yield from self._rows(RollupChunk(base, cut), covered)

    def _rows(self, chunk: Chunk, covered: NDArray[np.uint64]) -> Iterator[Buckets]:
        steps = chunk.steps
        inside = (steps >= self.first) & (steps <= self.last)
        if not inside.any():
            return
        inside &= ~is_in(chunk.seqs, covered)
        # `stats` last: for a rollup it reads the head of every column from the file.
        if not inside.any() or self.stat not in chunk.stats:
            return
        column, states = chunk.column(self.stat), chunk.states(self.stat)
        if column is None or states is None:
            return
        values = np.where(HAS_VALUE[states[inside]], column[inside].astype(np.float64), np.nan)
        values = _slim(np.where(np.isfinite(values), values, np.nan))
        steps = steps[inside]
        ones = np.ones(len(steps), np.int64)
        yield Buckets(steps, steps, ones, chunk.ids, values, values, values, chunk.seqs[inside])


def joined_buckets(
    parts: list[Buckets], columns: dict[int, int], width: int, points: int
) -> Downsampled:
    """At most `points` buckets of about equally many rows each; `columns` places the subjects."""
    order = np.argsort(np.concatenate([part.first for part in parts]), kind="stable")
    firsts = np.concatenate([part.first for part in parts])[order]
    lasts = np.concatenate([part.last for part in parts])[order]
    ends = np.cumsum(np.concatenate([part.sizes for part in parts])[order])
    # By rows, not by steps: where steps were skipped, equal spans would hold few rows or none.
    point = np.minimum((ends - 1) * points // max(int(ends[-1]), 1), points - 1)
    starts = np.flatnonzero(np.diff(point, prepend=-1))
    steps = firsts[starts], np.maximum.reduceat(lasts, starts)
    number = _one_number(parts, columns, width)
    if number is not None:
        same = np.full((len(starts), width), number)
        return Downsampled(*steps, same, same, same)
    sorted_already = bool((order[1:] > order[:-1]).all())
    tables = []
    for field in ("low", "high", "final"):
        table = _spread([getattr(part, field) for part in parts], parts, columns, width)
        tables.append(table if sorted_already else table[order])
    low, high, final = tables
    return Downsampled(*steps, _lowest(low, starts), -_lowest(-high, starts), _last(final, starts))


def _lowest(values: NDArray[np.floating], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Lowest number of each point; `minimum` is far quicker than `fmin`, the same without NaN."""
    reduce = np.fmin if np.isnan(values).any() else np.minimum
    return np.asarray(reduce.reduceat(values, starts, axis=0), np.float64)


def _last(values: NDArray[np.floating], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Last number of each point that is one."""
    gaps = np.isnan(values)
    if not gaps.any():
        ends: NDArray[np.float64] = values[np.append(starts[1:], len(values)) - 1].astype(float)
        return ends
    rows = np.where(gaps, np.int32(-1), np.arange(len(values), dtype=np.int32)[:, None])
    at = np.maximum.reduceat(rows, starts, axis=0)
    picked = np.take_along_axis(values, np.maximum(at, 0), axis=0)
    return np.where(at >= 0, picked, np.nan).astype(np.float64)


def _one_number(parts: list[Buckets], columns: dict[int, int], width: int) -> float | None:
    """The number that stands in every cell (0 in most counts of NaN); None where they differ."""
    tables = [table for part in parts for table in (part.low, part.high, part.final)]
    if len(columns) < width or any(len(part.ids) < width for part in parts):
        return None
    # Strides of zero are what `_slim` leaves: then one cell is the whole table.
    if any(table.strides != (0, 0) or not table.size for table in tables):
        return None
    numbers = {float(table[0, 0]) for table in tables}
    return numbers.pop() if len(numbers) == 1 else None


def _read_buckets(stat: Stat, rollup: ColumnChunk) -> Buckets | None:
    low, high, final, count = (
        rollup.part(str(stat), part)
        for part in (ColumnPart.LOW, ColumnPart.HIGH, ColumnPart.LAST, ColumnPart.COUNT)
    )
    if low is None or high is None or final is None or count is None:
        return None
    measured = count > 0
    ending = _real(final, measured)
    return Buckets(
        *rollup.edges,
        rollup.sizes,
        rollup.ids,
        _real(low, measured),
        _real(high, measured),
        _slim(np.where(np.isfinite(ending), ending, np.nan)),
        rollup.seqs,
    )


def _real(values: NDArray[np.generic], measured: NDArray[np.bool_]) -> NDArray[np.floating]:
    """NaN where a bucket has no value; 32 bits stay 32 bits."""
    kind = values.dtype if values.dtype == np.float32 else np.dtype(np.float64)
    return _slim(np.where(measured, values.astype(kind), kind.type(np.nan)))


def _slim(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """A table of equal numbers (most counts of NaN are all 0) keeps only one cell in memory."""
    if values.size and (values == values.flat[0]).all():
        return np.broadcast_to(values.flat[0], values.shape)
    return values


def _weight(part: NDArray[np.generic]) -> int:
    """Bytes an array really takes; steps and sequence numbers are the chunk's own."""
    return part.nbytes if part.ndim == 2 and part.strides != (0, 0) else 64


def _spread(
    tables: list[NDArray[np.floating]], parts: list[Buckets], columns: dict[int, int], width: int
) -> NDArray[np.floating]:
    """The tables one below the other, each subject in its own column."""
    kind = np.result_type(*(table.dtype for table in tables))
    out = np.full((sum(len(table) for table in tables), width), np.nan, kind)
    places: dict[bytes, NDArray[np.intp] | slice] = {}
    at = 0
    for table, part in zip(tables, parts, strict=True):
        key = part.ids.tobytes()
        if key not in places:
            index = np.array([columns[number] for number in part.ids.tolist()], np.intp)
            contiguous = bool((np.diff(index) == 1).all()) and len(index) > 0
            places[key] = slice(int(index[0]), int(index[-1]) + 1) if contiguous else index
        out[at : at + len(table), places[key]] = table
        at += len(table)
    return out
