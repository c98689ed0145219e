"""Rollups: ten rows become one bucket that still knows their extremes, ten of those one more.

A row is a bucket of one. Neighbouring buckets of the same subjects are combined while their rows
fit, whether they are rows of a journal or buckets of earlier rollups: one function for all levels.
Files are made from files alone, nothing is kept in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE
from gradwatch.store.chunks import WORST_STATE, narrowed
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import (
    Footer,
    Grid,
    RandomAccess,
    Unreadable,
    encoded,
    read_columns,
    read_footer,
)

SIZES = (10, 100, 1000)
"""Rows in a bucket of each level."""
LAST_ONLY = frozenset({"weight_hash"})
"""Statistics of which only the last value means anything."""
_PARTS = ("min", "max", "last", "sum", "count", "min_step", "max_step")


@dataclass(frozen=True)
class Parts:
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
        """Buckets of so many rows, combined while there are at most `most` in one."""
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
        """[bucket, member, subject]; with `fill` in place of members there are not."""
        out: NDArray[Any] = values[self.members]
        if fill is not None:
            out[np.arange(out.shape[1]) >= self.lengths[:, None]] = fill
        return out

    def final(self, values: NDArray[Any]) -> NDArray[Any]:
        """That of the last member of each."""
        out: NDArray[Any] = values[self.members[:, -1]]
        return out


def _combined(parts: Parts, groups: Groups) -> Parts:
    """Each group as one bucket."""
    counted = parts.count > 0
    terms = parts.sum if counted.all() else np.where(counted, parts.sum, 0.0)
    lowest = _extreme(np.minimum, parts.min, parts.min_step, counted, groups)
    highest = _extreme(np.maximum, parts.max, parts.max_step, counted, groups)
    with np.errstate(over="ignore"):
        total = groups.gathered(terms, 0).sum(axis=1)
    count = groups.gathered(parts.count, 0).sum(axis=1, dtype=np.uint16)
    last, ended = groups.final(parts.last), groups.final(parts.ended)
    return Parts(lowest[0], highest[0], last, total, count, lowest[1], highest[1], ended)


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
    best = better.reduce(table, axis=1)
    place = np.zeros(best.shape, np.intp)
    for member in reversed(range(table.shape[1])):  # the first one stays
        found = table[:, member] == best
        np.copyto(place, member, where=found if taken is None else found & taken[:, member])
    place += (np.arange(len(best)) * table.shape[1])[:, None]
    at = groups.members.take(place)
    if steps.shape[1] == 1:
        return best, steps[:, 0].take(at)
    return best, steps.ravel().take(at * steps.shape[1] + np.arange(steps.shape[1]))


# -- files -----------------------------------------------------------------------------------------


class _Table:
    """The columns of a rollup file while they are collected, grid after grid."""

    def __init__(self) -> None:
        self.columns: dict[str, list[NDArray[Any]]] = {}
        self.valid: dict[str, list[NDArray[np.bool_]]] = {}
        self.grids: list[Grid] = []

    def add_keys(self, grid: Grid, states: NDArray[np.uint8], rank: int, attempt: int) -> None:
        """What every bucket of a grid has beside its statistics."""
        self.grids.append(grid)
        buckets, width = grid.shape
        assert grid.sizes is not None
        starts = np.cumsum(grid.sizes) - grid.sizes
        first = np.minimum.reduceat(grid.steps, starts) if buckets else grid.steps
        last = np.maximum.reduceat(grid.steps, starts) if buckets else grid.steps
        self._add("first_step", np.repeat(first, width))
        self._add("last_step", np.repeat(last, width))
        self._add("rows", np.repeat(grid.sizes, width).astype(np.uint16))
        self._add("subject", np.tile(grid.ids, buckets))
        self._add("state", states)
        self._add("rank", np.full(buckets * width, rank, np.int32))
        self._add("attempt", np.full(buckets * width, attempt, np.int32))

    def add(self, stat: str, parts: Parts) -> None:
        """One statistic of the next grid."""
        self._add(f"{stat}_last", parts.last, parts.ended)
        if stat not in LAST_ONLY:
            some = parts.count > 0
            self._add(f"{stat}_count", parts.count)
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
    tables: Sequence[tuple[Grid, NDArray[np.void], NDArray[np.uint8]]],
    rank: int,
    attempt: int,
) -> tuple[memoryview, SealedFile]:
    """The first level: buckets of the rows [step, subject] of one journal and family."""
    out = _Table()
    for grid, rows, states in tables:
        groups = Groups.of(np.ones(len(grid.steps), np.int64), SIZES[0])
        valued = HAS_VALUE[states]
        out.add_keys(
            Grid(grid.steps, grid.ids, groups.sizes), _last_valued(states, groups), rank, attempt
        )
        for name in rows.dtype.names or ():
            if rows[name].ndim == 2:  # wider ones (sketches) have no extremes
                out.add(name, _combined(_single(rows[name], valued, grid.steps), groups))
    return out.encoded(file)


def _single(values: NDArray[Any], valued: NDArray[np.bool_], steps: NDArray[np.int64]) -> Parts:
    """Every row a bucket of its own."""
    values = np.ascontiguousarray(values)
    counted = valued & np.isfinite(values) if values.dtype.kind == "f" else valued
    terms, own = values.astype(np.float64, copy=False), steps[:, None]
    return Parts(values, values, values, terms, counted, own, own, valued)


def _last_valued(states: NDArray[np.uint8], groups: Groups) -> NDArray[np.uint8]:
    """The state of the last member with a number, else of the last one."""
    table = groups.gathered(states)
    out = table[:, -1].copy()
    for member in range(table.shape[1]):
        np.copyto(out, table[:, member], where=HAS_VALUE[table[:, member]])
    return out


class _Alike(NamedTuple):
    """Grids of the same subjects in several files, in order, and how they are combined."""

    places: list[tuple[int, int]]
    """The file of each grid, and the row in it where the grid begins."""
    grids: list[Grid]
    groups: Groups


def merged(
    file: str, sources: Sequence[tuple[RandomAccess, SealedFile]], most: int
) -> tuple[memoryview, SealedFile]:
    """A coarser level: neighbouring buckets of several rollup files, in order, combined.

    One statistic after the other is read and combined: memory is that of the result. Raises
    Unreadable where a source is damaged.
    """
    opened = [(access, read_footer(access, entry)) for access, entry in sources]
    alike = _alike([footer for _, footer in opened], most)
    out = _Table()
    facts = _read(opened, alike, ("state", "rank", "attempt"))
    for (_, grids, groups), ((states, _), (ranks, _), (attempts, _)) in zip(
        alike, facts, strict=True
    ):
        grid = Grid(np.concatenate([grid.steps for grid in grids]), grids[0].ids, groups.sizes)
        states = _last_valued(np.minimum(states, WORST_STATE).astype(np.uint8), groups)
        out.add_keys(grid, states, int(ranks.flat[0]), int(attempts.flat[0]))
    names = [place.name for place in opened[0][1].columns]
    for stat in [name.removesuffix("_last") for name in names if name.endswith("_last")]:
        parts = ["last"] if stat in LAST_ONLY else _PARTS
        read = _read(opened, alike, [f"{stat}_{part}" for part in parts])
        for (_, _, groups), columns in zip(alike, read, strict=True):
            found = dict(zip(parts, columns, strict=True))
            last, ended = found["last"]
            values = {part: found.get(part, (last, ended))[0] for part in _PARTS}
            out.add(stat, _combined(Parts(**values, ended=ended), groups))
    return out.encoded(file)


def _alike(footers: Sequence[Footer], most: int) -> list[_Alike]:
    places: dict[bytes, list[tuple[int, int]]] = {}
    grids: dict[bytes, list[Grid]] = {}
    for number, footer in enumerate(footers):
        begin = 0
        for grid in footer.grids:
            key = grid.ids.tobytes()
            places.setdefault(key, []).append((number, begin))
            grids.setdefault(key, []).append(grid)
            begin += grid.shape[0] * grid.shape[1]
    return [
        _Alike(
            places[key], same, Groups.of(np.concatenate([sizes_of(grid) for grid in same]), most)
        )
        for key, same in grids.items()
    ]


def _read(
    opened: Sequence[tuple[RandomAccess, Footer]], alike: Sequence[_Alike], names: Sequence[str]
) -> Iterator[list[tuple[NDArray[Any], NDArray[np.bool_]]]]:
    """For each kind of grid, columns as [bucket, subject] and where they are not null."""
    try:
        tables = [read_columns(*source, names, masked=True) for source in opened]
    except KeyError as error:
        raise Unreadable(f"it has no column {error}") from None
    for places, grids, _ in alike:
        found = []
        for name in names:
            cells: list[Any] = [
                np.ma.asarray(tables[number][name])[begin : begin + grid.shape[0] * grid.shape[1]]
                for (number, begin), grid in zip(places, grids, strict=True)
            ]
            shape = (-1, len(grids[0].ids))
            # A column of one number comes without its type.
            kind = np.int64 if name.endswith("_step") else np.uint64
            values = np.concatenate(
                [cell.data if cell.dtype.kind == "f" else cell.data.astype(kind) for cell in cells]
            )
            present = ~np.concatenate([np.ma.getmaskarray(cell) for cell in cells])
            found.append((values.reshape(shape), present.reshape(shape)))
        yield found


def sizes_of(grid: Grid) -> NDArray[np.int64]:
    """Rows in each bucket; a row of a file that is no rollup is one."""
    return np.ones(len(grid.steps), np.int64) if grid.sizes is None else grid.sizes
