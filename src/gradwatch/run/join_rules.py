"""The statistics of a whole from those of its parts: shards of a tensor, shares of a batch.

`RULES` has the rule of each. Parts go by one after another and are joined in this order, cell by
cell, so that the same parts always give the same bits, and many need little more memory than one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Kind, Stat

Table = NDArray[np.float64]
"""Values [step, subject]; NaN where there is none."""


class Parts(Protocol):
    """What the rules look at."""

    def of(self, stat: Stat) -> Iterator[Table]:
        """A statistic of part after part."""

    def sizes(self) -> Iterator[Table]:
        """How many elements each part has of each subject."""

    @property
    def cut_rows(self) -> NDArray[np.bool_]:
        """Of which subjects a row lies in several parts."""


Rule = Callable[[Parts, Stat], Table]


# -- sums and extremes -----------------------------------------------------------------------------


def _low(parts: Parts, stat: Stat) -> Table:
    return reduce(np.fmin, parts.of(stat))


def _high(parts: Parts, stat: Stat) -> Table:
    return reduce(np.fmax, parts.of(stat))


def _sum(parts: Parts, stat: Stat) -> Table:
    return _total(parts.of(stat))


def _norm(parts: Parts, stat: Stat) -> Table:
    return _total(parts.of(stat), np.hypot)  # a sum of squares could leave the range


def _total(values: Iterable[Table], add: np.ufunc = np.add) -> Table:
    """The sum of what is there."""
    total, there = np.zeros(()), np.zeros((), bool)
    for part in values:
        absent = np.isnan(part)
        total, there = add(total, np.where(absent, 0.0, part)), there | ~absent
    return np.where(there, total, np.nan)


def _rows(parts: Parts, stat: Stat) -> Table:
    """Whole rows add up; one cut across ranks is zero only if it is on each: at most the fewest."""
    return np.where(parts.cut_rows, _low(parts, stat), _sum(parts, stat))


# -- means -----------------------------------------------------------------------------------------


def _mean(values: Iterable[Table], weights: Iterable[Table]) -> Table:
    joined = total = np.zeros(())
    for value, weight in zip(values, weights, strict=True):
        there = np.isfinite(value) & np.isfinite(weight)
        joined = joined + np.where(there, value * weight, 0.0)
        total = total + np.where(there, weight, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(joined / total)


def _by_count(parts: Parts, stat: Stat) -> Table:
    return _mean(parts.of(stat), parts.of(Stat(f"{stat.family}_count")))


def _by_finite(parts: Parts, stat: Stat) -> Table:
    return _mean(parts.of(stat), _finite(parts, stat.family))


def _by_size(parts: Parts, stat: Stat) -> Table:
    """Where a family counts nothing itself, parts weigh as many elements as they have."""
    return _mean(parts.of(stat), parts.sizes())


def _rms_by_size(parts: Parts, stat: Stat) -> Table:
    return np.sqrt(_mean((part**2 for part in parts.of(stat)), parts.sizes()))


def _finite(parts: Parts, family: Family) -> Iterator[Table]:
    """How many finite elements each part has."""
    bad = ["nonfinite"] if family is Family.ACT else ["nan", "inf"]
    columns = (parts.of(Stat(f"{family}_{name}")) for name in ("count", *bad))
    for count, *lost in zip(*columns, strict=True):
        yield np.subtract(count, sum(map(np.nan_to_num, lost)))


# -- moments ---------------------------------------------------------------------------------------

_MOMENTS = ("mean", "std", "skewness", "kurtosis")


def _moment(parts: Parts, stat: Stat) -> Table:
    """Mean, standard deviation, skewness or excess kurtosis of the parts together."""
    family, wanted = stat.family, _MOMENTS.index(_name(stat))
    # Fourth powers leave the range of float64; a common power of two (exact) keeps them inside.
    scale = reduce(np.fmax, map(np.abs, parts.of(Stat(f"{family}_abs_max"))))
    exponent = np.where(np.isfinite(scale), np.frexp(np.nan_to_num(scale))[1], 0)
    sums, centre = np.zeros((5, *scale.shape)), np.full(scale.shape, np.nan)
    moments = (parts.of(Stat(f"{family}_{name}")) for name in _MOMENTS[: wanted + 1])
    for count, *known in zip(_finite(parts, family), *moments, strict=True):
        # Moments higher than the wanted one do not matter to it: any number will do.
        mean, std, skewness, kurtosis = (*known, *[np.zeros(())] * 3)[:4]
        n = np.where(count > 0, count, 0.0)
        mean = np.ldexp(mean, -exponent)
        centre = np.where(np.isnan(centre), np.where(n > 0, mean, np.nan), centre)
        d = np.where(n > 0, mean - centre, 0.0)  # from the first part's mean
        std = np.ldexp(np.where(n > 0, std, 0.0), -exponent)
        m2 = std * std
        m3 = np.nan_to_num(skewness) * m2 * std
        m4 = np.nan_to_num(kurtosis + 3.0) * m2 * m2
        third = m3 + 3 * d * m2 + d * d * d
        fourth = m4 + 4 * d * m3 + 6 * d * d * m2 + d * d * d * d
        sums += [n, n * d, n * (m2 + d * d), n * third, n * fourth]
    with np.errstate(invalid="ignore", divide="ignore"):
        d, m2, m3, m4 = sums[1:] / np.where(sums[0] > 0, sums[0], np.nan)
        variance = np.maximum(m2 - d * d, 0.0)  # and from there to the mean of all
        spread = np.where(variance > 0, variance, np.nan)
        joined = (
            np.ldexp(centre + d, exponent),
            np.ldexp(np.sqrt(variance), exponent),
            (m3 - 3 * d * m2 + 2 * d * d * d) / (spread * np.sqrt(spread)),
            (m4 - 4 * d * m3 + 6 * d * d * m2 - 3 * d * d * d * d) / (spread * spread) - 3.0,
        )
    return np.asarray(joined[wanted])


# -- relations -------------------------------------------------------------------------------------


def _ratio(parts: Parts, stat: Stat) -> Table:
    """Norm of the whole update ÷ norm of the whole weight before it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        # The norm before the update is not stored, but it is the update's ÷ the ratio.
        both = zip(parts.of(Stat.UPDATE_NORM), parts.of(stat), strict=True)
        weight = _total((np.where(r > 0, norm / r, r) for norm, r in both), np.hypot)
        update = _norm(parts, Stat.UPDATE_NORM)
        still = np.where(update == 0, weight, np.nan)  # 0 where any part's ratio is known
        return np.where(weight > 0, update / weight, still)


