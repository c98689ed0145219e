# mypy: ignore-errors
# This is Triton's language, which looks like Python and is compiled for a device.
"""Everything about all tensors of a list in one read, whatever their number.

Tensors are lines of a table of whole numbers: addresses, sizes and places. A program (a block of
threads) takes a stretch of one tensor, tile by tile, and leaves one partial record; `merge` makes
one record per tensor of them, in float64. Which program takes what is fixed by the sizes, and no
float is added by an atomic operation: the same numbers give the same bits every time.

Nearly every tile is whole and finite. It stays in registers: extremes, sums and zeros first, then
powers of the distance from its mean, in units of the power of two of its largest magnitude. Any
other tile is walked through twice in stretches of SUB elements, the second time from the cache.

bfloat16 is read as whole numbers and widened by a shift, which is exact everywhere.
"""

import torch
import triton
import triton.language as tl

from gradwatch.record.device import triton_plan

KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.int16, torch.float16: tl.float16}
"""As what a kernel loads elements of these types."""
BITS = {4: tl.int32, 2: tl.int16}
"""Whole numbers of so many bytes."""
COLUMNS = tl.constexpr(triton_plan.COLUMNS)
BINS = tl.constexpr(triton_plan.BINS)
GOLDEN = tl.constexpr(-7046029254386353131)  # 0x9E3779B97F4A7C15
FIRST = tl.constexpr(-4658895280553007687)  # 0xBF58476D1CE4E5B9
SECOND = tl.constexpr(-7723592293110705685)  # 0x94D049BB133111EB
INF = tl.constexpr(float("inf"))
LEAST = tl.constexpr(-126)  # the exponent of what has no magnitude


@triton.jit
def widened(raw):
    """float32 of what was loaded."""
    if raw.dtype == tl.int16:
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float32)


@triton.jit
def _bits(raw):
    """The bits of what was loaded as a positive int64."""
    if raw.dtype == tl.float32:
        return raw.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    else:
        return raw.to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF


