"""What is computed on slabs: moments, sketches, histograms and hashes of chunks of 1024 elements.

Nothing is read from the device here, and no operation is used that would have to: no masks as
indices, no counting by value. Reductions keep the type of what they read: asked for another one,
torch first writes a copy of everything in that type. So masks are counted by bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS, SKETCH_WIDTH
from gradwatch.kernel.batch import DOUBLE_BINS, FLOAT_BINS
from gradwatch.record.device.engine import MOST_MEMORY
from gradwatch.record.device.slabs import CHUNK, Layout
from gradwatch.record.device.transfer import cleaned, sent_to

WORK = MOST_MEMORY - 6_000_000
"""Bytes for a slab and all that is made of it."""
_INFINITY = float("inf")


# -- floats by their bits ----------------------------------------------------------------------


@dataclass(frozen=True)
class FloatForm:
    """How a type keeps its exponent."""

    integer: torch.dtype
    fraction: int
    exponent: int
    lift: int
    """Power of two by which subnormal numbers are raised, so that they have an exponent."""
    bins: tuple[int, int]

    @property
    def keys(self) -> int:
        """Sign and exponent, each once as they are and once lifted."""
        return 4 << self.exponent

    @property
    def mask(self) -> int:
        """The bits of the exponent."""
        return ((1 << self.exponent) - 1) << self.fraction


FORMS = {
    torch.float32: FloatForm(torch.int32, 23, 8, 32, FLOAT_BINS),
    torch.float64: FloatForm(torch.int64, 52, 11, 64, DOUBLE_BINS),
}
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def units(largest: Tensor) -> tuple[Tensor, Tensor]:
    """Powers of two near these magnitudes, and their inverses, exactly."""
    form = FORMS[largest.dtype]
    one, last = 1 << form.fraction, (1 << form.exponent) - 3
    bits = (largest.view(form.integer) & form.mask).clamp_(one, last * one)
    return bits.view(largest.dtype), ((last + 1) * one - bits).view(largest.dtype)


def count(mask: Tensor) -> Tensor:
    """[line, 8]: how many are true in each eighth of a line of 1024; a byte holds the answer."""
    return mask.view(torch.uint8).view(-1, 8, CHUNK // 8).sum(2, dtype=torch.uint8)


def counts_of(*eighths: Tensor, dtype: torch.dtype) -> Tensor:
    """[mask, line], from what `count` gives; a mask is thrown away before the next one is made."""
    return torch.stack(eighths).sum(2, dtype=dtype)


# -- moments -----------------------------------------------------------------------------------

_FINITE, _NAN, _ABOVE, _NONZERO, _SIZE, _CENTRE, _LOW, _HIGH, _UNIT, _S1, _S2, _S3, _S4 = range(13)


def chunk_sums(x: Tensor) -> Tensor:
    """[13, chunk]: all that moments need, of chunks of float32 or float64.

    Elements that are not finite are replaced by the mean of the others: then they are no extremes,
    and nothing at all once the mean is taken off. Powers are of the distance to the mean in units
    of the largest magnitude, so that none leaves the range of the type. One copy is worked on in
    place, so that little memory is taken.
    """
    nonzero = torch.linalg.vector_norm(x, 0, dim=1)
    nans, infinities = count(x != x), count(x == _INFINITY)
    clean = x.nan_to_num(0.0, 0.0, 0.0)
    good = clean == x
    finite, nan, above = counts_of(count(good), nans, infinities, dtype=x.dtype)
    size = torch.linalg.vector_norm(clean, 1, dim=1)
    # Sums of giants leave the range: then 0 is near enough to be the centre of powers.
    centre = (clean.sum(1) / finite).nan_to_num_(0.0, 0.0, 0.0)
    torch.where(good, clean, centre[:, None], out=clean)
    del good
    low, high = clean.aminmax(dim=1)
    unit, inverse = units(torch.maximum(high, -low))
    shift = (centre * inverse)[:, None]
    away = torch.addcmul(shift, clean, inverse[:, None], value=-1, out=clean)
    s1 = away.sum(1)
    s2 = torch.linalg.vector_norm(away, 2, dim=1)
    s4 = torch.linalg.vector_norm(away, 4, dim=1)
    s3 = away.pow_(3).sum(1)
    return torch.stack([finite, nan, above, nonzero, size, centre, low, high, unit, s1, s2, s3, s4])


RESULTS = 12


def merged_sums(layout: Layout, sums: Tensor) -> Tensor:
    """[12, tensor + 1]: of whole tensors, from the sums of their chunks.

    Moments about the whole's mean are made of those about the chunks', in units of the tensor's
    largest magnitude: nothing cancels, nothing leaves the range. As the chunks' sums are of the
    distances from elements to the centre, mean and third moment have the other sign.
    """
    n, centre = sums[_FINITE], sums[_CENTRE]
    ends = _ends(layout, sums)
    scale, inverse = units(ends.abs().amax(0).nan_to_num_(0.0, 0.0, 0.0))
    inverse = layout.of_owner(inverse)
    unit = sums[_UNIT] * inverse
    d1, d2, d3, d4 = sums[_S1], sums[_S2] ** 2, sums[_S3], sums[_S4] ** 4
    # What the rounded centre missed of the chunk's mean is r: powers about the mean itself.
    r = d1 / n.clamp_min(1)
    missed = r * d1
    c2 = d2 - missed
    c3 = torch.addcmul(d3, r, (3 * d2).sub_(missed, alpha=2), value=-1)
    inner = torch.addcmul(4 * d3, r, (6 * d2).sub_(missed, alpha=3), value=-1)
    c4 = torch.addcmul(d4, r, inner, value=-1)
    c2, c3, c4 = torch.stack([c2, c3, c4]) * unit ** _exponents(unit.device)
    mean = torch.addcmul(r * unit, centre, inverse, value=-1)
    weighed = torch.stack([sums[_SIZE] * inverse, n * mean])
    counted = layout.sums(torch.cat([sums[:_SIZE], weighed]))
    middle = counted[-1:] / counted[:1].clamp_min(1)
    delta = mean - layout.of_owner(middle[0])
    square = delta * delta
    apart = n * square
    m2 = c2 + apart
    m3 = torch.addcmul(c3, delta, torch.add(apart, c2, alpha=3))
    m4 = torch.addcmul(c4, delta, torch.addcmul(4 * c3, delta, torch.add(apart, c2, alpha=6)))
    powers = layout.sums(torch.stack([m2, m3, m4]))
    return torch.cat([counted[:-1], middle, ends, scale[None], powers])


def _ends(layout: Layout, sums: Tensor) -> Tensor:
    """[2, tensor + 1]: the smallest element, and the largest one negated; Inf where none is."""
    n, ends = sums[_FINITE], sums[_LOW : _HIGH + 1]
    # Where some were replaced by the mean and this is an extreme, all others are the other one.
    wrong = (ends == sums[_CENTRE]) & (n < CHUNK)
    ends = torch.where(wrong, ends.flip(0), ends) * _signs(sums.device)
    return layout.least(torch.where(n > 0, ends, _INFINITY))


@lru_cache(maxsize=16)
def _signs(device: torch.device) -> Tensor:
    return sent_to(device, np.array([[1.0], [-1.0]], np.float32))


@lru_cache(maxsize=16)
def _exponents(device: torch.device) -> Tensor:
    return sent_to(device, np.array([[2], [3], [4]]))


def records_of(
    numbers: NDArray[np.float64], counts: NDArray[np.int64], room: NDArray[np.int64]
) -> NDArray[np.void]:
    """The kernel's records, from what `merged_sums` gives.

    `counts` are the tensors' elements, `room` what they took in slabs: the rest of it was NaN.
    """
    n, nan, above, nonzero, size, mean, low, high, scale, m2, m3, m4 = numbers
    mean, high, m3 = -mean, -high, -m3
    records = np.zeros(len(counts), MOMENTS)
    records["count"], records["pos_inf"], records["zeros"] = counts, above, room - nonzero
    records["nan"] = nan - (room - counts)
    records["neg_inf"] = room - n - nan - above
    with np.errstate(all="ignore"):  # tensors without a finite element, and constant ones
        share = np.where(n > 0, n, np.nan)
        deviation = np.sqrt(np.maximum(m2, 0.0) / share)
        shape = np.where((low == high) | (deviation == 0), np.nan, deviation)
        records["mean"] = np.where(low == high, low, mean * scale)
        records["std"] = np.where(low == high, 0.0, deviation * scale)
        records["skewness"] = m3 / share / shape**3
        records["kurtosis"] = m4 / share / shape**4 - 3
        records["norm"] = np.sqrt(share) * np.hypot(records["mean"], records["std"])
        # Of giants whose sum leaves the range of the type it is not known.
        records["abs_mean"] = np.where(np.isfinite(size), size, np.nan) / share * scale
        records["min"], records["max"] = low, high
        records["abs_max"] = np.maximum(np.abs(low), np.abs(high))
    for name in ("mean", "std", "min", "max", "abs_max"):
        records[name][n == 0] = np.nan
    return records


# -- sketches ----------------------------------------------------------------------------------

_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
EVERY_GROUP_UP_TO, BUNCH = 65_536, 8
SPAN = BUNCH * SKETCH_WIDTH
AT_ONCE = 3 << 19


def _scramble(word: Tensor) -> Tensor:
    """splitmix64's finisher, in numbers that have a sign."""
    word = (word ^ _shifted(word, 30)) * _FIRST
    word = (word ^ _shifted(word, 27)) * _SECOND
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, by: int) -> Tensor:
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)


