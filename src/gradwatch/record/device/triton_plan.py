"""What the Triton engine does on the host: who reads what, how much memory that takes, and what
the numbers mean that come back. Needs no Triton.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import ADAM, MOMENTS, SKETCH_WIDTH, UPDATE, BinTable, sparse_bins
from gradwatch.kernel.batch import FLOAT_BINS
from gradwatch.record.device.engine import DeviceMeasurement, DeviceSteps

COLUMNS = 12
"""Of a table of tensors to be measured: address, count, first program, length of a row (0: no
rows), address of the rows' times, the time now, seed, offset, size of the whole, rows, address of
the factor (float64; 0: none), address of the number that voids the step (float32; 0: none).

Of a table of steps: before, after, gradient, second moment (addresses), count, first program,
address of the coordinates, ε, 1 / correction, address of the count of steps (float32; 0: the
correction is known), β; floats as the bits of float64."""
RECORD = 56
"""Numbers of a tensor: count, zeros, NaN, +Inf, −Inf, zero rows, dead rows, untouched rows, mean,
three central moments, mean magnitude, least, most, –, 32 sums of the sketch, four quarters of the
hash, squares of the distance and of the norm of rows, the sum of all such norms, –."""
STEP_RECORD = 8
"""Σ change², Σ weight², changed, lost, with gradient, Σ ratio², ratios not finite, roots below ε.
"""
BINS = 576
"""Counters of a tensor: sign · 256 + biased exponent, then those of subnormal numbers from 512:
sign · 32 + exponent + 149."""
ROWS, SPLITS = 32, 8
"""Room for the rows whose spread is taken, and into how many stretches their columns are cut."""
TILE = 4096
"""Elements that a program holds at once."""
MOST_TILES = 16
"""Of a program: more would add too many numbers of 32 bits one after another."""
PROGRAMS = 32_768
"""Enough to keep every device busy; larger tensors give more tiles to each."""


class LaunchClass(NamedTuple):
    """Lines of a table that one launch serves, and its programs."""

    key: Any
    """What the kernel is compiled for."""
    line: int
    lines: int
    program: int
    programs: int


@dataclass(frozen=True)
class LaunchPlan:
    """Which program takes which stretch of which tensor; depends on sizes and types only."""

    order: tuple[int, ...]
    """Of the lines of the table: the number of the tensor that was given."""
    classes: tuple[LaunchClass, ...]
    starts: NDArray[np.int64]
    """Of the lines: the first program."""
    programs: NDArray[np.int32]
    """[program, 2]: line of the table, number of the stretch."""
    tiles: int
    """In a stretch."""

    @property
    def scratch(self) -> dict[str, int]:
        """Bytes that programs leave their partial results in, by what they are."""
        count = len(self.programs)
        return {
            "floats": count * 32,
            "ints": count * 32,
            "sketches": count * 4 * SKETCH_WIDTH,
            "words": count * 8 + count % 2 * 8,
            "spreads": len(self.order) * SPLITS * 2 * ROWS * 8,
        }

    @property
    def kept_bytes(self) -> int:
        """Memory of the device that is kept between steps for this plan."""
        return int(self.programs.nbytes) + sum(self.scratch.values())


def planned(
    counts: Sequence[int], keys: Sequence[Any], tile: int = TILE, programs: int = PROGRAMS
) -> LaunchPlan:
    """Cut tensors of these sizes into stretches; those of one key are served by one launch."""
    ranks = {key: rank for rank, key in enumerate(dict.fromkeys(keys))}
    order = sorted(range(len(keys)), key=lambda index: ranks[keys[index]])
    sizes = np.array(counts, np.int64)[order]
    tiles = int(np.clip(-(-(-(-sizes // tile)).sum() // programs), 1, MOST_TILES))
    many = -(-sizes // (tiles * tile))
    starts = np.concatenate([[0], np.cumsum(many)])
    line = np.repeat(np.arange(len(order)), many)
    stretch = np.arange(starts[-1]) - starts[line]
    classes, begin = [], 0
    for key in ranks:
        lines = sum(one == key for one in keys)
        first, last = int(starts[begin]), int(starts[begin + lines])
        classes.append(LaunchClass(key, begin, lines, first, last - first))
        begin += lines
    table = np.stack([line, stretch], axis=1).astype(np.int32)
    return LaunchPlan(tuple(order), tuple(classes), starts[:-1], table, tiles)


# -- what has come back --------------------------------------------------------------------------


def records_of(numbers: NDArray[np.float64]) -> NDArray[np.void]:
    """The kernel's records, from what `merge` has written."""
    records = np.zeros(len(numbers), MOMENTS)
    for place, name in enumerate(("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows")):
        records[name] = numbers[:, place]
    finite = numbers[:, 0] - numbers[:, 2] - numbers[:, 3] - numbers[:, 4]
    mean, second, third, fourth, magnitude, low, high = numbers[:, 8:15].T
    equal = low == high
    with np.errstate(all="ignore"):  # tensors without a finite element, and constant ones
        flat = equal | (second <= 0)
        std = np.sqrt(second)
        records["mean"] = np.where(equal, low, mean)
        records["std"] = np.where(flat, 0.0, std)
        records["skewness"] = np.where(flat, np.nan, third / (second * std))
        records["kurtosis"] = np.where(flat, np.nan, fourth / (second * second) - 3)
        records["norm"] = np.sqrt(finite) * np.hypot(records["mean"], records["std"])
        records["abs_mean"] = np.where(equal, np.abs(low), magnitude)
        records["min"], records["max"] = low, high
        records["abs_max"] = np.maximum(abs(low), abs(high))
    for name in MOMENTS.names[6:]:  # type: ignore[index]
        records[name][finite == 0] = np.nan
    return records


