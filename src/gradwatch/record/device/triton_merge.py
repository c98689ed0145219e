# mypy: ignore-errors
# This is Triton's language, which looks like Python and is compiled for a device.
"""What the programs of `triton_kernels` left becomes one record per tensor, in float64.

And how far apart some rows of a tensor are, which needs a look at those rows only.
"""

import triton
import triton.language as tl

from gradwatch.record.device import triton_plan
from gradwatch.record.device.triton_kernels import COLUMNS, INF, two_to, widened
from gradwatch.stats.rows import WINDOW as _WINDOW

RECORD = tl.constexpr(triton_plan.RECORD)
SPLITS = tl.constexpr(triton_plan.SPLITS)
WINDOW = tl.constexpr(_WINDOW)


@triton.jit(do_not_specialize=["first"])
def spread(table, spreads, first, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Squares of up to 17 rows of a tensor and of their distances from row 0, in float64.

    One program for a tensor and a stretch of its columns: spreads[tensor, stretch, 2, ROWS].
    """
    tensor = (tl.program_id(0) + first).to(tl.int64)
    line = table + tensor * COLUMNS
    rows = tl.load(line + 9)
    length = tl.load(line + 3)
    each = (length + SPLITS - 1) // SPLITS
    begin = each * tl.program_id(1)
    end = tl.minimum(begin + each, length)
    here = tl.load(line).to(tl.pointer_type(DTYPE))
    which = tl.arange(0, ROWS)
    others = tl.minimum(rows - 1, 16)
    chosen = tl.where(which > 0, 1 + (which - 1) * (rows - 1) // tl.maximum(others, 1), 0)
    used = which <= others
    apart = tl.zeros([ROWS], tl.float64)
    size = tl.zeros([ROWS], tl.float64)
    for start in range(begin, end, COLS):
        column = start + tl.arange(0, COLS)
        there = column < end
        base = widened(tl.load(here + column, mask=there, other=0)).to(tl.float64)
        cell = chosen[:, None] * length + column[None, :]
        inside = used[:, None] & there[None, :]
        x = widened(tl.load(here + cell, mask=inside, other=0)).to(tl.float64)
        away = tl.where(inside, x - base[None, :], 0.0)
        apart += tl.sum(away * away, axis=1)
        size += tl.sum(x * x, axis=1)
    out = spreads + (tensor * SPLITS + tl.program_id(1)) * 2 * ROWS + which
    tl.store(out, apart)
    tl.store(out + ROWS, size + tl.where(rows > 1, 0.0, INF))  # of one row there is no spread


# -- one record per tensor -------------------------------------------------------------------------


@triton.jit
def _freed(n, mean, rest, m2, m3, m4, exponent):
    """Count, mean and central sums of a program in float64, freed of the rounding of its mean."""
    unit = two_to(exponent).to(tl.float64)
    n = n.to(tl.float64)
    r = rest.to(tl.float64) / tl.maximum(n, 1.0)
    m2, m3, m4 = m2.to(tl.float64), m3.to(tl.float64), m4.to(tl.float64)
    c2 = tl.maximum(m2 - n * r * r, 0.0)
    c3 = m3 - 3.0 * r * m2 + 2.0 * n * r * r * r
    c4 = m4 - 4.0 * r * m3 + 6.0 * r * r * m2 - 3.0 * n * r * r * r * r
    u2 = unit * unit
    return n, (mean.to(tl.float64) + r) * unit, c2 * u2, c3 * u2 * unit, c4 * u2 * u2


@triton.jit
def _merge_counts(floats, ints, first, many, count, out, BLOCK: tl.constexpr):
    """Counts, extremes and means; the number of finite elements and their mean."""
    lanes = tl.arange(0, BLOCK)
    zeros = tl.zeros([BLOCK], tl.int64)
    nan = tl.zeros([BLOCK], tl.int64)
    pos = tl.zeros([BLOCK], tl.int64)
    good = tl.zeros([BLOCK], tl.int64)
    weighted = tl.zeros([BLOCK], tl.float64)
    absolute = tl.zeros([BLOCK], tl.float64)
    low = tl.full([BLOCK], INF, tl.float32)
    high = tl.full([BLOCK], -INF, tl.float32)
    for start in range(0, many, BLOCK):
        there = start + lanes < many
        f = floats + (first + start + lanes) * 8
        i = ints + (first + start + lanes) * 8
        n = tl.load(i + 0, mask=there, other=0)
        unit = two_to(tl.load(i + 4, mask=there, other=0)).to(tl.float64)
        zeros += tl.load(i + 1, mask=there, other=0)
        nan += tl.load(i + 2, mask=there, other=0)
        pos += tl.load(i + 3, mask=there, other=0)
        good += n
        mean = tl.load(f + 0, mask=there, other=0.0).to(tl.float64)
        rest = tl.load(f + 1, mask=there, other=0.0).to(tl.float64)
        weighted += (mean * n.to(tl.float64) + rest) * unit
        absolute += tl.load(f + 5, mask=there, other=0.0).to(tl.float64) * unit
        low = tl.minimum(low, tl.load(f + 6, mask=there, other=INF))
        high = tl.maximum(high, tl.load(f + 7, mask=there, other=-INF))
    finite = tl.sum(good, axis=0)
    share = tl.maximum(finite, 1).to(tl.float64)
    mean = tl.sum(weighted, axis=0) / share
    nans = tl.sum(nan, axis=0)
    above = tl.sum(pos, axis=0)
    tl.store(out + 0, count.to(tl.float64))
    tl.store(out + 1, tl.sum(zeros, axis=0).to(tl.float64))
    tl.store(out + 2, nans.to(tl.float64))
    tl.store(out + 3, above.to(tl.float64))
    tl.store(out + 4, (count - finite - nans - above).to(tl.float64))
    tl.store(out + 8, mean)
    tl.store(out + 12, tl.sum(absolute, axis=0) / share)
    tl.store(out + 13, tl.min(low, axis=0).to(tl.float64))
    tl.store(out + 14, tl.max(high, axis=0).to(tl.float64))
    return share, mean


@triton.jit
def _merge_powers(floats, ints, first, many, share, mean, out, BLOCK: tl.constexpr):
    """Moments about the whole's mean, from those about the programs': nothing is cancelled."""
    lanes = tl.arange(0, BLOCK)
    m2 = tl.zeros([BLOCK], tl.float64)
    m3 = tl.zeros([BLOCK], tl.float64)
    m4 = tl.zeros([BLOCK], tl.float64)
    for start in range(0, many, BLOCK):
        there = start + lanes < many
        f = floats + (first + start + lanes) * 8
        i = ints + (first + start + lanes) * 8
        n, centre, c2, c3, c4 = _freed(
            tl.load(i + 0, mask=there, other=0),
            tl.load(f + 0, mask=there, other=0.0),
            tl.load(f + 1, mask=there, other=0.0),
            tl.load(f + 2, mask=there, other=0.0),
            tl.load(f + 3, mask=there, other=0.0),
            tl.load(f + 4, mask=there, other=0.0),
            tl.load(i + 4, mask=there, other=0),
        )
        a = tl.where(n > 0, centre - mean, 0.0)
        m2 += c2 + n * a * a
        m3 += c3 + 3.0 * a * c2 + n * a * a * a
        m4 += c4 + 4.0 * a * c3 + 6.0 * a * a * c2 + n * a * a * a * a
    tl.store(out + 9, tl.sum(m2, axis=0) / share)
    tl.store(out + 10, tl.sum(m3, axis=0) / share)
    tl.store(out + 11, tl.sum(m4, axis=0) / share)


@triton.jit
def _count_rows(line, out, BLOCK: tl.constexpr):
    """Rows without an element other than zero: now, in the window, ever."""
    lanes = tl.arange(0, BLOCK)
    rows = tl.load(line + 9)
    times = tl.load(line + 4).to(tl.pointer_type(tl.int32))
    now = tl.load(line + 5).to(tl.int32)
    zero = tl.zeros([BLOCK], tl.int32)
    dead = tl.zeros([BLOCK], tl.int32)
    untouched = tl.zeros([BLOCK], tl.int32)
    for start in range(0, rows, BLOCK):
        there = start + lanes < rows
        when = tl.load(times + start + lanes, mask=there, other=0)
        zero += (there & (when != now)).to(tl.int32)
        dead += (there & (when <= now - WINDOW)).to(tl.int32)
        untouched += (there & (when < 0)).to(tl.int32)
    tl.store(out + 5, tl.sum(zero, axis=0).to(tl.float64))
    tl.store(out + 6, tl.sum(dead, axis=0).to(tl.float64))
    tl.store(out + 7, tl.sum(untouched, axis=0).to(tl.float64))


@triton.jit
def _merge_sketch(ints, sketches, first, many, out):
    bucket = tl.arange(0, 32)
    few = tl.arange(0, 16)
    sums = tl.zeros([16, 32], tl.float64)
    for start in range(0, many, 16):
        there = start + few < many
        unit = two_to(tl.load(ints + (first + start + few) * 8 + 4, mask=there, other=0))
        part = sketches + (first + start + few)[:, None] * 32 + bucket[None, :]
        sums += tl.load(part, mask=there[:, None], other=0.0) * unit.to(tl.float64)[:, None]
    tl.store(out + 16 + bucket, tl.sum(sums, axis=0))


@triton.jit
def _merge_hash(words, first, many, out, BLOCK: tl.constexpr):
    """The sum of the words in quarters of 16 bits, which floats hold exactly."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, many, BLOCK):
        total += tl.load(words + first + start + lanes, mask=start + lanes < many, other=0)
    quarter = tl.arange(0, 4)
    bits = (tl.sum(total, axis=0) >> (quarter * 16).to(tl.int64)) & 0xFFFF
    tl.store(out + 48 + quarter, bits.to(tl.float64))


@triton.jit
def _merge_spread(spreads, out, ROWS: tl.constexpr):
    which = tl.arange(0, ROWS)
    apart = tl.zeros([ROWS], tl.float64)
    size = tl.zeros([ROWS], tl.float64)
    for split in range(SPLITS):
        apart += tl.load(spreads + split * 2 * ROWS + which)
        size += tl.load(spreads + split * 2 * ROWS + ROWS + which)
    tl.store(out + 52, tl.max(apart, axis=0))
    tl.store(out + 53, tl.max(size, axis=0))
    tl.store(out + 54, tl.sum(size, axis=0))  # not finite if any element is not


@triton.jit(do_not_specialize=["tiles"])
def merge(
    table, floats, ints, sketches, words, spreads, out, tiles,
    TILE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    SKETCHED: tl.constexpr, HASHED: tl.constexpr,
):  # fmt: skip
    """What the programs left becomes one record per tensor, in a fixed order."""
    tensor = tl.program_id(0).to(tl.int64)
    line = table + tensor * COLUMNS
    mine = out + tensor * RECORD
    count = tl.load(line + 1)
    first = tl.load(line + 2)
    many = ((count + tiles * TILE - 1) // (tiles * TILE)).to(tl.int32)
    share, mean = _merge_counts(floats, ints, first, many, count, mine, BLOCK)
    _merge_powers(floats, ints, first, many, share, mean, mine, BLOCK)
    _count_rows(line, mine, BLOCK)
    if SKETCHED:
        _merge_sketch(ints, sketches, first, many, mine)
    if HASHED:
        _merge_hash(words, first, many, mine, BLOCK)
        _merge_spread(spreads + tensor * SPLITS * 2 * ROWS, mine, ROWS)
