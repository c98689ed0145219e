"""Chunks: rows of one family over some steps and the same subjects, wherever they are stored.

Reading runs in one direction: a folder's files give chunks, chunks are laid into the table of a
series. A chunk knows its steps and subjects at once and reads its numbers only when asked.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat, State
from gradwatch.store.manifest import SealedFile
from gradwatch.store.parquet import (
    Column,
    Footer,
    Grid,
    Isolation,
    Lists,
    RandomAccess,
    Unreadable,
    read_columns,
)

WORST_STATE = max(int(state) for state in State)
STATE = "state"
STATS = {str(stat): stat for stat in Stat}
_THREADS = min(8, os.cpu_count() or 1)


class Chunk(Protocol):
    """[step, subject] rows of a journal, a sealed file or a rollup."""

    @property
    def family(self) -> Family:
        """Gradients, weights, … : what the rows are rows of."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """The training step of each row."""

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each column, by the id its writer gave it."""

    @property
    def stats(self) -> frozenset[Stat]:
        """The statistics these rows have a column for."""

    def states(self, stat: Stat) -> NDArray[np.uint8]:
        """[step, subject]; raises Unreadable where the file does not hold them."""

    def column(self, stat: Stat) -> NDArray[Any]:
        """[step, subject(, width)]; raises Unreadable where the file does not hold it."""


def held_bytes(column: Column) -> int:
    """Memory that a column of numbers takes."""
    if isinstance(column, Lists):
        return column.offsets.nbytes + column.values.nbytes
    taken = column.nbytes if isinstance(column, np.ndarray) and any(column.strides) else 64
    return 2 * taken if isinstance(column, np.ma.MaskedArray) else taken


Columns = dict[str, Column]
HeldColumns = Callable[[SealedFile, Sequence[str], Callable[[Sequence[str]], Columns]], Columns]
"""Columns of a file, which are read unless they were lately."""


class SealedTable:
    """A sealed file: its footer is known, its columns are read when asked for, each once."""

    def __init__(
        self,
        entry: SealedFile,
        file: RandomAccess,
        footer: Footer,
        call: Isolation,
        held: HeldColumns = lambda entry, names, read: read(names),
    ) -> None:
        self.entry, self.footer = entry, footer
        self._file, self._call, self._held = file, call, held
        self._columns: dict[str, Column] = {}

    def fetch(self, *names: str) -> list[Column]:
        """Several columns at once; Unreadable where one is damaged or there is none."""
        unknown = [name for name in names if name not in self._columns]
        try:
            if unknown:
                self._columns |= self._held(self.entry, unknown, self._read)
        except KeyError as error:
            raise Unreadable(f"it has no column {error}") from None
        return [self._columns[name] for name in names]

    def _read(self, names: Sequence[str]) -> dict[str, Column]:
        # In a rollup a null says that there was no number; in rows the state does.
        masked = self.entry.kind == "rollups"
        return read_columns(self._file, self.footer, names, self._call, masked=masked)

    def numbers(self, *names: str) -> list[NDArray[Any]]:
        """Several columns of single numbers."""
        columns = self.fetch(*names)
        for name, column in zip(names, columns, strict=True):
            if not isinstance(column, np.ndarray) or column.dtype.kind not in "iuf":
                raise Unreadable(f"its column {name} holds no numbers")
        return [column for column in columns if isinstance(column, np.ndarray)]

    def chunks(self) -> "list[GridChunk]":
        """The grids of the file, in the order in which later ones count."""
        family = Family(self.entry.group.partition("-")[0])
        out, at = [], 0
        for grid in self.footer.grids:
            out.append(GridChunk(self, family, grid, at))
            at += grid.shape[0] * grid.shape[1]
        return out


