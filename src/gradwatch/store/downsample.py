"""Reading rollups: in place of rows that are gone, and to downsample a run without its rows."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.downsample import Downsampled
from gradwatch.stats import HAS_VALUE, Family, Stat, State
from gradwatch.store.chunks import STATE, STATS, WORST_STATE, Chunk, GridChunk, ahead
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import Unreadable
from gradwatch.store.rollups import LAST_ONLY, SIZES, edges, sizes_of

# -- in place of rows ------------------------------------------------------------------------------


_Cells = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.uint8]]
"""Some cells of a table: their rows and columns, their values and states."""


@dataclass(frozen=True)
class RollupChunk:
    """Buckets of a rollup, standing in for rows that are no longer kept in full.

    Every value was measured on the step it is given for; the steps between are not sampled.
    """

    base: GridChunk
    kept: NDArray[np.bool_]
    """Which of its buckets."""

    @classmethod
    def near(cls, base: GridChunk, first: int, last: int) -> "RollupChunk":
        """The buckets that have steps in or around a range."""
        lowest, highest = edges(base.grid)
        return cls(base, (lowest <= last) & (highest >= first))

    @property
    def family(self) -> Family:
        """Gradients, weights, … : what the rows are rows of."""
        return self.base.family

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each column, by the id its writer gave it."""
        return self.base.ids

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """The statistics the rollup has buckets of."""
        names = self.base.table.footer.names
        return frozenset(stat for name, stat in STATS.items() if f"{name}_last" in names)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return sizes_of(self.base.grid)[self.kept]

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step the buckets cover, including those without a value of their own."""
        return self.base.steps[np.repeat(self.kept, sizes_of(self.base.grid))]

    def states(self, stat: Stat) -> NDArray[np.uint8]:
        """A bucket's extremes and its last row have a state; the steps between are not sampled."""
        out = np.full((len(self.steps), len(self.ids)), State.NOT_SAMPLED, np.uint8)
        for rows, subjects, _, states in self._cells(stat):
            out[rows, subjects] = states
        return out

    def column(self, stat: Stat) -> NDArray[Any]:
        """A bucket's lowest, highest and last value, each on the step it was measured on."""
        shape, real = (len(self.steps), len(self.ids)), stat.dtype[1] == "f"
        out: NDArray[Any] = np.full(shape, np.nan) if real else np.zeros(shape, np.uint64)
        for rows, subjects, values, _ in self._cells(stat):
            out[rows, subjects] = values
        return out

    def _cells(self, stat: Stat) -> Iterator[_Cells]:
        """The last row of each bucket, then where its lowest and its highest value were."""
        last, states = self._values(f"{stat}_last", STATE)
        states = np.minimum(states, WORST_STATE).astype(np.uint8)
        ends = np.cumsum(self._sizes)
        # Without a number in the last row, its state is known only if no other row had one.
        known = ~np.ma.getmaskarray(last) | ~HAS_VALUE[states]
        buckets, subjects = np.nonzero(known)
        yield ends[buckets] - 1, subjects, np.ma.getdata(last)[known], states[known]
        order = np.argsort(self.steps, kind="stable")
        for part in () if stat in LAST_ONLY else ("min", "max"):
            values, steps = self._values(f"{stat}_{part}", f"{stat}_{part}_step")
            place = np.searchsorted(self.steps, np.ma.getdata(steps), sorter=order)
            rows = order[np.minimum(place, len(order) - 1)]
            # A forged step beyond its bucket would write into another one.
            own = (rows < ends[:, None]) & (rows >= (ends - self._sizes)[:, None])
            own &= (self.steps[rows] == np.ma.getdata(steps)) & ~np.ma.getmaskarray(values)
            yield rows[own], np.nonzero(own)[1], np.ma.getdata(values)[own], states[own]

    def _values(self, *names: str) -> list[NDArray[Any]]:
        return [values[self.kept] for values in self.base.values(*names)]


# -- downsampling ----------------------------------------------------------------------------------

SHOWN = ("min", "max", "last")
_MOST_CUTS = 64
"""Buckets of a grid that may reach over the ends of a range; two, unless steps were repeated."""


