# mypy: ignore-errors
# This is Triton's language, which looks like Python and is compiled for a device.
"""What a step of an optimizer did to all tensors, copies of them before it, and layers' outputs.

As in `triton_kernels`: lines of a table, programs for stretches, one record per line.
"""

import triton
import triton.language as tl

from gradwatch.record.device import triton_plan
from gradwatch.record.device.triton_kernels import (
    COLUMNS,
    INF,
    LEAST,
    exponent_of,
    two_to,
    whose,
    widened,
)

STEP_RECORD = tl.constexpr(triton_plan.STEP_RECORD)


@triton.jit
def _elements(here, start, size, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """A tile as it lies in memory; zeros behind its end."""
    offsets = tl.arange(0, TILE)
    at = here + start
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    if size == TILE:  # without a mask, so that 16 bytes are read at once
        raw = tl.load(at + offsets)
    else:
        raw = tl.load(at + offsets, mask=offsets < size, other=0)
    return raw


@triton.jit
def _real(bits):
    """A float32 from the bits of a float64 in the table."""
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def _add_squares(magnitude_bits, e, total):
    """Exponent and sum of squares so far, with the finite ones of these magnitudes."""
    bits = tl.where(magnitude_bits < 0x7F800000, magnitude_bits, 0)
    te = exponent_of(tl.max(bits, axis=0))
    y = bits.to(tl.float32, bitcast=True) * two_to(-te)
    unit = tl.maximum(e, te)
    u, v = two_to(e - unit), two_to(te - unit)
    return unit, total * u * u + tl.sum(y * y, axis=0) * v * v


@triton.jit
def _inverse_correction(line):
    """1 / (1 − β^steps) of Adam's second moment; from the count on the device where it is there."""
    address = tl.load(line + 9)
    inverse = _real(tl.load(line + 8))
    if address != 0:
        steps = tl.load(address.to(tl.pointer_type(tl.float32))).to(tl.int32)
        square = _real(tl.load(line + 10))
        power = square * 0.0 + 1.0
        for bit in range(31):  # by squares, in float64: near 1 nothing is left of float32
            power = tl.where(((steps >> bit) & 1) == 1, power * square, power)
            square = square * square
        inverse = 1.0 / (1.0 - power)
    return inverse.to(tl.float32)


@triton.jit
def _at(address, KIND: tl.constexpr, begin):
    return tl.load(address).to(tl.pointer_type(KIND)) + begin


@triton.jit(do_not_specialize=["first", "tiles"])
def step(
    table, programs, floats, ints, first, tiles,
    WEIGHT: tl.constexpr, GRADIENT: tl.constexpr, MOMENT: tl.constexpr, BITS: tl.constexpr,
    TILE: tl.constexpr, ALIGNED: tl.constexpr,
    UPDATE: tl.constexpr, PICKED: tl.constexpr, ADAM: tl.constexpr,
):  # fmt: skip
    """What a step changed, of whole tensors or (PICKED) at coordinates; and g/(√v̂+ε).

    Left behind by program p: floats[p] (Σ change², Σ weight², Σ ratio²) and ints[p] (their
    exponents, changed, lost, with gradient, ratios not finite, roots below ε).
    """
    number, tensor, stretch = whose(programs, first)
    line = table + tensor * COLUMNS
    begin = stretch * tiles * TILE
    total = tl.minimum(tl.load(line + 4) - begin, tiles * TILE).to(tl.int32)
    offsets = tl.arange(0, TILE)
    none = total * 0
    nil = none.to(tl.float32)
    ea, ew, er, a, w, r = none + LEAST, none + LEAST, none + LEAST, nil, nil, nil
    changed, lost, pulled, bad, small = none, none, none, none, none
    epsilon = _real(tl.load(line + 7)).to(tl.float32)
    inverse = _inverse_correction(line) if ADAM else 1.0
    for start in range(0, total, TILE):
        size = tl.minimum(total - start, TILE)
        there = offsets < size
        at = begin + start
        if PICKED:
            where = tl.load(_at(line + 6, tl.int64, at) + offsets, mask=there, other=0)
            new = tl.load(_at(line + 1, WEIGHT, 0) + where, mask=there, other=0)
            g = widened(tl.load(_at(line + 2, GRADIENT, 0) + where, mask=there, other=0))
        else:
            g = widened(_elements(_at(line + 2, GRADIENT, 0), at, size, ALIGNED, TILE))
        if UPDATE:
            old = _elements(_at(line, WEIGHT, 0), at, size, ALIGNED, TILE)
            if not PICKED:
                new = _elements(_at(line + 1, WEIGHT, 0), at, size, ALIGNED, TILE)
            same = old.to(BITS, bitcast=True) == new.to(BITS, bitcast=True)
            pulls = g != 0.0  # behind the end everything is zero, and the same
            was = widened(old)
            away = (widened(new) - was).to(tl.int32, bitcast=True) & 0x7FFFFFFF
            ea, a = _add_squares(away, ea, a)
            ew, w = _add_squares(was.to(tl.int32, bitcast=True) & 0x7FFFFFFF, ew, w)
            changed += TILE - tl.sum(same.to(tl.int32), axis=0)
            lost += tl.sum((same & pulls).to(tl.int32), axis=0)
            pulled += tl.sum(pulls.to(tl.int32), axis=0)
        if ADAM:
            v = widened(_elements(_at(line + 3, MOMENT, 0), at, size, ALIGNED, TILE))
            root = tl.sqrt_rn(v * inverse)
            ratio = tl.where(there, g / (root + epsilon), 0.0).to(tl.int32, bitcast=True)
            ratio = ratio & 0x7FFFFFFF
            er, r = _add_squares(ratio, er, r)
            bad += tl.sum((ratio >= 0x7F800000).to(tl.int32), axis=0)
            small += tl.sum(((root < epsilon) & there).to(tl.int32), axis=0)
    f, i = floats + number * 4, ints + number * 8
    tl.store(f + 0, a)
    tl.store(f + 1, w)
    tl.store(f + 2, r)
    tl.store(i + 0, ea)
    tl.store(i + 1, ew)
    tl.store(i + 2, er)
    tl.store(i + 3, changed)
    tl.store(i + 4, lost)
    tl.store(i + 5, pulled)
    tl.store(i + 6, bad)
    tl.store(i + 7, small)


@triton.jit
def _column(ints, first, many, at, BLOCK: tl.constexpr):
    """The sum of one of the counts."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, many, BLOCK):
        there = start + lanes < many
        total += tl.load(ints + (first + start + lanes) * 8 + at, mask=there, other=0)
    return tl.sum(total, axis=0).to(tl.float64)


@triton.jit(do_not_specialize=["tiles"])
def merge_step(table, floats, ints, out, tiles, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """What the programs of `step` left becomes one record per line of the table."""
    tensor = tl.program_id(0).to(tl.int64)
    line = table + tensor * COLUMNS
    mine = out + tensor * STEP_RECORD
    many = ((tl.load(line + 4) + tiles * TILE - 1) // (tiles * TILE)).to(tl.int32)
    first = tl.load(line + 5)
    lanes = tl.arange(0, BLOCK)
    for kind in tl.static_range(3):
        squares = tl.zeros([BLOCK], tl.float64)
        for start in range(0, many, BLOCK):
            there = start + lanes < many
            program = first + start + lanes
            unit = two_to(tl.load(ints + program * 8 + kind, mask=there, other=0)).to(tl.float64)
            squares += tl.load(floats + program * 4 + kind, mask=there, other=0.0) * unit * unit
        tl.store(mine + (kind if kind < 2 else 5), tl.sum(squares, axis=0))
    tl.store(mine + 2, _column(ints, first, many, 3, BLOCK))
    tl.store(mine + 3, _column(ints, first, many, 4, BLOCK))
    tl.store(mine + 4, _column(ints, first, many, 5, BLOCK))
    tl.store(mine + 6, _column(ints, first, many, 6, BLOCK))
    tl.store(mine + 7, _column(ints, first, many, 7, BLOCK))


@triton.jit(do_not_specialize=["first", "tiles"])
def copy(
    table, programs, first, tiles,
    WEIGHT: tl.constexpr, TILE: tl.constexpr, ALIGNED: tl.constexpr, PICKED: tl.constexpr,
):  # fmt: skip
    """What is at `after`, whole or (PICKED) at coordinates, to `before`."""
    _, tensor, stretch = whose(programs, first)
    line = table + tensor * COLUMNS
    begin = stretch * tiles * TILE
    total = tl.minimum(tl.load(line + 4) - begin, tiles * TILE).to(tl.int32)
    offsets = tl.arange(0, TILE)
    for start in range(0, total, TILE):
        there = start + offsets < total
        at = begin + start
        if PICKED:
            where = tl.load(_at(line + 6, tl.int64, at) + offsets, mask=there, other=0)
            x = tl.load(_at(line + 1, WEIGHT, 0) + where, mask=there, other=0)
        else:
            x = _elements(_at(line + 1, WEIGHT, 0), at, total - start, ALIGNED, TILE)
        tl.store(_at(line, WEIGHT, at) + offsets, x, mask=there)


# -- a layer's output ------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["address", "count"])
def look(out, address, count, DTYPE: tl.constexpr, TILE: tl.constexpr, ALIGNED: tl.constexpr):
    """out[program, 5]: zeros, elements not finite; of the others the largest magnitude, the sum and
    the sum of squares. Every program takes each tile that is a multiple of their number away."""
    offsets = tl.arange(0, TILE)
    zeros = tl.program_id(0).to(tl.int64) * 0
    bad = zeros
    largest = (zeros * 0).to(tl.float32)
    total = (zeros * 0).to(tl.float64)
    squares = total
    here = address.to(tl.int64).to(tl.pointer_type(DTYPE))
    each = tl.num_programs(0).to(tl.int64) * TILE
    for start in range(tl.program_id(0).to(tl.int64) * TILE, count, each):
        size = tl.minimum(count - start, TILE).to(tl.int32)
        raw = widened(_elements(here, start, size, ALIGNED, TILE))
        finite = tl.abs(raw) < INF
        y = tl.where(finite, raw, 0.0)
        top = tl.max(tl.abs(y), axis=0)
        e = exponent_of(top.to(tl.int32, bitcast=True))
        unit = two_to(e).to(tl.float64)
        y = y * two_to(-e)
        zeros += tl.sum(((raw == 0.0) & (offsets < size)).to(tl.int32), axis=0)
        bad += tl.sum((~finite).to(tl.int32), axis=0)
        largest = tl.maximum(largest, top)
        total += tl.sum(y, axis=0).to(tl.float64) * unit
        squares += tl.sum(y * y, axis=0).to(tl.float64) * (unit * unit)
    mine = out + tl.program_id(0) * 5
    tl.store(mine + 0, zeros.to(tl.float64))
    tl.store(mine + 1, bad.to(tl.float64))
    tl.store(mine + 2, largest.to(tl.float64))
    tl.store(mine + 3, total)
    tl.store(mine + 4, squares)