def _cosine(parts: Parts, stat: Stat) -> Table:
    """With the gradient measured before: inner products of parts add up to that of the whole.

    A part's is its cosine × its norm × its norm before. Norms are exact, so only the samples of the
    cosines make this an estimate. A part without a cosine adds nothing.
    """
    norms = Stat.GRAD_NORM
    now = _norm(parts, norms)
    before = _total(map(measured_before, parts.of(norms)), np.hypot)
    both = zip(parts.of(stat), parts.of(norms), strict=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _total(c * (norm / now) * (measured_before(norm) / before) for c, norm in both)


def measured_before(table: Table) -> Table:
    """For each step and subject the last value before it; NaN where there is none."""
    steps = np.where(np.isnan(table), -1, np.arange(len(table))[:, None])
    last = np.maximum.accumulate(steps, axis=0)
    last = np.concatenate([np.full_like(last[:1], -1), last[:-1]])
    return np.where(last < 0, np.nan, np.take_along_axis(table, np.maximum(last, 0), axis=0))


# -- the rules -------------------------------------------------------------------------------------

_BY_NAME: Mapping[Rule, str] = {
    _sum: "count nan inf nonfinite input_nonfinite hash",
    _norm: "norm",
    _low: "min training",
    _high: "max abs_max row_spread",
    _rows: "zero_rows dead_rows untouched_rows",
    _moment: "mean std skewness kurtosis",
    _by_finite: "abs_mean",
    _by_count: "zero_fraction gate_zero_fraction flat_fraction entropy",
    _by_size: "lost_fraction eps_fraction",
    _rms_by_size: "ratio_rms",
    _ratio: "ratio",
    _cosine: "cosine",
}
"""Statistics without their family: those of the same name have the same rule."""


def _name(stat: Stat) -> str:
    return stat.removeprefix(f"{stat.family}_")


RULES: Mapping[Stat, Rule] = {
    stat: rule
    for rule, names in _BY_NAME.items()
    for stat in Stat
    if _name(stat) in names.split() and stat.kind is not Kind.GROUP
}
"""Groups of an optimizer are only copied: they have no rule."""
