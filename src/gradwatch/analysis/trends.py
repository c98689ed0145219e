"""Numbers and tests of series, all columns of a table at once: trend, turning points, spread.

Every function takes values [step, column] in time order, NaN (or Inf) where a sample is absent, and
gives one number for each column: NaN where it has too few samples. Given logarithms, none depends
on the unit of the series. The forms for one series say None instead of NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEWEST = 8
"""Samples below which no test is made."""
FEWEST_MONOTONE = 5
"""Samples that make a trend where none of them turns back."""
SIGNIFICANT = 0.03
OSCILLATING_Z = 2.33
MOST = 128
"""Samples a trend is tested on; a longer series is averaged over as many stretches."""
COSINES = 6
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Trends:
    """Kendall's τ_b of value against step, and the two-sided p-value of the trend test."""

    tau: Array
    p: Array

    @property
    def rising(self) -> NDArray[np.bool_]:
        """Which columns rise significantly."""
        return np.asarray((self.tau > 0) & (self.p < SIGNIFICANT))

    @property
    def falling(self) -> NDArray[np.bool_]:
        """Which columns fall significantly."""
        return np.asarray((self.tau < 0) & (self.p < SIGNIFICANT))

    @property
    def fall(self) -> Array:
        """−τ_b where a column falls significantly, else 0; NaN where nothing was tested."""
        return np.where(self.falling, -self.tau, 0.0 * np.abs(self.tau))


@dataclass(frozen=True, slots=True)
class Lines:
    """Least squares of value on step: slope per step, its standard error, spread of the rest."""

    slope: Array
    slope_error: Array
    intercept: Array
    spread: Array

    @property
    def stability(self) -> Array:
        """1 on the line, towards 0 the further the samples lie about it."""
        return 1 / (1 + self.spread)


def finite(values: Array) -> Array:
    """The finite values, in order."""
    return values[np.isfinite(values)]


def logs(values: Array) -> Array:
    """ln of the positive values; NaN elsewhere."""
    return np.log(values, out=np.full(values.shape, np.nan), where=values > 0)


# -- trend -----------------------------------------------------------------------------------------


