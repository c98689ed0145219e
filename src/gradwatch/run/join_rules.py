"""The statistics of a whole from those of its parts: shards of a tensor, shares of a batch.

`RULES` has the rule of each. Parts go by one after another and are joined in this order, cell by
cell, so that the same parts always give the same bits, and many need little more memory than one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import MomentSums
from gradwatch.stats import Family, Stat

Table = NDArray[np.float64]
"""Values [step, subject(, width)]; NaN where there is none."""


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
Weights = Callable[[Parts], Iterable[Table]]


def _low(parts: Parts, stat: Stat) -> Table:
    return reduce(np.fmin, parts.of(stat))


def _high(parts: Parts, stat: Stat) -> Table:
    return reduce(np.fmax, parts.of(stat))


def _sum(parts: Parts, stat: Stat) -> Table:
    return _total(parts.of(stat))


def _total(values: Iterable[Table]) -> Table:
    """The sum of what is there."""
    total, there = np.zeros(()), np.zeros((), bool)
    for part in values:
        absent = np.isnan(part)
        total, there = total + np.where(absent, 0.0, part), there | ~absent
    return np.where(there, total, np.nan)


def _rows(parts: Parts, stat: Stat) -> Table:
    """Whole rows add up; one cut across ranks is zero only if it is on each: at most the fewest."""
    values = list(parts.of(stat))
    return np.where(parts.cut_rows, reduce(np.fmin, values), _total(values))


def _norm(parts: Parts, stat: Stat) -> Table:
    return _joint_norm(list(parts.of(stat)))


def _joint_norm(values: Sequence[Table]) -> Table:
    """Root of the sum of squares, scaled so that squares stay in range."""
    scale = reduce(np.fmax, map(np.abs, values))
    safe = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    return np.asarray(safe * np.sqrt(_total((part / safe) ** 2 for part in values)))


def _mean(parts: Parts, stat: Stat, *, by: Weights, power: int = 1) -> Table:
    joined = total = np.zeros(())
    for value, weight in zip(parts.of(stat), by(parts), strict=True):
        there = np.isfinite(value) & np.isfinite(weight)
        joined = joined + np.where(there, value, 0.0) ** power * np.where(there, weight, 0.0)
        total = total + np.where(there, weight, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Table = joined / total
    return mean if power == 1 else mean ** (1.0 / power)


def _ratio(parts: Parts, stat: Stat) -> Table:
    """Norm of the whole update ÷ norm of the whole weight before it."""
    updates, before = [], []
    still = np.ones((), bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        for update, ratio in zip(parts.of(Stat.UPDATE_NORM), parts.of(stat), strict=True):
            # The norm before the update is not stored, but it is the update's ÷ the ratio.
            known = np.where(np.isnan(ratio), np.nan, 0.0)
            before.append(np.where(ratio > 0, update / ratio, known))
            updates.append(update)
            still = still & ~(np.abs(ratio) > 0)
        weight = _joint_norm(before)
        return np.where(still & ~np.isnan(weight), 0.0, _joint_norm(updates) / weight)


_MOMENTS = ("mean", "std", "skewness", "kurtosis")


def _moment(parts: Parts, stat: Stat, *, family: Family) -> Table:
    """Mean, standard deviation, skewness or excess kurtosis of the parts together."""
    # Fourth powers leave the range of float64; a common power of two (exact) keeps them inside.
    scale = reduce(np.fmax, map(np.abs, parts.of(Stat(f"{family}_abs_max"))))
    exponent = np.where(np.isfinite(scale), np.frexp(np.nan_to_num(scale))[1], 0)
    sums = MomentSums(np.zeros(scale.shape))
    name = stat.removeprefix(f"{family}_")
    needed = _MOMENTS[: _MOMENTS.index(name) + 1]  # higher ones do not matter to lower ones
    moments = (parts.of(Stat(f"{family}_{name}")) for name in needed)
    for count, *known in zip(_finite(parts, family=family), *moments, strict=True):
        mean, std, skewness, kurtosis = (*known, np.nan, np.nan, np.nan)[:4]
        there = count > 0
        std = np.ldexp(std, -exponent)
        m2 = count * std * std
        m3 = np.nan_to_num(skewness) * m2 * std
        m4 = np.where(np.isnan(kurtosis), 0.0, (kurtosis + 3.0) * m2 * std * std)
        mean = np.where(there, np.ldexp(mean, -exponent), sums.mean)
        sums.mean = np.where(sums.n == 0, mean, sums.mean)  # the first part is taken as it is
        sums.join(
            np.where(there, count, 0.0), mean, *(np.where(there, m, 0.0) for m in (m2, m3, m4))
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(sums.n > 0, sums.m2 / sums.n, np.nan)
        match name:
            case "mean":
                return np.where(sums.n > 0, np.ldexp(sums.mean, exponent), np.nan)
            case "std":
                return np.ldexp(np.sqrt(variance), exponent)
            case "skewness":
                shaped = sums.m3 / sums.n / (variance * np.sqrt(variance))
            case _:
                shaped = sums.m4 / sums.n / (variance * variance) - 3.0
    return np.where(variance > 0, shaped, np.nan)


def _finite(parts: Parts, *, family: Family) -> Iterator[Table]:
    """How many finite elements each part has."""
    bad = ["nonfinite"] if family is Family.ACT else ["nan", "inf"]
    columns = (parts.of(Stat(f"{family}_{name}")) for name in ("count", *bad))
    for count, *lost in zip(*columns, strict=True):
        yield np.subtract(count, sum(map(np.nan_to_num, lost)))


def _cosine(parts: Parts, stat: Stat) -> Table:
    """With the last gradient measured before; of sketches, since cosines of shards say nothing."""
    sketches = _sum(parts, Stat.GRAD_SKETCH)
    out = np.full(sketches.shape[:2], np.nan)
    before = np.full(sketches.shape[1:], np.nan)
    for step, now in enumerate(sketches):
        with np.errstate(invalid="ignore", divide="ignore"):
            product = (now * before).sum(axis=1)
            out[step] = product / np.sqrt((now**2).sum(axis=1) * (before**2).sum(axis=1))
        measured = ~np.isnan(now).any(axis=1)
        before[measured] = now[measured]
    return out


def _by(count: Stat) -> Rule:
    return partial(_mean, by=lambda parts: parts.of(count))


def _tensor_rules(family: Family) -> dict[Stat, Rule]:
    moment = partial(_moment, family=family)
    rules: dict[str, Rule] = {
        **dict.fromkeys(("count", "nan", "inf"), _sum),
        **dict.fromkeys(("mean", "std", "skewness", "kurtosis"), moment),
        "norm": _norm,
        "abs_mean": partial(_mean, by=partial(_finite, family=family)),
        "abs_max": _high,
        "min": _low,
        "max": _high,
        "zero_fraction": _by(Stat(f"{family}_count")),
        "zero_rows": _rows,
    }
    return {Stat(f"{family}_{name}"): rule for name, rule in rules.items()}


_BY_COUNT = _by(Stat.ACT_COUNT)
_BY_SIZE = partial(_mean, by=lambda parts: parts.sizes())
"""Where a family counts nothing itself, parts weigh as many elements as they have."""

RULES: Mapping[Stat, Rule] = {
    **_tensor_rules(Family.GRAD),
    Stat.GRAD_DEAD_ROWS: _rows,
    Stat.GRAD_UNTOUCHED_ROWS: _rows,
    Stat.GRAD_SKETCH: _sum,
    Stat.GRAD_COSINE: _cosine,
    **_tensor_rules(Family.WEIGHT),
    Stat.WEIGHT_ROW_SPREAD: _high,
    Stat.WEIGHT_HASH: _sum,
    Stat.UPDATE_NORM: _norm,
    Stat.UPDATE_RATIO: _ratio,
    Stat.UPDATE_LOST_FRACTION: _BY_SIZE,
    Stat.OPTIM_RATIO_RMS: partial(_BY_SIZE, power=2),
    Stat.OPTIM_EPS_FRACTION: _BY_SIZE,
    Stat.ACT_COUNT: _sum,
    Stat.ACT_NONFINITE: _sum,
    Stat.ACT_MEAN: partial(_moment, family=Family.ACT),
    Stat.ACT_STD: partial(_moment, family=Family.ACT),
    Stat.ACT_ABS_MAX: _high,
    Stat.ACT_ZERO_FRACTION: _BY_COUNT,
    Stat.ACT_GATE_ZERO_FRACTION: _BY_COUNT,
    Stat.ACT_FLAT_FRACTION: _BY_COUNT,
    Stat.ACT_ENTROPY: _BY_COUNT,
    Stat.PROBE_NONFINITE: _sum,
    Stat.PROBE_INPUT_NONFINITE: _sum,
    Stat.PROBE_TRAINING: _low,
}
"""Of groups of an optimizer there are only copies, and nothing to merge."""
