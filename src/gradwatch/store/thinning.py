"""Thinning a long run from its stored levels, so that not every row need be read."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.window import Bands
from gradwatch.stats import Stat, State, entry
from gradwatch.store.block import Block
from gradwatch.store.column_file import ColumnBlock
from gradwatch.store.columns import Part
from gradwatch.store.level_block import is_in
from gradwatch.store.levels import FACTOR, LEVELS

_VALUED = np.zeros(256, bool)
_VALUED[[int(state) for state in State if state.has_value]] = True


class Piece(NamedTuple):
    """Rows or buckets of some subjects: [row or bucket, subject]."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ids: NDArray[np.uint32]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    final: NDArray[np.float64]
    seqs: NDArray[np.uint64]


def level_for(rows: int, points: int) -> int:
    """The coarsest level that still has two buckets for every point; 0 where rows must do."""
    return max((level for level in LEVELS if FACTOR**level * 2 * points <= rows), default=0)


def pieces(
    stat: Stat, blocks: list[Block], levels: list[ColumnBlock], first: int, last: int, level: int
) -> list[Piece] | None:
    """Buckets of `level` that lie within the stretch, and single rows where there is none."""
    found: list[Piece] = []
    covered: list[NDArray[np.uint64]] = []
    for block in levels:
        if block.level != level or block.family is not entry(stat).family:
            continue
        piece = _buckets(stat, block, first, last)
        if piece is None:
            return None  # damaged: the caller thins what can be read instead
        found.append(piece)
        covered.append(piece.seqs)
    known = np.sort(np.concatenate([*covered, np.empty(0, np.uint64)]))
    for fine in blocks:
        if fine.family is entry(stat).family and stat in fine.stats:
            found += _rows(stat, fine, first, last, known)
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
    low = _spread([p.low for p in found], found, columns, width)[order]
    high = _spread([p.high for p in found], found, columns, width)[order]
    final = _spread([p.final for p in found], found, columns, width)[order]
    stops = np.append(starts[1:], len(order)) - 1
    rows = np.where(np.isnan(final), -1, np.arange(len(order))[:, None])
    at = np.maximum.reduceat(rows, starts, axis=0)
    picked = np.take_along_axis(final, np.maximum(at, 0), axis=0)
    return Bands(
        firsts[starts],
        np.maximum.reduceat(lasts, starts)[: len(stops)],
        np.fmin.reduceat(low, starts, axis=0),
        np.fmax.reduceat(high, starts, axis=0),
        np.where(at >= 0, picked, np.nan),
    )


def _buckets(stat: Stat, block: ColumnBlock, first: int, last: int) -> Piece | None:
    sizes = block.head.sizes.astype(np.int64)
    ends = np.cumsum(sizes)
    begins = ends - sizes
    lowest = np.minimum.reduceat(block.steps, begins)
    highest = np.maximum.reduceat(block.steps, begins)
    inside = np.flatnonzero((lowest >= first) & (highest <= last))
    parts = [block.part(str(stat), part) for part in (Part.LOW, Part.HIGH, Part.LAST, Part.COUNT)]
    low, high, final, count = parts
    if low is None or high is None or final is None or count is None:
        return None
    there = count[inside] > 0
    chosen = np.repeat(np.isin(np.arange(len(sizes)), inside), sizes)
    ending = np.where(there, final[inside].astype(float), np.nan)
    return Piece(
        lowest[inside],
        highest[inside],
        sizes[inside],
        block.ids,
        np.where(there, low[inside].astype(float), np.nan),
        np.where(there, high[inside].astype(float), np.nan),
        np.where(np.isfinite(ending), ending, np.nan),
        block.seqs[chosen],
    )


def _rows(
    stat: Stat, block: Block, first: int, last: int, known: NDArray[np.uint64]
) -> Iterator[Piece]:
    inside = (block.steps >= first) & (block.steps <= last) & ~is_in(block.seqs, known)
    if not inside.any():
        return
    column, states = block.column(stat), block.states(stat)
    if column is None or states is None:
        return
    values = np.where(_VALUED[states], column.astype(np.float64), np.nan)[inside]
    values = np.where(np.isfinite(values), values, np.nan)
    steps = block.steps[inside]
    ones = np.ones(len(steps), np.int64)
    yield Piece(steps, steps, ones, block.ids, values, values, values, block.seqs[inside])


def _spread(
    tables: list[NDArray[np.float64]], found: list[Piece], columns: dict[int, int], width: int
) -> NDArray[np.float64]:
    out = np.full((sum(len(table) for table in tables), width), np.nan)
    at = 0
    for table, piece in zip(tables, found, strict=True):
        places = [columns[int(number)] for number in piece.ids]
        out[at : at + len(table), places] = table
        at += len(table)
    return out