def bins_of(counters: NDArray[np.float64]) -> NDArray[np.uint64]:
    """[tensor, negative | positive, exponent + 149], from the counters of `measure`."""
    found = counters.astype(np.int64).reshape(-1, BINS)
    found = (found & 0xFFFFFFFF).astype(np.uint64)  # they are 32 bits without a sign
    dense = np.zeros((len(found), 2, FLOAT_BINS[1]), np.uint64)
    for sign in (0, 1):
        dense[:, 1 - sign, 23:] = found[:, sign * 256 + 1 : sign * 256 + 255]
        dense[:, 1 - sign, :23] = found[:, 512 + sign * 32 : 512 + sign * 32 + 23]
    return dense


def measurement_of(
    numbers: NDArray[np.float64],
    counters: NDArray[np.float64] | None,
    indices: Sequence[int],
    wholes: NDArray[np.int64],
    *,
    sketches: bool,
    hashes: bool,
    remembered: NDArray[np.bool_] | None,
) -> DeviceMeasurement:
    """What was measured of the tensors `indices` of a batch, from one line of numbers for each.

    `wholes` are the sizes of the wholes of all tensors of the batch, `remembered` says of each
    whether its rows are, None that none are.
    """
    total = len(wholes)
    records = np.zeros(total, MOMENTS)
    records[indices] = records_of(numbers)
    found = DeviceMeasurement(records)
    if counters is not None:
        dense = np.zeros((total, 2, FLOAT_BINS[1]), np.uint64)
        dense[indices] = bins_of(counters)
        found = found._replace(bins=sparse_bins(dense, FLOAT_BINS[0]))
    if sketches:
        sums = np.full((total, SKETCH_WIDTH), np.nan, np.float32)
        roots = np.where(wholes[indices] > 65_536, np.sqrt(8.0), 1.0)
        with np.errstate(over="ignore"):
            sums[indices] = numbers[:, 16:48] * roots[:, None]
        found = found._replace(sketches=sums)
    if remembered is not None:
        rows = np.zeros((2, total), np.uint64)
        rows[:, indices] = np.where(remembered[indices], numbers[:, 6:8].T, 0)
        found = found._replace(dead_rows=rows[0], untouched_rows=rows[1])
    if hashes:
        words, spreads = np.zeros(total, np.uint64), np.full(total, np.nan, np.float32)
        quarters = numbers[:, 48:52].astype(np.uint64) << np.arange(0, 64, 16, dtype=np.uint64)
        words[indices] = np.bitwise_or.reduce(quarters, axis=1)
        spreads[indices] = _spreads(*numbers[:, 52:55].T)
        found = found._replace(hashes=words, spreads=spreads)
    return found


def _spreads(
    apart: NDArray[np.float64], size: NDArray[np.float64], total: NDArray[np.float64]
) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        spreads = np.where(size == 0, 0.0, np.sqrt(apart / size))
    return np.where(np.isfinite(total), spreads, np.nan)


def beside(
    mine: DeviceMeasurement, other: DeviceMeasurement, others: Sequence[int]
) -> DeviceMeasurement:
    """What one engine has measured, with the tensors `others` from another."""
    for name in ("records", "sketches", "dead_rows", "untouched_rows", "hashes", "spreads"):
        into, of = getattr(mine, name), getattr(other, name)
        if into is not None and of is not None:
            into[others] = of[others]
    if mine.bins is None or other.bins is None:
        return mine
    theirs = set(others)
    both = list(zip(mine.bins, other.bins, strict=True))
    chosen = [pair[index in theirs] for index, pair in enumerate(both)]
    table = BinTable(
        np.array([bins.first_exponent for bins in chosen], np.int64),
        np.array([len(bins.negative) for bins in chosen], np.int64),
        np.concatenate([side for bins in chosen for side in (bins.negative, bins.positive)]),
    )
    return mine._replace(bins=table)


@dataclass(frozen=True)
class StepPart:
    """What one line of numbers of `merge_step` says, and of which tensor."""

    index: int
    count: int
    update: bool
    pulled: bool
    """It had a gradient."""
    adam: bool


def steps_of(
    numbers: NDArray[np.float64],
    parts: Sequence[StepPart],
    total: int,
    *,
    updates: bool,
    ratios: bool,
) -> DeviceSteps:
    """What a step did to `total` tensors, from one line of numbers for each part."""
    changes, compared = np.zeros(total, UPDATE), np.zeros(total, np.int64)
    quotients = np.full(total, np.nan, ADAM)
    with np.errstate(all="ignore"):
        for part, line in zip(parts, numbers, strict=True):
            if part.update:
                lost = line[3:5] if part.pulled else (0, 0)
                changes[part.index] = np.sqrt(line[0]), np.sqrt(line[1]), line[2], *lost
                compared[part.index] = part.count
            if part.adam:
                rms = np.sqrt(line[5] / (part.count - line[6]))
                quotients[part.index] = rms, line[7] / part.count
    return DeviceSteps(changes if updates else None, compared, quotients if ratios else None)


def steps_beside(mine: DeviceSteps, other: DeviceSteps, others: Sequence[int]) -> DeviceSteps:
    """What one engine has found, with the tensors `others` from another."""
    for into, of in zip(mine, other, strict=True):
        if into is not None and of is not None:
            into[others] = of[others]
    return mine