@triton.jit
def two_to(exponent):
    """2^exponent, exactly; of less than −126, 2^−126."""
    return ((tl.maximum(exponent, -126) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(magnitude_bits):
    """Of the largest magnitude, within what 2^±exponent can be written as."""
    return tl.minimum(tl.maximum(magnitude_bits >> 23, 1), 253) - 127


@triton.jit
def _shift_right(word, by: tl.constexpr):
    """Of an int64 as if it had no sign."""
    return (word >> by) & ((1 << (64 - by)) - 1)


@triton.jit
def _scramble(word):
    word = (word ^ _shift_right(word, 30)) * FIRST
    word = (word ^ _shift_right(word, 27)) * SECOND
    return word ^ _shift_right(word, 31)


@triton.jit
def _hash(raw, place):
    """Scrambled (bits, flat index) of every element."""
    word = _bits(raw) + place * GOLDEN
    word = (word ^ _shift_right(word, 32)) * FIRST
    return word ^ _shift_right(word, 29)


# -- one tile ----------------------------------------------------------------------------------


@triton.jit
def _nothing(zero):
    """What `_tile` would say of no elements; `zero` is an int32."""
    nil = zero.to(tl.float32)
    return (zero, zero, zero, zero, zero + LEAST, nil, nil, nil, nil, nil, nil,
            nil + INF, nil - INF)  # fmt: skip


@triton.jit
def _fast(x, absolute, TILE: tl.constexpr):
    """Of a whole and finite tile: count, zeros, NaN, +Inf, exponent, mean, four sums of powers of
    the distance from it, sum of magnitudes, least, most."""
    low = tl.min(x, axis=0)
    high = tl.max(x, axis=0)
    zeros = tl.sum((x == 0.0).to(tl.int32), axis=0)
    exponent = exponent_of(tl.maximum(tl.abs(low), tl.abs(high)).to(tl.int32, bitcast=True))
    scale = two_to(-exponent)
    mean = tl.sum(x, axis=0) * scale / TILE
    d = x * scale - mean
    d2 = d * d
    none = zeros * 0
    return (none + TILE, zeros, none, none, exponent, mean, tl.sum(d, axis=0), tl.sum(d2, axis=0),
            tl.sum(d2 * d, axis=0), tl.sum(d2 * d2, axis=0), absolute * scale,
            low, high)  # fmt: skip


@triton.jit
def _stretch(at, start, size, SUB: tl.constexpr):
    """SUB elements of a tile as they lie in memory, as floats (+Inf behind its end), and which."""
    offsets = start + tl.arange(0, SUB)
    there = offsets < size
    raw = tl.load(at + offsets, mask=there, other=0)
    return raw, tl.where(there, widened(raw), INF), there


@triton.jit
def _scan(at, size, SUB: tl.constexpr):
    """First walk: finite elements, zeros, NaN, +Inf, least, most, and about what the mean is."""
    low = tl.full([SUB], INF, tl.float32)
    high = tl.full([SUB], -INF, tl.float32)
    zeros = tl.zeros([SUB], tl.int32)
    good = tl.zeros([SUB], tl.int32)
    nan = tl.zeros([SUB], tl.int32)
    pos_inf = tl.zeros([SUB], tl.int32)
    centre = tl.zeros([SUB], tl.float32)
    for start in range(0, size, SUB):
        _, x, there = _stretch(at, start, size, SUB)
        finite = tl.abs(x) < INF
        low = tl.minimum(low, tl.where(finite, x, INF))
        high = tl.maximum(high, tl.where(finite, x, -INF))
        zeros += (x == 0.0).to(tl.int32)
        good += finite.to(tl.int32)
        nan += (x != x).to(tl.int32)
        pos_inf += ((x == INF) & there).to(tl.int32)
        # A running mean of each lane cannot overflow, as a sum could.
        centre += tl.where(finite, x / good.to(tl.float32) - centre / good.to(tl.float32), 0.0)
    n = tl.sum(good, axis=0)
    share = good.to(tl.float32) / tl.maximum(n, 1).to(tl.float32)
    return (n, tl.sum(zeros, axis=0), tl.sum(nan, axis=0), tl.sum(pos_inf, axis=0),
            tl.min(low, axis=0), tl.max(high, axis=0), tl.sum(centre * share, axis=0))  # fmt: skip


@triton.jit
def _slow(
    at, size, place, factor, found, word,
    TILE: tl.constexpr, SUB: tl.constexpr, HISTOGRAM: tl.constexpr, HASHED: tl.constexpr,
):  # fmt: skip
    """The same of a tile that is not whole or not finite, and what `_bins` and `_hash` give; the
    words of a whole one have been added."""
    n, zeros, nan, pos_inf, low, high, centre = _scan(at, size, SUB)
    top = exponent_of(tl.maximum(tl.abs(low), tl.abs(high)).to(tl.int32, bitcast=True))
    exponent = tl.where(n > 0, top, LEAST)
    scale = two_to(-exponent)
    mean = centre * scale
    s1 = tl.zeros([SUB], tl.float32)
    s2, s3, s4, absolute = s1, s1, s1, s1
    tiny = size * 0
    for start in range(0, size, SUB):
        raw, x, there = _stretch(at, start, size, SUB)
        finite = tl.abs(x) < INF
        y = tl.where(finite, x, 0.0) * scale
        absolute += tl.abs(y)
        d = tl.where(finite, y - mean, 0.0)
        s1 += d
        s2 += d * d
        s3 += d * d * d
        s4 += d * d * (d * d)
        if HISTOGRAM:
            counts, some = _bins(x, factor)
            found += counts
            tiny += some
        if HASHED:
            scrambled = _hash(raw, place + start + tl.arange(0, SUB))
            word += tl.sum(tl.where(there & (size < TILE), scrambled, 0), axis=0)
    return (n, zeros, nan, pos_inf, exponent, mean, tl.sum(s1, axis=0), tl.sum(s2, axis=0),
            tl.sum(s3, axis=0), tl.sum(s4, axis=0), tl.sum(absolute, axis=0), low, high,
            tiny, found, word)  # fmt: skip


@triton.jit
def _tile(
    here, start, size, place, factor, found, word,
    ALIGNED: tl.constexpr, TILE: tl.constexpr, SUB: tl.constexpr,
    HISTOGRAM: tl.constexpr, HASHED: tl.constexpr,
):  # fmt: skip
    """The same of any tile, the faster way if it can be."""
    n, zeros, nan, pos, e, mean, s1, s2, s3, s4, total, low, high = _nothing(size * 0)
    tiny, slow = size * 0, size * 0 + 1
    at = here + start
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    if size == TILE:  # without a mask, so that 16 bytes are read at once
        raw = tl.load(at + tl.arange(0, TILE))
        if HASHED:
            word += tl.sum(_hash(raw, place + start + tl.arange(0, TILE)), axis=0)
        x = widened(raw)
        magnitudes = tl.sum(tl.abs(x), axis=0)
        # A NaN or an infinity makes the sum one; so do sums beyond the range of the type.
        if magnitudes < INF:
            slow = size * 0
            n, zeros, nan, pos, e, mean, s1, s2, s3, s4, total, low, high = _fast(
                x, magnitudes, TILE
            )
            if HISTOGRAM:
                counts, tiny = _bins(x, factor)
                found += counts
    if slow == 1:
        n, zeros, nan, pos, e, mean, s1, s2, s3, s4, total, low, high, tiny, found, word = _slow(
            at, size, place + start, factor, found, word, TILE, SUB, HISTOGRAM, HASHED
        )
    return n, zeros, nan, pos, e, mean, s1, s2, s3, s4, total, low, high, tiny, found, word


@triton.jit
def _moved(n, s1, s2, s3, s4, by):
    """Sums of powers of (distance + by)."""
    t4 = s4 + by * (4.0 * s3 + by * (6.0 * s2 + by * (4.0 * s1 + by * n)))
    t3 = s3 + by * (3.0 * s2 + by * (3.0 * s1 + by * n))
    return s1 + by * n, s2 + by * (2.0 * s1 + by * n), t3, t4


@triton.jit
def _joined(na, ma, a1, a2, a3, a4, u, nb, mb, b1, b2, b3, b4, v):
    """Mean and sums of powers of two parts (to be multiplied by the units u and v) about their
    common mean; what rounding leaves out of the mean is in the first sum."""
    na, nb = na.to(tl.float32), nb.to(tl.float32)
    ma, mb = ma * u, mb * v
    mean = ma + (mb - ma) * (nb / tl.maximum(na + nb, 1.0))
    u2, v2 = u * u, v * v
    c1, c2, c3, c4 = _moved(na, a1 * u, a2 * u2, a3 * u2 * u, a4 * u2 * u2, ma - mean)
    d1, d2, d3, d4 = _moved(nb, b1 * v, b2 * v2, b3 * v2 * v, b4 * v2 * v2, mb - mean)
    return mean, c1 + d1, c2 + d2, c3 + d3, c4 + d4


@triton.jit
def _sketch(at, size, place, seed, bunch_bits, exponent, STEP: tl.constexpr):
    """32 signed sums of the groups of this tile that are taken; read again, from the cache.

    `place` is the flat index of the tile in the whole. A bunch is 2^bunch_bits groups of 32; one of
    them is taken, its lanes turned and signed by one word. STEP bunches are looked at together.
    """
    span = bunch_bits + 5
    first = place >> span
    many = (((place + size - 1) >> span) - first + 1).to(tl.int32)
    bucket = tl.arange(0, 32)
    sums = tl.zeros([32], tl.float32)
    for start in range(0, many, STEP):
        bunch = first + start + tl.arange(0, STEP)
        word = _scramble(seed + bunch * GOLDEN)
        group = (bunch << bunch_bits) + (_shift_right(word, 37) & ((1 << bunch_bits) - 1))
        turn = (_shift_right(word, 32) & 31).to(tl.int32)
        signs = word.to(tl.int32)
        # Places in this tile fit 32 bits; a group may begin before it or end behind it.
        base = (group * 32 - place).to(tl.int32)
        lane = (bucket[None, :] - turn[:, None]) & 31
        element = base[:, None] + lane
        inside = (element >= 0) & (element < size)
        x = widened(tl.load(at + element, mask=inside, other=0))
        minus = ((signs[:, None] >> lane) & 1) == 1
        y = tl.where(tl.abs(x) < INF, x * two_to(exponent), 0.0)
        sums += tl.sum(tl.where(minus, -y, y), axis=0)
    return sums


@triton.jit
def _bins(x, factor):
    """How often each sign and exponent occurs among the elements times `factor`, and whether some
    are subnormal: those have level 0, as zeros have."""
    bits = (x * factor).to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    tiny = tl.max(((magnitude != 0) & (magnitude < 0x00800000)).to(tl.int32), axis=0)
    return tl.histogram((bits >> 23) & 511, 512), tiny


@triton.jit
def _tiny_bins(at, size, factor, counters, SUB: tl.constexpr):
    """The subnormal elements, one by one."""
    for start in range(0, size, SUB):
        offsets = start + tl.arange(0, SUB)
        x = widened(tl.load(at + offsets, mask=offsets < size, other=0))
        bits = (x * factor).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        # The exponent of a subnormal number is that of its bits read as a whole number.
        lead = (magnitude.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        tiny = (magnitude != 0) & (magnitude < 0x00800000)
        key = 512 + ((bits >> 26) & 32) + lead
        tl.atomic_add(counters + key, 1, mask=tiny, sem="relaxed")


@triton.jit
def _mark_rows(at, size, times, now, length, into, zeros, TILE: tl.constexpr, SUB: tl.constexpr):
    """Note for every row of this tile that has an element other than zero that it was now.

    `times` are those of the tile's rows, `into` is its place in the first of them.
    """
    if zeros == 0:
        if length >= TILE:  # at most two rows
            row = tl.arange(0, 2)
            tl.store(times + row, row * 0 + now, mask=row * (length - into) < size)
        else:
            many = (into + size - 1) // length.to(tl.int32) + 1
            for start in range(0, many, SUB):
                row = start + tl.arange(0, SUB)
                tl.store(times + row, row * 0 + now, mask=row < many)
    elif zeros < size:
        share = 1.0 / tl.maximum(length, 1).to(tl.float32)
        for start in range(0, size, SUB):
            offsets = start + tl.arange(0, SUB)
            x = widened(tl.load(at + offsets, mask=offsets < size, other=0))
            if length >= TILE:
                row = (offsets >= length - into).to(tl.int32)
            else:  # small whole numbers: the product is exact enough to be rounded down
                row = (((into + offsets).to(tl.float32) + 0.5) * share).to(tl.int32)
            tl.store(times + row, offsets * 0 + now, mask=x != 0.0)


@triton.jit
def _rows_ahead(into, length, TILE: tl.constexpr):
    """How many rows further the next tile begins."""
    after = into + TILE
    if length >= TILE:
        ahead = (after >= length).to(tl.int64)
    else:  # small numbers: a division of 32 bits takes a third of the time
        ahead = (after.to(tl.int32) // length.to(tl.int32)).to(tl.int64)
    return ahead


# -- one program: some tiles of one tensor ---------------------------------------------------------


@triton.jit
def _load_or(address, kind: tl.constexpr, other):
    """The number at an address; `other` where the address is 0."""
    there = address != 0
    return tl.load(address.to(tl.pointer_type(kind)), mask=there, other=other)


@triton.jit
def whose(programs, first):
    """Number of this program, which tensor it works on, and which stretch of it."""
    number = (tl.program_id(0) + first).to(tl.int64)
    tensor = tl.load(programs + number * 2).to(tl.int64)
    return number, tensor, tl.load(programs + number * 2 + 1).to(tl.int64)


@triton.jit
def _leave(
    floats, ints, n, zeros, nan, pos_inf, exponent, mean, s1, s2, s3, s4, absolute, low, high
):
    tl.store(floats + 0, mean)
    tl.store(floats + 1, s1)
    tl.store(floats + 2, s2)
    tl.store(floats + 3, s3)
    tl.store(floats + 4, s4)
    tl.store(floats + 5, absolute)
    tl.store(floats + 6, low)
    tl.store(floats + 7, high)
    tl.store(ints + 0, n)
    tl.store(ints + 1, zeros)
    tl.store(ints + 2, nan)
    tl.store(ints + 3, pos_inf)
    tl.store(ints + 4, exponent)


@triton.jit(do_not_specialize=["first", "tiles"])  # or some values would compile anew
def measure(
    table, programs, floats, ints, sketches, words, counters, first, tiles,
    DTYPE: tl.constexpr, TILE: tl.constexpr, SUB: tl.constexpr, ALIGNED: tl.constexpr,
    HISTOGRAM: tl.constexpr, SKETCHED: tl.constexpr, HASHED: tl.constexpr,
):  # fmt: skip
    """Left behind by program p: floats[p] (mean, four sums, magnitudes, least, most), ints[p]
    (count, zeros, NaN, +Inf, exponent), sketches[p], words[p]; rows' times, counters."""
    number, tensor, stretch = whose(programs, first)
    line = table + tensor * COLUMNS
    begin = stretch * tiles * TILE
    total = tl.minimum(tl.load(line + 1) - begin, tiles * TILE).to(tl.int32)
    here = tl.load(line).to(tl.pointer_type(DTYPE)) + begin
    place = tl.load(line + 7) + begin
    length = tl.load(line + 3)
    row = begin // tl.maximum(length, 1)
    into = begin - row * length
    times = tl.load(line + 4).to(tl.pointer_type(tl.int32)) + row
    now = tl.load(line + 5).to(tl.int32)
    marking = (length > 0) & (_load_or(tl.load(line + 11), tl.float32, 0.0) == 0.0)
    factor = _load_or(tl.load(line + 10), tl.float64, 1.0).to(tl.float32)
    bunch_bits = tl.where(tl.load(line + 8) > 65536, 3, 0)
    found = tl.zeros([512], tl.int32)
    sums = tl.zeros([32], tl.float32)
    word = begin * 0
    n, zeros, nan, pos, e, mean, s1, s2, s3, s4, absolute, low, high = _nothing(total * 0)
    for start in range(0, total, TILE):
        size = tl.minimum(total - start, TILE)
        at = here + start
        tn, tz, tnan, tpos, te, tm, t1, t2, t3, t4, ta, least, most, tiny, found, word = _tile(
            here, start, size, place, factor, found, word, ALIGNED, TILE, SUB, HISTOGRAM, HASHED
        )
        if tiny > 0:
            _tiny_bins(at, size, factor, counters + tensor * BINS, SUB)
        if marking:
            _mark_rows(at, size, times, now, length, into, tz, TILE, SUB)
            ahead = _rows_ahead(into, length, TILE)
            times += ahead
            into += TILE - ahead * length
        # Both in units of the larger; what is too small for them does not count.
        unit = tl.maximum(e, te)
        u, v = two_to(e - unit), two_to(te - unit)
        if SKETCHED:
            signed = _sketch(at, size, place + start, tl.load(line + 6), bunch_bits, -te, 16)
            sums = sums * u + signed * v
        mean, s1, s2, s3, s4 = _joined(n, mean, s1, s2, s3, s4, u, tn, tm, t1, t2, t3, t4, v)
        absolute = absolute * u + ta * v
        n, zeros, nan, pos, e = n + tn, zeros + tz, nan + tnan, pos + tpos, unit
        low, high = tl.minimum(low, least), tl.maximum(high, most)
    _leave(floats + number * 8, ints + number * 8, n, zeros, nan, pos, e, mean, s1, s2, s3, s4,
           absolute, low, high)  # fmt: skip
    if HISTOGRAM:
        key = tl.arange(0, 512)
        used = (found > 0) & ((key & 255) > 0) & ((key & 255) < 255)  # neither zero nor infinite
        tl.atomic_add(counters + tensor * BINS + key, found, mask=used, sem="relaxed")
    if SKETCHED:
        tl.store(sketches + number * 32 + tl.arange(0, 32), sums)
    if HASHED:
        tl.store(words + number, word)