class Buckets(NamedTuple):
    """Rows or buckets of some subjects: [row or bucket, subject], NaN where there is no number."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ids: NDArray[np.uint32]
    low: NDArray[np.floating]
    high: NDArray[np.floating]
    final: NDArray[np.floating]


def level_for(rows: int, points: int) -> int:
    """The coarsest level that still has five buckets for four points; −1 where rows must do."""
    fitting = [level for level, size in enumerate(SIZES) if size * 5 * points <= 4 * rows]
    return max(fitting, default=-1)


@dataclass(frozen=True)
class LevelReader:
    """Finds one statistic of a range of steps in the rollups of one attempt, and its rows.

    A file of the first level stands for the rows of the journal of its number; one of a coarser
    level for those after the previous file of its level, up to its own number.
    """

    stat: Stat
    files: Sequence[Sequence[SealedFile]]
    """Those of each level, in order of their numbers."""
    read: Callable[[SealedFile], Sequence[GridChunk]]
    rows: Callable[[int, int | None, int, int], Iterable[Chunk]]
    """Chunks of the journals after one number up to another (None: all), near a range of steps."""

    def buckets(
        self,
        level: int,
        first: int,
        last: int,
        journals: tuple[int, int | None] = (0, None),
        ids: bytes | None = None,
    ) -> Iterator[Buckets]:
        """Buckets of a level; where it has none yet, or only a part of one lies in the range, those
        of the finer levels, at last single rows."""
        after, upto = journals
        if after == upto:
            return
        if level < 0:
            for chunk in self.rows(after, upto, first, last):
                inside = (chunk.steps >= first) & (chunk.steps <= last)
                own = self.stat in chunk.stats and ids in (None, chunk.ids.tobytes())
                if own and inside.any():
                    yield _rows(self.stat, chunk, inside)
            return
        begin, files = after, self.files[level]
        found: list[tuple[SealedFile, tuple[int, int]]] = []
        # A long run has thousands of files of a level: those between two numbers are searched for.
        number = attrgetter("number")
        end = len(files) if upto is None else bisect_right(files, upto, key=number)
        for file in files[bisect_right(files, after, key=number) : end]:
            if file.last_step >= first and file.first_step <= last:
                found.append((file, (begin, file.number)))
            begin = file.number
        opened = ahead(self._read, [file for file, _ in found])
        for (_, between), grids in zip(found, opened, strict=True):
            for grid in grids:
                if ids in (None, grid.ids.tobytes()):
                    yield from self._of_grid(level, grid, first, last, between)
        yield from self.buckets(level - 1, first, last, (begin, upto), ids)

    def _read(self, file: SealedFile) -> Sequence[GridChunk]:
        """The grids of a file; their columns are fetched here, which may be in another thread."""
        grids = self.read(file)
        for grid in grids[:1]:
            grid.table.fetch(*(f"{self.stat}_{part}" for part in SHOWN))
        return grids

    def _of_grid(
        self, level: int, chunk: GridChunk, first: int, last: int, journals: tuple[int, int]
    ) -> Iterator[Buckets]:
        lowest, highest = edges(chunk.grid)
        inside = (lowest >= first) & (highest <= last)
        if inside.any():
            low, high, final = (
                np.ma.filled(values[inside].astype(np.float64), np.nan)
                for values in chunk.values(*(f"{self.stat}_{part}" for part in SHOWN))
            )
            final = np.where(np.isfinite(final), final, np.nan)
            sizes = sizes_of(chunk.grid)[inside]
            yield Buckets(lowest[inside], highest[inside], sizes, chunk.ids, low, high, final)
        cuts = np.flatnonzero(~inside & (lowest <= last) & (highest >= first)).tolist()
        if len(cuts) > _MOST_CUTS:
            raise Unreadable("its steps are in no order")
        for cut in cuts:
            begin, end = max(first, int(lowest[cut])), min(last, int(highest[cut]))
            yield from self.buckets(level - 1, begin, end, journals, chunk.ids.tobytes())


def _rows(stat: Stat, chunk: Chunk, inside: NDArray[np.bool_]) -> Buckets:
    """Some rows of a chunk, each a bucket of its own."""
    values = np.where(
        HAS_VALUE[chunk.states(stat)[inside]], chunk.column(stat)[inside].astype(float), np.nan
    )
    values = np.where(np.isfinite(values), values, np.nan)
    steps = chunk.steps[inside]
    return Buckets(steps, steps, np.ones(len(steps), np.int64), chunk.ids, values, values, values)


def joined_buckets(
    parts: Sequence[Buckets], columns: Mapping[int, int], width: int, points: int
) -> Downsampled:
    """At most `points` buckets of about equally many rows each; `columns` places the subjects."""
    firsts = np.concatenate([part.first for part in parts])
    order = np.argsort(firsts, kind="stable")
    lasts = np.concatenate([part.last for part in parts])[order]
    ends = np.cumsum(np.concatenate([part.sizes for part in parts])[order])
    # By rows, not by steps: where steps were skipped, equal spans would hold few rows or none.
    point = np.minimum((ends - 1) * points // max(int(ends[-1]), 1), points - 1)
    starts = np.flatnonzero(np.diff(point, prepend=-1))
    low, high, final = (
        _spread([(getattr(part, field), part.ids) for part in parts], columns, width)[order]
        for field in ("low", "high", "final")
    )
    return Downsampled(
        firsts[order][starts],
        np.maximum.reduceat(lasts, starts),
        np.fmin.reduceat(low, starts, axis=0),
        np.fmax.reduceat(high, starts, axis=0),
        _last(final, starts),
    )


def _last(values: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Last number of each point that is one."""
    rows = np.where(np.isnan(values), -1, np.arange(len(values), dtype=np.int32)[:, None])
    at = np.maximum.reduceat(rows, starts, axis=0)
    return np.where(at >= 0, np.take_along_axis(values, np.maximum(at, 0), axis=0), np.nan)


def _spread(
    tables: Sequence[tuple[NDArray[np.floating], NDArray[np.uint32]]],
    columns: Mapping[int, int],
    width: int,
) -> NDArray[np.float64]:
    """The tables one below the other, each subject in its own column."""
    # One column more: subjects that came after the run was opened have the column −1.
    out = np.full((sum(len(table) for table, _ in tables), width + 1), np.nan)
    at = 0
    for table, ids in tables:
        out[at : at + len(table), [columns[number] for number in ids.tolist()]] = table
        at += len(table)
    return out[:, :width]
