"""Statistics of parts joined into statistics of the whole, in a fixed order, cell by cell.

Every function takes arrays [part, step, subject]; parts that are absent are NaN. The rule of each
statistic is in `RULES`; moments are joined by Pébay's formulas, as `kernel.merge` joins those of
one tensor.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat

Parts = NDArray[np.float64]
Whole = NDArray[np.float64]
Get = Callable[[Stat], Parts]
"""Gives the parts of another statistic of the same family."""


def _sum(get: Get, stat: Stat) -> Whole:
    parts = get(stat)
    return np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))


def _low(get: Get, stat: Stat) -> Whole:
    found: Whole = np.fmin.reduce(get(stat), axis=0)
    return found


def _high(get: Get, stat: Stat) -> Whole:
    found: Whole = np.fmax.reduce(get(stat), axis=0)
    return found


def _norm(get: Get, stat: Stat) -> Whole:
    """Root of the sum of squares, scaled so that squares stay in range."""
    parts = get(stat)
    scale = np.fmax.reduce(np.abs(parts), axis=0)
    safe = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    total = safe * np.sqrt(np.nansum((parts / safe) ** 2, axis=0))
    return np.where(np.isnan(parts).all(axis=0), np.nan, total)


def _weighted(get: Get, stat: Stat, *, by: Stat, power: int = 1) -> Whole:
    values, weights = get(stat), get(by)
    there = np.isfinite(values) & np.isfinite(weights)
    weights = np.where(there, weights, 0.0)
    total = weights.sum(axis=0)
    joined = (np.where(there, values, 0.0) ** power * weights).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Whole = joined / total
    return mean if power == 1 else mean ** (1.0 / power)


def _ratio(get: Get, stat: Stat) -> Whole:
    """Norm of the whole update ÷ norm of the whole weight before it."""
    updates, ratios = get(Stat.UPDATE_NORM), get(stat)
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.where(ratios > 0, updates / ratios, np.where(np.isnan(ratios), np.nan, 0.0))
        return np.where(
            (ratios == 0).all(axis=0),
            0.0,
            _norm(get, Stat.UPDATE_NORM) / _norm(lambda _: before, stat),
        )


def _moment(get: Get, stat: Stat, *, family: Family) -> Whole:
    return moments(get, family)[stat]


def moments(get: Get, family: Family) -> dict[Stat, Whole]:
    """Mean, standard deviation, skewness and excess kurtosis of the parts together."""
    prefix = "act" if family is Family.ACT else family.value
    shaped = family is not Family.ACT  # activations keep two moments only
    mean, std = get(Stat(f"{prefix}_mean")), get(Stat(f"{prefix}_std"))
    n = _finite(get, family)
    scale = np.fmax.reduce(np.abs(get(Stat(f"{prefix}_abs_max"))), axis=0)
    exponent = np.where(np.isfinite(scale), np.frexp(np.nan_to_num(scale))[1], 0)
    zero = np.zeros(mean.shape[1:])
    joined = _Pool(zero.copy(), zero.copy(), zero.copy(), zero.copy(), zero.copy())
    for part in range(len(mean)):
        there = n[part] > 0
        skew = get(Stat(f"{prefix}_skewness"))[part] if shaped else zero
        kurt = get(Stat(f"{prefix}_kurtosis"))[part] if shaped else zero
        small_std = np.ldexp(std[part], -exponent)
        m2 = n[part] * small_std**2
        m3 = np.nan_to_num(skew) * m2 * small_std
        m4 = np.where(np.isnan(kurt), 0.0, (kurt + 3.0) * m2 * small_std**2)
        joined.add(there, n[part], np.ldexp(mean[part], -exponent), m2, m3, m4)
    return joined.result(exponent, prefix, shaped)


class _Pool:
    def __init__(self, n: Whole, mean: Whole, m2: Whole, m3: Whole, m4: Whole) -> None:
        self.n, self.mean, self.m2, self.m3, self.m4 = n, mean, m2, m3, m4

    def add(
        self, there: NDArray[np.bool_], n: Whole, mean: Whole, m2: Whole, m3: Whole, m4: Whole
    ) -> None:
        n, mean, m2, m3, m4 = (np.where(there, x, 0.0) for x in (n, mean, m2, m3, m4))
        a, total = self.n, self.n + n
        delta = np.where(there & (a > 0), mean - self.mean, 0.0)
        step = delta / np.where(total > 0, total, 1.0)
        joint = delta * step * a * n
        self.m4 += m4 + joint * step**2 * (a * a - a * n + n * n)
        self.m4 += 6.0 * step**2 * (a * a * m2 + n * n * self.m2)
        self.m4 += 4.0 * step * (a * m3 - n * self.m3)
        self.m3 += m3 + joint * step * (a - n) + 3.0 * step * (a * m2 - n * self.m2)
        self.m2 += m2 + joint
        self.mean = np.where(there & (a == 0), mean, self.mean + step * n)
        self.n = total

    def result(self, exponent: NDArray[np.int64], prefix: str, shaped: bool) -> dict[Stat, Whole]:
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = np.where(self.n > 0, self.m2 / self.n, np.nan)
            std = np.sqrt(variance)
            found = {
                Stat(f"{prefix}_mean"): np.where(self.n > 0, np.ldexp(self.mean, exponent), np.nan),
                Stat(f"{prefix}_std"): np.ldexp(std, exponent),
            }
            if shaped:
                curved = variance > 0
                skew = self.m3 / self.n / (variance * std)
                kurt = self.m4 / self.n / (variance * variance) - 3.0
                found[Stat(f"{prefix}_skewness")] = np.where(curved, skew, np.nan)
                found[Stat(f"{prefix}_kurtosis")] = np.where(curved, kurt, np.nan)
        return found


def _finite(get: Get, family: Family) -> Parts:
    if family is Family.ACT:
        bad = np.nan_to_num(get(Stat.ACT_NONFINITE))
        return get(Stat.ACT_COUNT) - bad
    prefix = family.value
    bad = np.nan_to_num(get(Stat(f"{prefix}_nan"))) + np.nan_to_num(get(Stat(f"{prefix}_inf")))
    finite: Parts = get(Stat(f"{prefix}_count")) - bad
    return finite


def _abs_mean(get: Get, stat: Stat, *, family: Family) -> Whole:
    n = _finite(get, family)
    return _weighted(lambda s: get(s) if s is stat else n, stat, by=Stat(f"{family}_count"))


def _first(get: Get, stat: Stat) -> Whole:
    parts = get(stat)
    found: Whole = parts[0]
    for part in parts[1:]:
        found = np.where(np.isnan(found), part, found)
    return found


Rule = Callable[[Get, Stat], Whole]


def _tensor_rules(family: Family) -> dict[Stat, Rule]:
    p = family.value
    count = Stat(f"{p}_count")
    moment = partial(_moment, family=family)
    rules: dict[str, Rule] = {
        **dict.fromkeys(("count", "nan", "inf", "zero_rows"), _sum),
        **dict.fromkeys(("mean", "std", "skewness", "kurtosis"), moment),
        "norm": _norm,
        "abs_mean": partial(_abs_mean, family=family),
        "abs_max": _high,
        "min": _low,
        "max": _high,
        "zero_fraction": partial(_weighted, by=count),
    }
    return {Stat(f"{p}_{name}"): rule for name, rule in rules.items()}


_BY_ACT = partial(_weighted, by=Stat.ACT_COUNT)
_BY_SIZE = partial(_weighted, by=Stat.WEIGHT_COUNT)
"""Where a family counts nothing itself, parts weigh as many elements as they have."""

RULES: Mapping[Stat, Rule] = {
    **_tensor_rules(Family.GRAD),
    Stat.GRAD_DEAD_ROWS: _sum,
    Stat.GRAD_UNTOUCHED_ROWS: _sum,
    Stat.GRAD_SKETCH: _sum,
    **_tensor_rules(Family.WEIGHT),
    Stat.WEIGHT_ROW_SPREAD: _high,
    Stat.WEIGHT_HASH: _sum,
    Stat.UPDATE_NORM: _norm,
    Stat.UPDATE_RATIO: _ratio,
    Stat.UPDATE_LOST_FRACTION: _BY_SIZE,
    Stat.OPTIM_RATIO_RMS: partial(_weighted, by=Stat.WEIGHT_COUNT, power=2),
    Stat.OPTIM_EPS_FRACTION: _BY_SIZE,
    Stat.ACT_COUNT: _sum,
    Stat.ACT_NONFINITE: _sum,
    Stat.ACT_MEAN: partial(_moment, family=Family.ACT),
    Stat.ACT_STD: partial(_moment, family=Family.ACT),
    Stat.ACT_ABS_MAX: _high,
    Stat.ACT_ZERO_FRACTION: _BY_ACT,
    Stat.ACT_GATE_ZERO_FRACTION: _BY_ACT,
    Stat.ACT_FLAT_FRACTION: _BY_ACT,
    Stat.ACT_ENTROPY: _BY_ACT,
    Stat.PROBE_NONFINITE: _sum,
    Stat.PROBE_INPUT_NONFINITE: _sum,
    Stat.PROBE_TRAINING: _low,
    Stat.LR: _first,
}
SHARED_ROWS = frozenset(
    {Stat.GRAD_ZERO_ROWS, Stat.GRAD_DEAD_ROWS, Stat.GRAD_UNTOUCHED_ROWS, Stat.WEIGHT_ZERO_ROWS}
)
"""Counts of rows: they add up only where every part holds whole rows."""


def pool(stat: Stat, get: Get) -> Whole:
    """One statistic of the whole."""
    return RULES[stat](get, stat)


def cosines(sketches: NDArray[np.float64]) -> Whole:
    """Cosine of each sketch [step, subject, width] with the last one measured before it."""
    out = np.full(sketches.shape[:2], np.nan)
    before = np.full(sketches.shape[1:], np.nan)
    for step, now in enumerate(sketches):
        with np.errstate(invalid="ignore", divide="ignore"):
            product = (now * before).sum(axis=1)
            out[step] = product / np.sqrt((now**2).sum(axis=1) * (before**2).sum(axis=1))
        there = ~np.isnan(now).any(axis=1)
        before[there] = now[there]
    return out