@dataclass(frozen=True)
class GridChunk:
    """One grid of a sealed file: rows, or the buckets of a rollup."""

    table: SealedTable
    family: Family
    grid: Grid
    begin: int
    """Where its rows begin in the file."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """The training step of each row; of a rollup of all rows in its buckets."""
        return self.grid.steps

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each column, by the id its writer gave it."""
        return self.grid.ids

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """The statistics the file has a column for; names of a newer version are left out."""
        return frozenset(STATS[name] for name in self.table.footer.names if name in STATS)

    def values(self, *names: str) -> list[NDArray[Any]]:
        """Columns of the file as tables [step or bucket, subject]."""
        shape = self.grid.shape
        part = slice(self.begin, self.begin + shape[0] * shape[1])
        return [column[part].reshape(shape) for column in self.table.numbers(*names)]

    def states(self, stat: Stat) -> NDArray[np.uint8]:
        """A `State` byte for every [step, subject]."""
        (found,) = self.values(STATE)
        states: NDArray[np.uint8] = np.minimum(found, WORST_STATE).astype(np.uint8)
        return states

    def column(self, stat: Stat) -> NDArray[Any]:
        """The numbers of a statistic; fetched with the states, which everybody wants too."""
        return self.values(str(stat), STATE)[0]

    def vectors(self, stat: Stat) -> NDArray[np.float32]:
        """[step, subject, width] of a column of lists; NaN where there is none."""
        (lists,) = self.table.fetch(str(stat))
        if not isinstance(lists, Lists) or lists.values.dtype != np.float32:
            raise Unreadable(f"its column {stat} holds no lists")
        shape = self.grid.shape
        offsets = lists.offsets[self.begin : self.begin + shape[0] * shape[1] + 1]
        there = np.diff(offsets) > 0
        out = np.full((len(there), stat.width), np.nan, np.float32)
        try:
            out[there] = lists.values[offsets[0] : offsets[-1]].reshape(-1, stat.width)
        except ValueError:
            raise Unreadable(f"its column {stat} is of another width") from None
        return out.reshape(*shape, stat.width)


class Vanished(Exception):
    """A file that was listed is gone: merged into another or taken by retention. Look again.

    It differs from damage in that the manifest no longer names it.
    """


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that was recorded and cannot be read: what is known about where it was."""

    text: str
    family: Family | None = None
    first_step: int | None = None
    last_step: int | None = None


Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """What `work` gives for each item, in order; other threads do it a few items ahead.

    Reading a file and decoding it leave the interpreter to others for most of the time.
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


Whole = TypeVar("Whole", np.int64, np.uint64)


def distinct(values: NDArray[Whole]) -> NDArray[Whole]:
    """Sorted, each once. Steps mostly follow each other: then a table of marks is quickest."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low < 4 * len(values):
        marks = np.zeros(high - low + 1, bool)
        marks[(values - values.dtype.type(low)).astype(np.intp)] = True
        return np.flatnonzero(marks).astype(values.dtype) + values.dtype.type(low)
    return np.unique(values)


def narrowed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each value as 32 bits keep it, where it is in their normal range; else unchanged.

    The rule is per value, so that a number does not change when its journal is sealed.
    """
    size = np.abs(values)
    # Below about 1.2e-38 a float32 is subnormal and loses digits; above 3.4e38 it is infinite.
    fits = ((size >= 1e-37) & (size <= 3e38)) | (size == 0) | ~np.isfinite(values)
    with np.errstate(over="ignore", under="ignore"):
        short = values.astype(np.float32).astype(np.float64)
    return short if fits.all() else np.where(fits, short, values)


def halved(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to the upper 16 bits, ties to even; NaN stays NaN. How sketches are stored."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Adding 0x7FFF, and one more where the kept half is odd, rounds to the nearest, ties to even.
    # In place: these arrays are megabytes.
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    # A NaN whose bits are all in the lower half would become infinite.
    rounded[np.isnan(values)] = 0x7FC00000
    return rounded.view(np.float32)


def lay(
    target: NDArray[Any],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    wanted: NDArray[np.bool_],
    values: NDArray[Any],
) -> None:
    """target[rows, columns] = values, for the wanted rows; by slices where both are contiguous,
    which is much faster."""
    if not wanted.all():
        rows, values = rows[wanted], values[wanted]
    if not len(rows) or not len(columns):
        return
    if _contiguous(rows) and _contiguous(columns):
        target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = values
    elif _contiguous(columns):
        target[rows, columns[0] : columns[-1] + 1] = values
    else:
        target[rows[:, None], columns[None, :]] = values


def _contiguous(index: NDArray[np.int64]) -> bool:
    return bool(index[-1] - index[0] == len(index) - 1 and (np.diff(index) == 1).all())
