"""Thinning a long run from its stored levels, so that not every row need be read."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.window import Bands
from gradwatch.stats import HAS_VALUE, Stat
from gradwatch.store.block import Block
from gradwatch.store.column_file import ColumnBlock, Key
from gradwatch.store.columns import Part
from gradwatch.store.level_block import LevelBlock, is_in
from gradwatch.store.levels import FACTOR, LEVELS


class Piece(NamedTuple):
    """Rows or buckets of some subjects: [row or bucket, subject]; numbers as wide as stored."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ids: NDArray[np.uint32]
    low: NDArray[np.floating]
    high: NDArray[np.floating]
    final: NDArray[np.floating]
    seqs: NDArray[np.uint64]

    def within(self, first: int, last: int) -> "Piece":
        """The buckets that lie wholly in a stretch."""
        return self.only((self.first >= first) & (self.last <= last))

    def only(self, chosen: NDArray[np.bool_]) -> "Piece":
        """Some of the buckets."""
        if chosen.all():
            return self
        rows = np.repeat(chosen, self.sizes)
        low, high, final = (part[chosen] for part in (self.low, self.high, self.final))
        return Piece(
            self.first[chosen],
            self.last[chosen],
            self.sizes[chosen],
            self.ids,
            low,
            high,
            final,
            self.seqs[rows],
        )