def trends(values: Array) -> Trends:
    """Which columns rise or fall, tested against noise with long memory.

    The test looks at the ranks of the samples. Noise puts power into every cosine of the time axis,
    long memory (1/f noise) more into the slow ones: k·c_k² is then alike for all k. A trend shows
    in the slowest, so c_1 / √(mean of k·c_k², k = 2 … 7) is Student's t with 6 degrees of freedom.
    Of white and of pink noise at most one series in twenty passes; a random walk, which does leave
    where it was, passes one time in five. A column of five or more samples that never turns back
    has its trend without a test: there is no noise to test it against, and p is 0.
    """
    tau, p = np.full((2, values.shape[1]), np.nan)
    width = max(1, min(CHUNK, (1 << 22) // max(len(values), 1)))
    for begin in range(0, values.shape[1] if len(values) else 0, width):
        part = slice(begin, begin + width)
        x = values[:, part]
        tau[part], p[part] = _tested(np.where(np.isfinite(x), x, np.nan))
    return Trends(tau, p)


def _tested(x: Array) -> tuple[Array, Array]:
    samples = np.isfinite(x).sum(axis=0)
    fell, rose = (x < np.fmax.accumulate(x)).any(axis=0), (x > np.fmin.accumulate(x)).any(axis=0)
    x = packed(_averaged(x))
    counts = np.isfinite(x).sum(axis=0)
    before, after, untied = _compared(x)
    score, pairs = before.sum(axis=0), counts * (counts - 1) / 2
    tau = np.zeros(len(score))
    np.divide(score, np.sqrt(pairs * untied.sum(axis=0)), out=tau, where=untied.any(axis=0))
    p = np.full(len(score), np.nan)
    for count in np.unique(counts[samples >= FEWEST]):  # the cosines depend on the length
        alike = np.flatnonzero((counts == count) & (samples >= FEWEST))
        ranks = (before[:count, alike] + after[:count, alike]).astype(float)
        p[alike] = _chance(ranks)
    p[(fell != rose) & (samples >= FEWEST_MONOTONE)] = 0.0
    return np.where(np.isnan(p), np.nan, tau), p


def _averaged(x: Array) -> Array:
    """Means over `MOST` stretches where there are more rows: pairs cost their square."""
    if len(x) <= MOST:
        return x
    starts = np.linspace(0, len(x), MOST + 1).astype(np.intp)[:-1]
    present = np.isfinite(x)
    counts = np.add.reduceat(present, starts, axis=0, dtype=float)
    sums = np.add.reduceat(np.where(present, x, 0.0), starts, axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _compared(x: Array) -> tuple[NDArray[np.int8], ...]:
    """For each sample: earlier ones below less above it, later ones so, earlier ones not equal."""
    # No count exceeds MOST − 1, which an int8 just holds; NaN compares as neither.
    x = np.ascontiguousarray(x)
    before, after, untied = (np.zeros(x.shape, np.int8) for _ in range(3))
    for lag in range(1, len(x)):
        later, earlier = x[lag:], x[:-lag]
        signs = (later > earlier).view(np.int8) - (later < earlier).view(np.int8)
        before[lag:] += signs
        after[:-lag] -= signs
        untied[lag:] += signs & 1
    return before, after, untied


def _chance(ranks: Array) -> Array:
    """Two-sided p-value of the slowest cosine of ranks [step, column] against the next six."""
    angles = np.pi * (np.arange(len(ranks)) + 0.5) / len(ranks)
    k = np.arange(1, COSINES + 2)
    powers = k[:, None] * (np.cos(k[:, None] * angles) @ ranks) ** 2
    noise, slow = powers[1:].sum(axis=0), powers[0]
    total = noise + slow
    moved = total > 1e-9 * len(ranks)
    share = np.divide(noise, total, out=np.ones(len(total)), where=moved)
    # Student's distribution with six degrees of freedom; cos² = 6 / (6 + t²) = noise / total.
    inside = np.sqrt(1 - share) * (1 + share / 2 + 3 / 8 * share**2)
    return np.asarray(np.where(moved, 1 - inside, 1.0))


# -- the other numbers -----------------------------------------------------------------------------


def packed(values: Array) -> Array:
    """The samples of each column moved together at its head, in order; NaN below them."""
    absent = ~np.isfinite(values)
    ragged = np.flatnonzero(absent.any(axis=0))
    if not len(ragged):
        return values
    out = np.array(values)
    order = np.argsort(absent[:, ragged], axis=0, kind="stable")
    columns = np.take_along_axis(values[:, ragged], order, 0)
    out[:, ragged] = np.where(np.isfinite(columns), columns, np.nan)
    return out


def centred(values: Array, present: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Mean of what is present in each column, 0 without any; values less that, 0 where absent."""
    mean = np.where(present, values, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return mean, np.where(present, values - mean, 0.0)


def lines(steps: NDArray[np.int64], values: Array) -> Lines:
    """Centred least squares of every column; NaN below three samples.

    The steps are the same for all columns, or given for each, as the values are.
    """
    present = np.isfinite(values)
    n = present.sum(axis=0)
    enough = n >= 3
    times = steps[:, None] if steps.ndim == 1 else steps
    start = times[:1].sum(axis=0).astype(float)
    level, y = centred(values, present)
    middle, t = centred(times - start, present)
    across = np.where(enough, (t * t).sum(axis=0), np.nan)
    slope = (t * y).sum(axis=0) / across
    rest = y - slope * t
    spread = np.sqrt((rest * rest).sum(axis=0) / np.where(enough, n, np.nan))
    error = spread * np.sqrt(n / np.maximum(n - 2, 1) / across)
    return Lines(slope, error, level - slope * (middle + start), spread)


def volatilities(values: Array) -> Array:
    """Mean size of the change from one sample to the next; NaN below two."""
    changes = np.abs(np.diff(packed(values), axis=0))
    counts = np.isfinite(changes).sum(axis=0)
    return np.asarray(np.nansum(changes, axis=0) / np.where(counts > 0, counts, np.nan))


def turns(values: Array) -> NDArray[np.int64]:
    """How often each column changes direction."""
    changes = np.nan_to_num(np.diff(packed(values), axis=0))
    if len(changes) < 2:
        return np.zeros(values.shape[1], np.int64)
    # Where nothing changes, the direction is that of the last change.
    rows = np.where(changes != 0, np.arange(len(changes))[:, None], 0)
    directions = np.sign(np.take_along_axis(changes, np.maximum.accumulate(rows), 0))
    moving = changes[1:] != 0
    return np.asarray((moving & (directions[1:] * directions[:-1] < 0)).sum(axis=0))


def oscillating(values: Array) -> NDArray[np.bool_]:
    """Which columns turn more often than chance, each step undoing the one before it.

    Independent noise turns on two thirds of its steps, so a count alone says nothing: the excess
    must be significant and the lag-1 autocorrelation of the detrended series below −1.96/√n.
    """
    rest, n = _detrended(values)
    expected, variance = 2 * (n - 2) / 3, np.maximum(16 * n - 29, 1) / 90
    excess = (turns(values) - expected) / np.sqrt(variance)
    undone = autocorrelations(rest) < -1.96 / np.sqrt(np.maximum(n, 1))
    return np.asarray((n >= FEWEST) & (excess > OSCILLATING_Z) & undone)


def smoothnesses(values: Array) -> Array:
    """1 − η/4 with von Neumann's ratio η of the detrended series: 1 smooth, ½ noise, 0 zig-zag."""
    rest, n = _detrended(values)
    total = np.nansum(rest * rest, axis=0)
    level = total > 1e-24 * n
    changes = np.nansum(np.diff(rest, axis=0) ** 2, axis=0)
    ratio = np.divide(changes, total, out=np.zeros(len(total)), where=level)
    return np.where(n >= 3, 1 - np.minimum(ratio, 4.0) / 4, np.nan)


def moments(values: Array) -> tuple[Array, Array, Array, Array]:
    """Mean, standard deviation, skewness, excess kurtosis; the last two 0 where nothing varies."""
    present = np.isfinite(values)
    n = present.sum(axis=0)
    x = np.where(present, values, 0.0)
    # Scaled, by a power of two as that does not round: squares beyond 1e±154 leave the range.
    _, exponent = np.frexp(np.abs(x).max(axis=0, initial=0.0))
    x = np.ldexp(x, -exponent)
    count = np.where(n > 0, n, np.nan)
    mean = x.sum(axis=0) / count
    x = np.where(present, x - mean, 0.0)
    std = np.sqrt((x * x).sum(axis=0) / count)
    varied = std > 8 * np.finfo(float).eps
    z = np.divide(x, std, out=np.zeros(x.shape), where=varied)
    z2 = z * z
    skew = (z2 * z).sum(axis=0) / count
    kurt = np.where(varied, (z2 * z2).sum(axis=0) / count - 3, 0.0 * count)
    return np.ldexp(mean, exponent), np.ldexp(std, exponent), skew, kurt


def percentiles(values: Array, shares: Sequence[float]) -> list[Array]:
    """For each share q of 0 … 1 the values at q(n−1) of the sorted columns, linear between two."""
    if not len(values):
        return [np.full(values.shape[1], np.nan) for _ in shares]
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)  # NaN sorts last
    last = np.maximum(np.isfinite(ordered).sum(axis=0) - 1, 0)
    found = []
    for share in shares:
        at = share * last
        row = np.floor(at).astype(np.intp)
        low = np.take_along_axis(ordered, row[None], 0)[0]
        high = np.take_along_axis(ordered, np.minimum(row + 1, last)[None], 0)[0]
        found.append(low + (at - row) * (high - low))
    return found


def autocorrelations(x: Array) -> Array:
    """Of packed, centred columns with the sample before; 0 where nothing varies."""
    total = np.nansum(x * x, axis=0)
    products = np.nansum(x[1:] * x[:-1], axis=0)
    return np.asarray(np.divide(products, total, out=np.zeros(len(total)), where=total > 0))


def _detrended(values: Array) -> tuple[Array, NDArray[np.int64]]:
    """Packed columns less their line over the sample's number; how many samples each has."""
    x = packed(values)
    at = np.arange(len(x), dtype=np.int64)
    fit = lines(at, x)
    known = np.isfinite(fit.slope)
    rest: Array = x - np.where(known, fit.intercept + fit.slope * at[:, None], 0.0)
    return rest, np.isfinite(x).sum(axis=0)


def line_weights(t: Array, at: float) -> tuple[Array, Array]:
    """What a least-squares line multiplies the samples with: for its value at a step, its slope."""
    centred = t - t.mean()
    slope = centred / (centred @ centred)
    return 1 / len(t) + (at - t.mean()) * slope, slope


def student_95(freedom: float) -> float:
    """How many standard errors hold 95 % of Student's distribution, by Cornish and Fisher."""
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


# -- one series ------------------------------------------------------------------------------------


def trend(values: Array) -> Trends | None:
    """`trends` of one series, of no dimension; None where it has too few samples."""
    of = trends(values[:, None])
    return None if np.isnan(of.tau[0]) else Trends(of.tau.reshape(()), of.p.reshape(()))


def line(steps: NDArray[np.int64], values: Array) -> Lines | None:
    """`lines` of one series, of no dimension; None below three samples."""
    fit = lines(steps, values[:, None])
    numbers = (fit.slope, fit.slope_error, fit.intercept, fit.spread)
    return None if np.isnan(fit.slope[0]) else Lines(*(x.reshape(()) for x in numbers))


def oscillates(values: Array) -> bool:
    """`oscillating` of one series."""
    return bool(oscillating(values[:, None])[0])


def periodic(values: Array) -> bool:
    """Whether one frequency stands out of the finite samples: Fisher's test, p below 0.001.

    Up to 4,096 samples of the end are looked at, without their line and the two slowest waves, and
    less what the sample before foretells: memory fills the slow waves too.
    """
    rest, n = _detrended(finite(values)[-4096:, None])
    if n[0] < 2 * FEWEST:
        return False
    fresh = rest[1:, 0] - autocorrelations(rest)[0] * rest[:-1, 0]
    powers = np.abs(np.fft.rfft(fresh))[3:] ** 2
    total = float(powers.sum())
    if total <= 1e-24 * float(n[0]) ** 2:
        return False
    return bool(len(powers) * (1 - powers.max() / total) ** (len(powers) - 1) < 0.001)
