"""Robust centre and spread of a tensor: not moved by the few elements they are to find."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.weights.tensors import Tensor, floating

SAMPLE = 1 << 16
"""Larger tensors are judged by so many elements, drawn with a fixed seed."""
ATOMS = 64
LEAST_NONZERO = 8


@dataclass(frozen=True)
class Spread:
    centre: float
    scale: float
    """1.4826 · MAD, the standard deviation of a Gaussian with that MAD; 0 if all are equal."""
    quartiles: float
    """Distance between the quartiles."""
    atoms: NDArray[np.float64]
    """Quantiles that stand for the tensor when several are pooled."""


def spread(tensor: Tensor) -> Spread:
    """Of the finite elements; a mostly zero tensor is judged by its other elements."""
    values = _sample(tensor)
    values.sort()
    judged = values[values != 0] if np.count_nonzero(values == 0) * 2 >= len(values) else values
    judged = judged if len(judged) >= LEAST_NONZERO else values
    centre = float(_quantiles(judged, 0.5))
    low, high = _quantiles(values, np.array([0.25, 0.75]))
    middles = (np.arange(ATOMS) + 0.5) / ATOMS
    return Spread(centre, _scale(judged, centre), float(high - low), _quantiles(values, middles))


def _quantiles(ordered: NDArray[np.float64], shares: float | NDArray[np.float64]) -> Any:
    """Linear between neighbours (type 7), of sorted values."""
    at = np.asarray(shares) * (len(ordered) - 1)
    under = at.astype(np.intp)
    left, right = ordered[under], ordered[np.minimum(under + 1, len(ordered) - 1)]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(at == under, left, (right - left) * (at - under) + left)


def _scale(values: NDArray[np.float64], centre: float) -> float:
    apart = values - centre
    np.abs(apart, out=apart)
    middle = [(len(apart) - 1) // 2, len(apart) // 2]
    apart.partition(middle)  # all the median needs of a sorted order
    mad = float(_quantiles(apart[middle], 0.5))
    if mad > 0:
        return mad / NormalDist().inv_cdf(0.75)
    # More than half are equal: fall back to the mean absolute deviation (of a Gaussian: √(2/π) σ).
    return float(np.abs(values - centre).mean()) * float(np.sqrt(np.pi / 2))


def _sample(tensor: Tensor) -> NDArray[np.float64]:
    assert tensor.values is not None
    values = tensor.values
    if len(values) > SAMPLE:
        drawn = np.random.default_rng(0).integers(0, len(values), SAMPLE)
        picked = floating(values[drawn]).astype(np.float64)
        if tensor.nonfinite:
            picked = picked[np.isfinite(picked)]
        if len(picked) >= SAMPLE // 2:
            return picked
    every = floating(values).astype(np.float64)
    return every[np.isfinite(every)]


def outlier_limit(count: int) -> float:
    """Robust distance one element in twenty tensors of this size passes by chance; at least 3.5."""
    return max(3.5, -NormalDist().inv_cdf(0.05 / (2 * max(count, 1))))
