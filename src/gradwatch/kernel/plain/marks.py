"""Sketches and hashes with numpy: what stands for a tensor's content in a few numbers.

Both mix the global flat index in, so the marks of shards add up to the mark of the whole.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import SKETCH_WIDTH, Batch
from gradwatch.kernel.plain.checks import check
from gradwatch.kernel.plain.memory import PIECE, bits, values

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_EVERY_GROUP_UP_TO, _BUNCH = 65_536, 8
_Words = NDArray[np.uint64]


def scramble(word: _Words) -> _Words:
    """splitmix64's finisher: every output bit depends on every input bit."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


def sketch(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
) -> NDArray[np.float32]:
    """32 signed sums of every tensor's finite elements.

    32 consecutive elements are a group, 8 groups of a large tensor or one of a small one a bunch. A
    bunch has one scrambled word: 3 bits say which of its groups is taken, 32 are the signs, and 5
    say by how much the lanes are turned before they are added to the buckets. So every element has
    a sign of its own, and a column of a matrix does not always fall into the same bucket. Times
    the root of the bunch's size, inner products are on average what they are without a choice.
    """
    check(batch)
    result = np.zeros((len(batch), SKETCH_WIDTH), np.float32)
    for index in range(len(batch)):
        with np.errstate(over="ignore", invalid="ignore"):  # sums of huge doubles may be Inf
            bunch = np.uint64(_BUNCH if wholes[index] > _EVERY_GROUP_UP_TO else 1)
            sums = _walk(batch, index, int(offsets[index]), _sketcher(seeds[index], bunch))
            result[index] = sums * np.sqrt(float(bunch))
    return result


def hashes(batch: Batch, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Sum of the scrambled (bits, flat index) of every tensor's elements, modulo 2^64."""
    check(batch)
    result = np.zeros(len(batch), np.uint64)
    for index in range(len(batch)):
        raw, offset = bits(batch, index), int(offsets[index])
        total = np.uint64(0)
        for start in range(0, len(raw), PIECE):
            part = raw[start : start + PIECE].astype(np.uint64)
            word = part + _positions(offset + start, len(part)) * _GOLDEN
            word = (word ^ (word >> np.uint64(32))) * _FIRST
            total = np.add(total, (word ^ (word >> np.uint64(29))).sum(dtype=np.uint64))
        result[index] = total
    return result


def _positions(first: int, count: int) -> _Words:
    return np.arange(count, dtype=np.uint64) + np.uint64(first & 0xFFFFFFFFFFFFFFFF)


def _sketcher(
    seed: np.uint64, bunch: np.uint64
) -> Callable[[_Words, NDArray[np.float64]], NDArray[np.float64]]:
    def sums(position: _Words, x: NDArray[np.float64]) -> NDArray[np.float64]:
        group = position >> np.uint64(5)
        word = scramble(seed + group // bunch * _GOLDEN)
        taken = group % bunch == (word >> np.uint64(37)) % bunch
        position, word, x = position[taken], word[taken], x[taken]
        lane = position & np.uint64(31)
        sign = 1.0 - 2.0 * ((word >> lane) & np.uint64(1)).astype(np.float64)
        bucket = (lane + (word >> np.uint64(32))) & np.uint64(31)
        total = np.zeros(SKETCH_WIDTH)
        np.add.at(total, bucket.astype(np.int64), sign * x)
        return total

    return sums


def _walk(
    batch: Batch,
    index: int,
    offset: int,
    sums: Callable[[_Words, NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    total = np.zeros(SKETCH_WIDTH)
    raw = bits(batch, index)
    for start in range(0, len(raw), PIECE):
        x = values(raw[start : start + PIECE], int(batch.dtypes[index]))
        total += sums(_positions(offset + start, len(x)), np.where(np.isfinite(x), x, 0.0))
    return total