def sketch_words(seeds: Tensor, first: Tensor, parts: Tensor, bunch: int) -> Tensor:
    """[chunk, word]: what says which groups of 32 are taken, and how (see `kernel.sketch`).

    `seeds` and `first` are, for each chunk, those of its tensor: what scrambles it, and the number
    of its first bunch in the whole; `parts` are the numbers of the chunks in their tensors.
    """
    words = CHUNK // (bunch * SKETCH_WIDTH)
    bunches = (first + parts * words)[:, None] + _lanes(seeds.device)[:words]
    return _scramble(seeds[:, None] + bunches * _GOLDEN)


def chunk_sketches(x: Tensor, words: Tensor, bunch: int) -> Tensor:
    """[chunk, 32]: signed sums of the groups of 32 that are taken."""
    lanes = _lanes(x.device)[:SKETCH_WIDTH]
    starts = _lanes(x.device)[:: bunch * SKETCH_WIDTH]
    step = max(1, AT_ONCE // (words.shape[1] * SKETCH_WIDTH))
    sums = []
    for begin in range(0, len(x), step):
        word = words[begin : begin + step, :, None]
        lane = (lanes - ((word >> 32) & 31)) & 31
        column = lane + starts[:, None]
        if bunch > 1:
            column += ((word >> 37) & (bunch - 1)) * SKETCH_WIDTH
        taken = cleaned(x[begin : begin + step].gather(1, column.view(len(word), -1)))
        taken = taken.view(lane.shape)
        minus = ((word >> lane) & 1).to(x.dtype)
        sums.append(taken.addcmul(taken, minus, value=-2).sum(1))
        del lane, column, taken, minus  # before the next ones are made
    return sums[0] if len(sums) == 1 else torch.cat(sums)


@lru_cache(maxsize=16)
def _lanes(device: torch.device) -> Tensor:
    return torch.arange(CHUNK, device=device)


# -- histograms --------------------------------------------------------------------------------

SETS = 8
"""Large tensors get so many sets of counters: their elements would stand in line for a few."""


def count_bins(
    x: Tensor, lines: Tensor, counters: Tensor, factor: Tensor | None, work: int
) -> Tensor:
    """Count sign and exponent of every element (times `factor`) in its chunk's line of counters.

    Without a wait: `torch.bincount` asks the device for its largest number, and `torch.histc`
    refuses to be deterministic; adding ones to counters of whole numbers does neither. With `x` at
    most `work` bytes are taken at once.
    """
    form = FORMS[x.dtype]
    one = torch.ones((), dtype=counters.dtype, device=x.device)
    starts = lines.to(torch.int64)[:, None] * form.keys
    step = max(1, (work - x.nbytes) // (17 * x.itemsize // 4) // CHUNK)
    for begin in range(0, len(x), step):
        some = x[begin : begin + step]
        if factor is not None:
            some = some * factor.to(x.dtype)
        small = (some.view(form.integer) & form.mask) == 0
        lifted = torch.where(small, some * 2.0**form.lift, some).view(form.integer)
        keys = lifted.bitwise_right_shift_(form.fraction).bitwise_and_((2 << form.exponent) - 1)
        keys.add_(small, alpha=2 << form.exponent)
        places = (keys + starts[begin : begin + step]).view(-1)
        counters.view(-1).scatter_add_(0, places, one.expand(places.shape))
        del some, small, lifted, keys, places  # before the next ones are made
    return counters


def dense_bins(counts: NDArray[np.float64], form: FloatForm) -> NDArray[np.uint64]:
    """[tensor, negative | positive, exponent] as the kernel counts, from sets of `count_bins`."""
    lowest, width = form.bins
    last = (1 << form.exponent) - 2
    start = 2 - (1 << (form.exponent - 1)) - lowest
    dense = np.zeros((len(counts), 2, width), np.uint64)
    # [tensor, lifted, sign, biased exponent]; exponent 0 is zero, the last is not finite
    table = counts.astype(np.uint64).reshape(len(counts), 2, 2, -1)[..., 1 : last + 1]
    dense[..., start:] += table[:, 0, ::-1]
    cut = max(form.lift - start, 0)  # no element is smaller than the first of the kernel's bins
    lifted = table[:, 1, ::-1, cut:]
    dense[..., start - form.lift + cut :][..., : lifted.shape[-1]] += lifted
    return dense


# -- hashes ------------------------------------------------------------------------------------

SHIFTS = (0, 16, 32, 48)


def chunk_hashes(x: Tensor, dtype: torch.dtype, where: Tensor, work: int, *, gaps: bool) -> Tensor:
    """[chunk]: hashes of the bits and of where they are, as `kernel.hashes` has them; they add up.

    `dtype` is what the elements were before they were widened; `where` comes from `hash_places`.
    Without `gaps` all elements are the tensors'. With `x` at most `work` bytes are taken at once.
    """
    lanes = _lanes(x.device)
    within, (marks, starts, stops) = _marks(x.device), where
    step = max(1, (work - x.nbytes) // 17 // CHUNK)
    sums = []
    for begin in range(0, len(x), step):
        here = slice(begin, begin + step)
        words = _words(x[here], dtype).add_(marks[here, None]).add_(within)
        low, high = words.view(torch.int32).view(*words.shape, 2).unbind(-1)
        low ^= high  # words ^= words >> 32
        words *= _FIRST
        words ^= _shifted(words, 29)
        if gaps:
            words *= (lanes >= starts[here, None]) & (lanes < stops[here, None])
        sums.append(words.sum(1))
        del words  # before the next ones are made
    return torch.cat(sums)


def hash_places(parts: Tensor, spans: Tensor) -> Tensor:
    """[3, chunk]: what marks a chunk's place in the whole, where in it its tensor begins and ends.

    `spans` are places in the whole: of the tensor's first chunk and element, and behind its last.
    """
    first = torch.add(spans[0], parts, alpha=CHUNK)
    return torch.stack([first * _GOLDEN, spans[1] - first, spans[2] - first])


@lru_cache(maxsize=16)
def _marks(device: torch.device) -> Tensor:
    return _lanes(device) * _GOLDEN


def _words(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of the elements as they were in this type, as numbers without a sign."""
    if dtype is torch.bfloat16:  # the upper half of a float32, to the bit
        words = x.view(torch.int32).to(torch.int64)
        return words.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    bits = x.to(dtype).view(BITS[dtype.itemsize])
    words = bits.to(torch.int64, copy=True)
    return words if dtype.itemsize == 8 else words.bitwise_and_((1 << 8 * dtype.itemsize) - 1)


def hashes_of(numbers: NDArray[np.float64]) -> NDArray[np.uint64]:
    """From four 16-bit numbers each, which any float holds."""
    words = numbers.reshape(-1, len(SHIFTS)).astype(np.uint64) << np.array(SHIFTS, np.uint64)
    hashes: NDArray[np.uint64] = np.bitwise_or.reduce(words, axis=1)
    return hashes
