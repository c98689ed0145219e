"""Coarser levels, written forwards: ten rows become one that still knows their extremes.

A `Rolled` of single rows is the start; `combine` makes buckets of ten of whatever it is given, so
that the levels ×10, ×100 and ×1000 are the same function applied again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE
from gradwatch.store.columns import STATE, BlockHead, Column, Part

FACTOR = 10
LEVELS = (1, 2, 3)
VALUED = "valued"
LAST_ONLY = frozenset({"weight_hash"})
"""Columns of which only the last value means anything."""
_BIG = np.iinfo(np.uint64).max
_NONE = 255

Table = dict[tuple[str, Part], NDArray[np.generic]]


@dataclass(frozen=True)
class Rolled:
    """Buckets of rows: [bucket, subject] arrays; steps and seqs in `head` are those of all rows."""

    head: BlockHead
    table: Table

    def columns(self) -> Iterator[Column]:
        for (name, part), values in self.table.items():
            yield Column(name, part, values)

    def slice(self, begin: int, end: int) -> "Rolled":
        """Some of the buckets."""
        edges = np.concatenate([[0], np.cumsum(self.head.sizes)]).astype(int)
        first, last = edges[begin], edges[end]
        head = BlockHead(
            self.head.steps[first:last],
            self.head.seqs[first:last],
            self.head.ids,
            self.head.sizes[begin:end],
        )
        return Rolled(head, {key: values[begin:end] for key, values in self.table.items()})

    def joined(self, other: "Rolled") -> "Rolled":
        """Two stretches of the same subjects, one after the other."""
        pairs = zip(self.head[:4], other.head[:4], strict=True)
        steps, seqs, ids, sizes = (np.concatenate([mine, theirs]) for mine, theirs in pairs)
        head = BlockHead(steps, seqs, ids[: len(self.head.ids)], sizes)
        table = {key: np.concatenate([self.table[key], other.table[key]]) for key in self.table}
        return Rolled(head, table)


def singles(
    head: BlockHead,
    rows: NDArray[np.void],
    states: NDArray[np.uint8],
    breathe: Callable[[], None],
) -> Rolled:
    """Every row a bucket of its own. Vector columns (sketches) have no extremes and stay behind."""
    valued = HAS_VALUE[states]
    table: Table = {
        (STATE, Part.VALUE): states,
        (VALUED, Part.VALUE): np.where(valued, states, _NONE).astype(np.uint8),
    }
    zero = np.zeros(states.shape, np.uint16)
    for name in rows.dtype.names or ():
        values = rows[name]
        breathe()
        if values.ndim > 2:
            continue
        table[name, Part.LAST] = values
        if name in LAST_ONLY:
            continue
        count, low, high, total = _single(values, valued)
        table[name, Part.LOW], table[name, Part.HIGH] = low, high
        table[name, Part.SUM], table[name, Part.COUNT] = total, count.astype(np.uint16)
        table[name, Part.LOW_AT] = table[name, Part.HIGH_AT] = zero
    sizes = np.ones(len(head.steps), np.uint32)
    return Rolled(BlockHead(head.steps, head.seqs, head.ids, sizes), table)


def _single(
    values: NDArray[np.generic], valued: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.generic], NDArray[np.generic], NDArray[np.generic]]:
    if values.dtype.kind == "u":
        whole = values.astype(np.uint64)
        high = np.where(valued, whole, np.uint64(0))
        return valued, np.where(valued, whole, np.uint64(_BIG)), high, high
    real = values.astype(np.float64)
    there = valued & np.isfinite(real)
    kept = np.where(there, real, np.nan)
    return there, kept, kept, np.where(there, real, 0.0)


def combine(rolled: Rolled, breathe: Callable[[], None]) -> tuple[Rolled, Rolled]:
    """Whole buckets of ten, and what is left over for the next time."""
    count = len(rolled.head.sizes) // FACTOR * FACTOR
    whole, rest = rolled.slice(0, count), rolled.slice(count, len(rolled.head.sizes))
    sizes = whole.head.sizes.reshape(-1, FACTOR)
    starts = (np.cumsum(sizes, axis=1) - sizes).astype(np.int64)
    table: Table = {}
    for name in dict.fromkeys(name for name, _ in whole.table):
        table.update(_combined(name, whole.table, starts))
        breathe()
    head = BlockHead(
        whole.head.steps,
        whole.head.seqs,
        whole.head.ids,
        sizes.sum(axis=1).astype(np.uint32),
    )
    return Rolled(head, table), rest


def _combined(
    name: str, table: Mapping[tuple[str, Part], NDArray[np.generic]], starts: NDArray[np.int64]
) -> Table:
    def tens(part: Part) -> NDArray[np.generic]:
        values = table[name, part]
        return values.reshape(-1, FACTOR, *values.shape[1:])

    if (name, Part.VALUE) in table:
        states = tens(Part.VALUE)
        if name == STATE:
            return {(name, Part.VALUE): states[:, -1]}
        return {(name, Part.VALUE): _last_known(states)}
    out: Table = {(name, Part.LAST): tens(Part.LAST)[:, -1]}
    if (name, Part.LOW) not in table:
        return out
    low, high = tens(Part.LOW), tens(Part.HIGH)
    real = low.dtype.kind == "f"
    low_index = np.argmin(np.where(np.isnan(low), np.inf, low) if real else low, axis=1)
    high_index = np.argmax(np.where(np.isnan(high), -np.inf, high) if real else high, axis=1)
    out[name, Part.LOW] = _taken(low, low_index)
    out[name, Part.HIGH] = _taken(high, high_index)
    out[name, Part.SUM] = tens(Part.SUM).sum(axis=1, dtype=table[name, Part.SUM].dtype)
    out[name, Part.COUNT] = tens(Part.COUNT).sum(axis=1, dtype=np.uint16)
    for part, index in ((Part.LOW_AT, low_index), (Part.HIGH_AT, high_index)):
        at = starts[:, :, None] + tens(part).astype(np.int64)
        out[name, part] = _taken(at, index).astype(np.uint16)
    return out


def _taken(values: NDArray[np.generic], index: NDArray[np.intp]) -> NDArray[np.generic]:
    return np.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _last_known(states: NDArray[np.generic]) -> NDArray[np.generic]:
    """Of the states that had a value, the last; 255 where none had."""
    known = states != _NONE
    last = FACTOR - 1 - np.argmax(known[:, ::-1], axis=1)
    return np.where(known.any(axis=1), _taken(states, last), np.uint8(_NONE)).astype(np.uint8)
