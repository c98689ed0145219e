"""What an optimizer's step did, with numpy."""

from dataclasses import replace
from math import ldexp, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import ADAM, UPDATE, Batch
from gradwatch.kernel.merging import scaled
from gradwatch.kernel.plain.checks import check_pair, check_twins
from gradwatch.kernel.plain.memory import PIECE, bits, values


def update(before: Batch, after: Batch, grads: Batch | None) -> NDArray[np.void]:
    """Norms and counts of the change of every tensor; a gradient of count 0 is no gradient."""
    check_twins(before, after)
    if grads is not None:
        check_pair(before, grads, may_lack=True)
    result = np.zeros(len(before), UPDATE)
    for index in range(len(before)):
        record = result[index]
        old, new = bits(before, index), bits(after, index)
        same = old == new
        record["changed"] = np.count_nonzero(~same)
        if grads is not None and grads.counts[index] > 0:
            with_gradient = (bits(grads, index) << 1) != 0
            record["with_gradient"] = np.count_nonzero(with_gradient)
            record["lost"] = np.count_nonzero(with_gradient & same)
        change, weight = _Norm(), _Norm()
        for start in range(0, len(old), PIECE):
            part = slice(start, start + PIECE)
            x = values(old[part], int(before.dtypes[index]))
            weight.add(x)
            with np.errstate(invalid="ignore", over="ignore"):
                change.add(values(new[part], int(after.dtypes[index])) - x)
        record["update_norm"], record["before_norm"] = change.value, weight.value
    return result


def adam(
    grads: Batch,
    second_moments: Batch,
    correction: NDArray[np.float64],
    eps: NDArray[np.float64],
) -> NDArray[np.void]:
    """How the step's ratio g/(√v̂+ε) is distributed, with v̂ = v / correction."""
    check_pair(grads, second_moments)
    result = np.zeros(len(grads), ADAM)
    for index, count in enumerate(grads.counts):
        norm, under, finite = _Norm(), 0, 0
        g_bits, v_bits = bits(grads, index), bits(second_moments, index)
        for start in range(0, int(count), PIECE):
            part = slice(start, start + PIECE)
            g = values(g_bits[part], int(grads.dtypes[index]))
            v = values(v_bits[part], int(second_moments.dtypes[index]))
            with np.errstate(all="ignore"):
                root = np.sqrt(v / correction[index])
                ratio = g / (root + eps[index])
            norm.add(ratio)
            finite += int(np.count_nonzero(np.isfinite(ratio)))
            under += int(np.count_nonzero(root < eps[index]))
        result[index]["ratio_rms"] = norm.value / sqrt(finite) if finite else nan
        result[index]["eps_fraction"] = under / count if count else nan
    return result


def step(
    before: Batch,
    after: Batch,
    grads: Batch,
    second_moments: Batch,
    correction: NDArray[np.float64],
    eps: NDArray[np.float64],
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """The two together; tensors without gradient or second moment have no ratio."""
    check_pair(before, second_moments, may_lack=True)
    updates = update(before, after, grads)
    both = np.where(second_moments.counts == 0, 0, grads.counts)
    ratios = adam(
        replace(grads, counts=both), replace(second_moments, counts=both), correction, eps
    )
    return updates, ratios


class _Norm:
    """Euclidean norm of the finite values added so far, over the whole range of float64."""

    def __init__(self) -> None:
        self._exponent = -(1 << 20)
        self._squares = 0.0

    def add(self, x: NDArray[np.float64]) -> None:
        x = x[np.isfinite(x)]
        if x.size == 0 or not x.any():
            return
        exponent = int(np.frexp(np.abs(x).max())[1])
        if exponent > self._exponent:
            self._squares = ldexp(self._squares, max(2 * (self._exponent - exponent), -5000))
            self._exponent = exponent
        scaled = np.ldexp(x, -self._exponent)
        self._squares += float((scaled * scaled).sum())

    @property
    def value(self) -> float:
        return scaled(sqrt(self._squares), self._exponent) if self._squares else 0.0
