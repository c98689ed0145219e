"""Rollups: ten rows become one bucket that still knows their extremes, ten of those one more.

A row is a bucket of one. Neighbouring buckets of the same subjects are combined while their rows
fit, whether they are rows of a journal or buckets of earlier rollups: one function for all levels.
Files are made from files alone, nothing is kept in between.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE
from gradwatch.store.chunks import WORST_STATE, GridChunk, SealedTable, narrowed
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import Footer, Grid, RandomAccess, directly, encoded, read_footer

SIZES = (10, 100, 1000)
"""Rows in a bucket of each level."""
LAST_ONLY = frozenset({"weight_hash"})
"""Statistics of which only the last value means anything."""
_CELLS_AT_ONCE = 1 << 19
"""Rows of all sources times statistics that are read at once while merging: about 30 MB."""
_PARTS = ("min", "max", "last", "sum", "count", "min_step", "max_step")


Columns = Mapping[str, NDArray[Any]]
"""The columns of rows by name, [step, subject] each."""


def sizes_of(grid: Grid) -> NDArray[np.int64]:
    """Rows in each bucket; a row of a file that is no rollup is one."""
    return np.ones(len(grid.steps), np.int64) if grid.sizes is None else grid.sizes


def edges(grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lowest and the highest step of each bucket."""
    sizes = sizes_of(grid)
    starts = np.cumsum(sizes) - sizes
    if not len(starts):
        return grid.steps, grid.steps
    return np.minimum.reduceat(grid.steps, starts), np.maximum.reduceat(grid.steps, starts)


@dataclass(frozen=True)
class BucketParts:
    """One statistic of buckets, [bucket, subject] each: the columns X_min, X_max, …

    The extremes and their steps mean nothing where `count` is 0, nor `last` where not `ended`.
    """

    min: NDArray[Any]
    max: NDArray[Any]
    last: NDArray[Any]
    sum: NDArray[np.float64]
    count: NDArray[Any]
    min_step: NDArray[np.int64]
    max_step: NDArray[np.int64]
    ended: NDArray[np.bool_]
    """Whether the last row has a number."""


class Groups(NamedTuple):
    """Which neighbours become one bucket: the places of each one's members among all."""

    members: NDArray[np.intp]
    """[bucket, member]; where there are fewer members, the last one again."""
    lengths: NDArray[np.intp]
    sizes: NDArray[np.int64]
    """Rows in each bucket."""

    @classmethod
    def of(cls, sizes: NDArray[np.int64], most: int) -> "Groups":
        """BucketParts of so many rows, combined while there are at most `most` in one."""
        ends = np.cumsum(sizes)
        following = np.searchsorted(ends, ends - sizes + most, side="right").tolist()
        starts, at = [], 0
        while at < len(following):
            starts.append(at)
            at = max(following[at], at + 1)
        begin = np.array(starts, np.intp)
        lengths = np.diff(np.append(begin, len(sizes)))
        offsets = np.arange(lengths.max(initial=0))
        members = begin[:, None] + np.minimum(offsets, lengths[:, None] - 1)
        return cls(members, lengths, np.add.reduceat(sizes, begin) if starts else sizes)

    def gathered(self, values: NDArray[Any], fill: Any = None) -> NDArray[Any]:
        """[member, bucket, subject]; with `fill` in place of members there are not."""
        out: NDArray[Any] = values.take(self.members.T, axis=0)
        if fill is not None:
            out[np.arange(len(out))[:, None] >= self.lengths] = fill
        return out

    def final(self, values: NDArray[Any]) -> NDArray[Any]:
        """That of the last member of each."""
        out: NDArray[Any] = values[self.members[:, -1]]
        return out


def _combined(parts: BucketParts, groups: Groups) -> BucketParts:
    """Each group as one bucket."""
    counted = parts.count > 0
    terms = parts.sum if counted.all() else np.where(counted, parts.sum, 0.0)
    lowest = _extreme(np.minimum, parts.min, parts.min_step, counted, groups)
    highest = _extreme(np.maximum, parts.max, parts.max_step, counted, groups)
    with np.errstate(over="ignore"):
        total = groups.gathered(terms, 0).sum(axis=0)
    count = groups.gathered(parts.count, 0).sum(axis=0, dtype=parts.count.dtype)
    last, ended = groups.final(parts.last), groups.final(parts.ended)
    return BucketParts(lowest[0], highest[0], last, total, count, lowest[1], highest[1], ended)


