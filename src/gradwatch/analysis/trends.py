"""Numbers and tests of one series: shape, trend, turning points, spread about the trend.

The tests take the finite samples in time order and return None below the number of samples they
need; given logarithms, none depends on the unit of the series.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST = 8
"""Samples below which no test is made."""
SIGNIFICANT = 0.01
OSCILLATING_Z = 2.33


@dataclass(frozen=True, slots=True)
class Trend:
    """Kendall's τ_b of value against step, and the Mann–Kendall p-value (two-sided)."""

    tau: float
    p: float

    @property
    def rising(self) -> bool:
        """Whether the series rises significantly."""
        return self.tau > 0 and self.p < SIGNIFICANT

    @property
    def falling(self) -> bool:
        """Whether the series falls significantly."""
        return self.tau < 0 and self.p < SIGNIFICANT

    @property
    def fall(self) -> float:
        """−τ_b where the series falls significantly, else 0."""
        return -self.tau if self.falling else 0.0


@dataclass(frozen=True, slots=True)
class LineFit:
    """Least squares of value on step: slope per step, its standard error, spread of the rest."""

    slope: float
    slope_error: float
    intercept: float
    spread: float

    @property
    def stability(self) -> float:
        """1 on the line, towards 0 the further the samples lie about it."""
        return 1 / (1 + self.spread)


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite values, in order."""
    return values[np.isfinite(values)]


def shape(x: NDArray[np.float64]) -> tuple[float, float]:
    """Skewness and excess kurtosis of finite samples; 0 where the spread is only rounding."""
    mean, std = float(x.mean()), float(x.std())
    if std <= 8 * np.finfo(float).eps * float(np.abs(x).max()):
        return 0.0, 0.0
    z = (x - mean) / std
    return float((z**3).mean()), float((z**4).mean()) - 3.0


def trend(values: NDArray[np.float64]) -> Trend | None:
    """Mann–Kendall with the variance corrected for ties; serial correlation widens it.

    The effective number of samples follows from the lag-1 autocorrelation r of the residuals,
    n(1−r)/(1+r): a random walk would otherwise be full of "significant" trends.
    """
    x = finite(values)
    n = len(x)
    if n < FEWEST:
        return None
    signs = np.sign(x[None, :] - x[:, None])
    score = float(np.triu(signs, 1).sum())
    _, ties = np.unique(x, return_counts=True)
    pairs = n * (n - 1) / 2
    tied = float((ties * (ties - 1) / 2).sum())
    if pairs == tied:
        return Trend(0.0, 1.0)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    inflation = _inflation(x)
    z = (score - math.copysign(1, score)) / math.sqrt(variance * inflation) if score else 0.0
    return Trend(score / math.sqrt(pairs * (pairs - tied)), math.erfc(abs(z) / math.sqrt(2)))


def line(steps: NDArray[np.int64], values: NDArray[np.float64]) -> LineFit | None:
    """Centred least squares over the finite samples; None below three."""
    kept = np.isfinite(values)
    t, y = steps[kept].astype(float), values[kept]
    if len(y) < 3:
        return None
    middle = t.mean()
    t = t - middle
    across = float((t * t).sum())
    if across == 0:
        return None
    slope = float((t * (y - y.mean())).sum()) / across
    rest = y - y.mean() - slope * t
    spread = math.sqrt(float((rest * rest).sum()) / len(y))
    error = spread * math.sqrt(len(y) / max(len(y) - 2, 1) / across)
    return LineFit(slope, error, float(y.mean()) - slope * middle, spread)


def volatility(values: NDArray[np.float64]) -> float | None:
    """Mean size of the change from one finite sample to the next; None below two."""
    x = finite(values)
    return float(np.abs(np.diff(x)).mean()) if len(x) >= 2 else None


def turning_points(values: NDArray[np.float64]) -> int:
    """How often the series changes direction."""
    changes = np.diff(finite(values))
    changes = changes[changes != 0]
    return int((changes[1:] * changes[:-1] < 0).sum())


def oscillates(values: NDArray[np.float64]) -> bool:
    """More turning points than chance, and each step undoing the one before it.

    Independent noise turns on two thirds of its steps, so a count alone says nothing: the excess
    must be significant and the lag-1 autocorrelation of the detrended series below −1.96/√n.
    """
    x = finite(values)
    n = len(x)
    if n < FEWEST:
        return False
    expected, variance = 2 * (n - 2) / 3, (16 * n - 29) / 90
    excess = (turning_points(x) - expected) / math.sqrt(variance)
    return excess > OSCILLATING_Z and _autocorrelation(_detrended(x)) < -1.96 / math.sqrt(n)


def smoothness(values: NDArray[np.float64]) -> float | None:
    """1 − η/4 with von Neumann's ratio η of the detrended series: 1 smooth, ½ noise, 0 zig-zag."""
    x = _detrended(finite(values))
    if len(x) < 3:
        return None
    total = float((x * x).sum())
    if total <= 1e-24 * len(x):
        return 1.0
    return 1 - min(float((np.diff(x) ** 2).sum()) / total, 4.0) / 4


def _detrended(x: NDArray[np.float64]) -> NDArray[np.float64]:
    t = np.arange(len(x)) - (len(x) - 1) / 2
    across = float((t * t).sum())
    centred: NDArray[np.float64] = x - x.mean() if len(x) else x
    return centred - t * (float((t * centred).sum()) / across) if across else centred


def _autocorrelation(x: NDArray[np.float64]) -> float:
    total = float((x * x).sum())
    return float((x[1:] * x[:-1]).sum()) / total if total > 0 else 0.0


def _inflation(x: NDArray[np.float64]) -> float:
    # At most 0.9: near 1 the factor grows without bound, and nothing would ever be significant.
    r = min(max(_autocorrelation(_detrended(x)), 0.0), 0.9)
    return (1 + r) / (1 - r)
