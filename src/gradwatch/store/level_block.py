"""A level seen as rows: extremes and last values at the very steps they were measured on."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat, State
from gradwatch.store.block import WORST_STATE
from gradwatch.store.column_file import ColumnBlock
from gradwatch.store.columns import STATE, Part
from gradwatch.store.levels import LAST_ONLY, LEVELS, VALUED


@dataclass(frozen=True)
class LevelBlock:
    """Some buckets of a level, standing in for rows that are no longer kept in full.

    Every value was measured on the step it is given for; the steps between are not sampled.
    """

    base: ColumnBlock
    buckets: NDArray[np.intp]

    def near(self, first: int, last: int) -> "LevelBlock | None":
        """Only the buckets that have steps around a stretch; None where there are none."""
        lowest, highest = self.base.edges
        kept = self.buckets[(lowest[self.buckets] <= last) & (highest[self.buckets] >= first)]
        if not len(kept):
            return None
        return self if len(kept) == len(self.buckets) else LevelBlock(self.base, kept)

    @property
    def family(self) -> Family:
        return self.base.family

    @property
    def ids(self) -> NDArray[np.uint32]:
        return self.base.ids

    @property
    def stats(self) -> frozenset[Stat]:
        return self.base.stats

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return self.base.steps[self._rows]

    @cached_property
    def seqs(self) -> NDArray[np.uint64]:
        return self.base.seqs[self._rows]

    def states(self, stat: Stat) -> NDArray[np.uint8] | None:
        last, valued = self._part(STATE, Part.VALUE), self._part(VALUED, Part.VALUE)
        places = self._places(stat)
        if last is None or valued is None or places is None:
            return None
        out = np.full((len(self._rows), len(self.ids)), State.NOT_SAMPLED, np.uint8)
        out[self._ends] = np.minimum(last, WORST_STATE)
        columns = np.arange(len(self.ids))[None, :]
        for rows, there, _ in places:
            cells = rows[there], np.broadcast_to(columns, rows.shape)[there]
            out[cells] = np.minimum(valued[there], WORST_STATE)
        return out

    def column(self, stat: Stat) -> NDArray[Any] | None:
        last = self._part(str(stat), Part.LAST)
        places = self._places(stat)
        if last is None or places is None:
            return None
        real = last.dtype.kind == "f"
        shape = (len(self._rows), len(self.ids))
        out: NDArray[Any] = np.full(shape, np.nan) if real else np.zeros(shape, np.uint64)
        out[self._ends] = last
        columns = np.arange(len(self.ids))[None, :]
        for rows, there, values in places:
            out[rows[there], np.broadcast_to(columns, rows.shape)[there]] = values[there]
        return out

    def _places(
        self, stat: Stat
    ) -> list[tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[Any]]] | None:
        """Rows of each bucket's lowest and highest value, where there is one, and that value."""
        if str(stat) in LAST_ONLY:
            return []
        count = self._part(str(stat), Part.COUNT)
        found = []
        for values_part, at_part in ((Part.LOW, Part.LOW_AT), (Part.HIGH, Part.HIGH_AT)):
            values, at = self._part(str(stat), values_part), self._part(str(stat), at_part)
            if count is None or values is None or at is None:
                return None
            inside = at < self._sizes[:, None]
            rows = self._starts[:, None] + np.where(inside, at, 0).astype(np.intp)
            found.append((rows, (count > 0) & inside, values))
        return found

    def _part(self, name: str, part: Part) -> NDArray[Any] | None:
        found = self.base.part(name, part)
        return None if found is None else found[self.buckets]

    @property
    def _sizes(self) -> NDArray[np.int64]:
        return self.base.head.sizes[self.buckets].astype(np.int64)

    @property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._sizes) - 1

    @property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum(self._sizes) - self._sizes

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        """Which of the block's steps belong to the chosen buckets."""
        sizes = self.base.head.sizes.astype(np.int64)
        chosen = np.zeros(len(sizes), bool)
        chosen[self.buckets] = True
        return np.flatnonzero(np.repeat(chosen, sizes))


def standing_in(levels: list[ColumnBlock], covered: NDArray[np.uint64]) -> list[LevelBlock]:
    """The buckets that hold rows not kept more finely; `covered` lists the rows that are."""
    found = []
    known = np.sort(covered)
    for level in sorted({block.level for block in levels}):
        added = []
        for block in (block for block in levels if block.level == level):
            missing = ~is_in(block.seqs, known)
            if not missing.any():
                continue
            sizes = block.head.sizes.astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            made = LevelBlock(block, np.flatnonzero(np.logical_or.reduceat(missing, starts)))
            found.append(made)
            added.append(made.seqs)
        if added and level < max(LEVELS):
            known = np.sort(np.concatenate([known, *added]))
    return found


def is_in(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which values are among `ordered`, which is sorted."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: NDArray[np.bool_] = ordered[at] == values
    return found