def _extreme(
    better: np.ufunc,
    values: NDArray[Any],
    steps: NDArray[np.int64],
    counted: NDArray[np.bool_],
    groups: Groups,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The lowest or highest of each group, and the step of the first member that has it."""
    table, taken = groups.gathered(values), None
    if not counted.all():
        taken = groups.gathered(counted)
        ends = np.iinfo(np.uint64) if values.dtype.kind == "u" else np.finfo(values.dtype)
        table[~taken] = ends.max if better is np.minimum else ends.min
    best = better.reduce(table, axis=0)
    place = np.zeros(best.shape, np.int16)
    for member in reversed(range(len(table))):  # the first one stays
        found = table[member] == best
        np.copyto(place, member, where=found if taken is None else found & taken[member])
    at = groups.members[np.arange(len(best))[:, None], place]
    if steps.shape[1] == 1:
        return best, steps[:, 0].take(at)
    return best, steps.ravel().take(at * steps.shape[1] + np.arange(steps.shape[1]))


# -- files -----------------------------------------------------------------------------------------


class _Columns:
    """The columns of a rollup file while they are collected, grid after grid."""

    def __init__(self) -> None:
        self.columns: dict[str, list[NDArray[Any]]] = {}
        self.valid: dict[str, list[NDArray[np.bool_]]] = {}
        self.grids: list[Grid] = []

    def add_keys(self, grid: Grid, states: NDArray[np.uint8], rank: int, attempt: int) -> None:
        """What every bucket of a grid has beside its statistics."""
        self.grids.append(grid)
        buckets, width = grid.shape
        first, last = edges(grid)
        self._add("first_step", np.repeat(first, width))
        self._add("last_step", np.repeat(last, width))
        self._add("rows", np.repeat(sizes_of(grid), width).astype(np.uint16))
        self._add("subject", np.tile(grid.ids, buckets))
        self._add("state", states)
        self._add("rank", np.full(buckets * width, rank, np.int32))
        self._add("attempt", np.full(buckets * width, attempt, np.int32))

    def add(self, stat: str, parts: BucketParts) -> None:
        """One statistic of the next grid."""
        self._add(f"{stat}_last", parts.last, parts.ended)
        if stat not in LAST_ONLY:
            some = parts.count > 0
            self._add(f"{stat}_count", parts.count.astype(np.uint16, copy=False))
            for part in ("min", "max", "sum", "min_step", "max_step"):
                self._add(f"{stat}_{part}", getattr(parts, part), some)

    def _add(self, name: str, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> None:
        values = narrowed(values) if values.dtype == np.float64 else values
        self.columns.setdefault(name, []).append(values.reshape(-1))
        if valid is not None:
            self.valid.setdefault(name, []).append(valid.reshape(-1))

    def encoded(self, file: str) -> tuple[memoryview, SealedFile]:
        """The file and its entry."""
        return encoded(
            file,
            {name: np.concatenate(parts) for name, parts in self.columns.items()},
            steps=np.concatenate([grid.steps for grid in self.grids]),
            grids=self.grids,
            valid={name: np.concatenate(parts) for name, parts in self.valid.items()},
            compression="zstd",
        )


def sealed(
    file: str,
    tables: Sequence[tuple[Grid, NDArray[np.void] | Columns, NDArray[np.uint8]]],
    rank: int,
    attempt: int,
    yield_gil: Callable[[], None] = lambda: None,
) -> tuple[memoryview, SealedFile]:
    """The first level: buckets of the rows [step, subject] of one journal and family."""
    out = _Columns()
    for grid, rows, states in tables:
        groups, valued = Groups.of(sizes_of(grid), SIZES[0]), HAS_VALUE[states]
        buckets = Grid(grid.steps, grid.ids, groups.sizes)
        out.add_keys(buckets, _last_valued(states, groups), rank, attempt)
        names = rows.keys() if isinstance(rows, Mapping) else rows.dtype.names or ()
        for name in names:
            if rows[name].ndim == 2:  # wider ones (sketches) have no extremes
                out.add(name, _combined(_single(rows[name], valued, grid.steps), groups))
                yield_gil()
    return out.encoded(file)


def _single(
    values: NDArray[Any], valued: NDArray[np.bool_], steps: NDArray[np.int64]
) -> BucketParts:
    """Every row a bucket of its own."""
    values = np.ascontiguousarray(values)
    counted = valued & np.isfinite(values) if values.dtype.kind == "f" else valued
    terms, own = values.astype(np.float64, copy=False), steps[:, None]
    return BucketParts(values, values, values, terms, counted.astype(np.uint16), own, own, valued)


def _last_valued(states: NDArray[np.uint8], groups: Groups) -> NDArray[np.uint8]:
    """The state of the last member with a number, else of the last one."""
    out = groups.final(states)
    for member in groups.gathered(states):
        np.copyto(out, member, where=HAS_VALUE[member])
    return out


def merged(
    file: str, sources: Sequence[tuple[RandomAccess, SealedFile]], most: int
) -> tuple[memoryview, SealedFile]:
    """A coarser level: neighbouring buckets of several rollup files, in order, combined.

    Only some statistics of the sources are in memory at a time. Raises Unreadable where a source is
    damaged.
    """
    opened = [(entry, access, read_footer(access, entry)) for access, entry in sources]
    out = _Columns()
    for chunks in _alike(opened):
        groups = _groups(chunks, most)
        found = _joined(chunks, ["state", "rank", "attempt"])
        states = np.minimum(found["state"], WORST_STATE).astype(np.uint8)
        steps = np.concatenate([chunk.steps for chunk in chunks])
        grid = Grid(steps, chunks[0].ids, groups.sizes)
        rank, attempt = int(found["rank"].flat[0]), int(found["attempt"].flat[0])
        out.add_keys(grid, _last_valued(states, groups), rank, attempt)
    names = list(opened[0][2].columns)
    stats = [name.removesuffix("_last") for name in names if name.endswith("_last")]
    together = max(1, _CELLS_AT_ONCE // max(1, sum(entry.rows for entry, _, _ in opened)))
    for at in range(0, len(stats), together):
        for chunks in _alike(opened):
            _merge(chunks, stats[at : at + together], _groups(chunks, most), out)
    return out.encoded(file)


def _merge(
    chunks: Sequence[GridChunk], stats: Sequence[str], groups: Groups, out: _Columns
) -> None:
    parts = {stat: ("last",) if stat in LAST_ONLY else _PARTS for stat in stats}
    found = _joined(chunks, [f"{stat}_{part}" for stat in stats for part in parts[stat]])
    for stat in stats:
        last = f"{stat}_last"
        nulls = [np.ma.getmaskarray(chunk.values(last)[0]) for chunk in chunks]
        values = {part: found.get(f"{stat}_{part}", found[last]) for part in _PARTS}
        out.add(stat, _combined(BucketParts(**values, ended=~np.concatenate(nulls)), groups))


def _alike(
    opened: Sequence[tuple[SealedFile, RandomAccess, Footer]],
) -> list[list[GridChunk]]:
    """The grids of several files by their subjects, none of their columns read yet."""
    alike: dict[bytes, list[GridChunk]] = {}
    for entry, access, footer in opened:
        for chunk in SealedTable(entry, access, footer, directly).chunks():
            alike.setdefault(chunk.ids.tobytes(), []).append(chunk)
    return list(alike.values())


def _groups(chunks: Sequence[GridChunk], most: int) -> Groups:
    return Groups.of(np.concatenate([sizes_of(chunk.grid) for chunk in chunks]), most)


def _joined(chunks: Sequence[GridChunk], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Columns of several grids, one below the other."""
    found = {}
    for name, *tables in zip(names, *(chunk.values(*names) for chunk in chunks), strict=True):
        # A column of one number comes without its type.
        whole = np.int64 if name.endswith("_step") else np.uint64
        plain = [np.ma.getdata(table) for table in tables]
        typed = [table if table.dtype.kind == "f" else table.astype(whole) for table in plain]
        found[name] = np.concatenate(typed)
    return found