class Decoded:
    """Buckets of levels that were read lately: who pans over a long run reads each only once."""

    def __init__(self, limit: int = 96 << 20) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[str, Key, Stat], tuple[Piece, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def piece(self, stat: Stat, block: ColumnBlock) -> Piece | None:
        """All buckets of a block, or None where it is damaged."""
        key = block.file.path.name, block.key, stat
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        made = _buckets(stat, block)
        if made is not None:
            self._keep(key, made)
        return made

    def _keep(self, key: tuple[str, Key, Stat], made: Piece) -> None:
        size = sum(_weight(part) for part in made)
        with self._lock:
            if key not in self._held:
                self._held[key] = made, size
                self._size += size
            while self._size > self._limit:
                _, (_, gone) = self._held.popitem(last=False)
                self._size -= gone


def level_for(rows: int, points: int) -> int:
    """The coarsest level that still has five buckets for four points; 0 where rows must do."""
    return max((level for level in LEVELS if FACTOR**level * 5 * points <= 4 * rows), default=0)


def pieces(
    stat: Stat,
    blocks: Sequence[Block],
    levels: Sequence[ColumnBlock],
    decoded: Decoded,
    first: int,
    last: int,
    level: int,
) -> list[Piece] | None:
    """Buckets of `level` that lie within the stretch; where there is none, what is kept instead:
    coarser buckets of old steps, single rows of new ones. All blocks are of the stat's family."""
    found: list[Piece] = []
    covered: list[NDArray[np.uint64]] = []
    for block in levels:
        if block.level != level:
            continue
        whole = decoded.piece(stat, block)
        if whole is None:
            return None  # damaged: the caller thins what can be read instead
        piece = whole.within(first, last)
        found.append(piece)
        covered.append(piece.seqs)
    known = np.sort(np.concatenate([*covered, np.empty(0, np.uint64)]))
    for other in blocks:
        if isinstance(other, LevelBlock):
            taken = other.base.level == level
            found += _stand_ins(stat, other, decoded, first, last, known, taken)
        else:
            found += _rows(stat, other, first, last, known)
    return found


def banded(found: list[Piece], columns: dict[int, int], width: int, points: int) -> Bands | None:
    """At most `points` bands of about equally many rows each."""
    order = np.argsort(np.concatenate([piece.first for piece in found]), kind="stable")
    firsts = np.concatenate([piece.first for piece in found])[order]
    lasts = np.concatenate([piece.last for piece in found])[order]
    sizes = np.concatenate([piece.sizes for piece in found])[order]
    ends = np.cumsum(sizes)
    band = np.minimum((ends - 1) * points // max(int(ends[-1]), 1), points - 1)
    starts = np.flatnonzero(np.diff(band, prepend=-1))
    number = _one_number(found, columns, width)
    if number is not None:
        same = np.full((len(starts), width), number)
        return Bands(firsts[starts], np.maximum.reduceat(lasts, starts), same, same, same)
    low = _ordered(_spread([piece.low for piece in found], found, columns, width), order)
    high = _ordered(_spread([piece.high for piece in found], found, columns, width), order)
    final = _ordered(_spread([piece.final for piece in found], found, columns, width), order)
    return Bands(
        firsts[starts],
        np.maximum.reduceat(lasts, starts),
        _lowest(low, starts),
        -_lowest(-high, starts),
        _last(final, starts),
    )


def _ordered(values: NDArray[np.floating], order: NDArray[np.intp]) -> NDArray[np.floating]:
    return values[order] if (order[1:] < order[:-1]).any() else values


def _lowest(values: NDArray[np.floating], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Lowest number of each band; `minimum` is far quicker than `fmin` and the same without NaN."""
    if np.isnan(values).any():
        found = np.fmin.reduceat(values, starts, axis=0)
    else:
        found = np.minimum.reduceat(values, starts, axis=0)
    return np.asarray(found, np.float64)


def _last(values: NDArray[np.floating], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Last number of each band that is one."""
    gaps = np.isnan(values)
    if not gaps.any():
        ends: NDArray[np.float64] = values[np.append(starts[1:], len(values)) - 1].astype(float)
        return ends
    rows = np.where(gaps, np.int32(-1), np.arange(len(values), dtype=np.int32)[:, None])
    at = np.maximum.reduceat(rows, starts, axis=0)
    picked = np.take_along_axis(values, np.maximum(at, 0), axis=0)
    return np.where(at >= 0, picked, np.nan).astype(np.float64)


def _one_number(found: list[Piece], columns: dict[int, int], width: int) -> float | None:
    """The number that stands in every cell, as in counts of NaN mostly; None where it differs."""
    tables = [table for piece in found for table in (piece.low, piece.high, piece.final)]
    if len(columns) < width or any(len(piece.ids) < width for piece in found):
        return None
    if any(table.strides != (0, 0) or not table.size for table in tables):
        return None
    numbers = {float(table[0, 0]) for table in tables}
    return numbers.pop() if len(numbers) == 1 else None


def _buckets(stat: Stat, block: ColumnBlock) -> Piece | None:
    parts = [block.part(str(stat), part) for part in (Part.LOW, Part.HIGH, Part.LAST, Part.COUNT)]
    low, high, final, count = parts
    if low is None or high is None or final is None or count is None:
        return None
    there = count > 0
    ending = _real(final, there)
    return Piece(
        *block.edges,
        block.head.sizes.astype(np.int64),
        block.ids,
        _real(low, there),
        _real(high, there),
        _slim(np.where(np.isfinite(ending), ending, np.nan)),
        block.seqs,
    )


def _real(values: NDArray[np.generic], there: NDArray[np.bool_]) -> NDArray[np.floating]:
    """NaN where a bucket has no value; 32 bits stay 32 bits."""
    kind = values.dtype if values.dtype == np.float32 else np.dtype(np.float64)
    return _slim(np.where(there, values.astype(kind), kind.type(np.nan)))


def _slim(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """A table of one number (mostly: no NaN anywhere) takes the place of one."""
    if values.size and (values == values.flat[0]).all():
        return np.broadcast_to(values.flat[0], values.shape)
    return values


def _weight(part: NDArray[np.generic]) -> int:
    """Bytes an array really takes; steps and sequence numbers are the block's own."""
    return part.nbytes if part.ndim == 2 and part.strides != (0, 0) else 64


def _stand_ins(
    stat: Stat,
    block: LevelBlock,
    decoded: Decoded,
    first: int,
    last: int,
    known: NDArray[np.uint64],
    taken: bool,
) -> Iterator[Piece]:
    """Whole buckets as they are, unless they are `taken` already; of one that reaches out of the
    stretch only its rows in it."""
    base = block.base
    lowest, highest = base.edges
    wanted = np.zeros(len(lowest), bool)
    wanted[block.buckets] = True
    wanted &= (lowest <= last) & (highest >= first)
    inside = (lowest >= first) & (highest <= last)
    if taken:
        wanted &= ~inside
    if not wanted.any():
        return
    starts = np.cumsum(base.head.sizes.astype(np.int64)) - base.head.sizes
    wanted &= np.logical_or.reduceat(~is_in(base.seqs, known), starts)
    whole = decoded.piece(stat, base) if (wanted & inside).any() else None
    if whole is not None:
        yield whole.only(wanted & inside)
    cut = np.flatnonzero(wanted & ~inside)
    if len(cut):
        yield from _rows(stat, LevelBlock(base, cut), first, last, known)


def _rows(
    stat: Stat, block: Block, first: int, last: int, known: NDArray[np.uint64]
) -> Iterator[Piece]:
    steps = block.steps
    inside = (steps >= first) & (steps <= last)
    if not inside.any():
        return
    inside &= ~is_in(block.seqs, known)
    if not inside.any() or stat not in block.stats:  # to ask for those may mean a walk
        return
    column, states = block.column(stat), block.states(stat)
    if column is None or states is None:
        return
    values = np.where(HAS_VALUE[states[inside]], column[inside].astype(np.float64), np.nan)
    values = _slim(np.where(np.isfinite(values), values, np.nan))
    steps = steps[inside]
    ones = np.ones(len(steps), np.int64)
    yield Piece(steps, steps, ones, block.ids, values, values, values, block.seqs[inside])


def _spread(
    tables: list[NDArray[np.floating]], found: list[Piece], columns: dict[int, int], width: int
) -> NDArray[np.floating]:
    kind = np.result_type(*(table.dtype for table in tables))
    out = np.full((sum(len(table) for table in tables), width), np.nan, kind)
    places: dict[bytes, NDArray[np.intp] | slice] = {}
    at = 0
    for table, piece in zip(tables, found, strict=True):
        key = piece.ids.tobytes()
        if key not in places:
            own = np.array([columns[number] for number in piece.ids.tolist()], np.intp)
            inline = bool((np.diff(own) == 1).all()) and len(own) > 0
            places[key] = slice(int(own[0]), int(own[-1]) + 1) if inline else own
        out[at : at + len(table), places[key]] = table
        at += len(table)
    return out
