"""The statistics in torch operations, for memory we cannot read: no value is waited for.

What a device computes are sums, in float64 (float32 on MPS, which has nothing wider); what they
mean is worked out here when they have come over.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.far.alike import Alike

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of the size of a float, to look at its bits."""
_SUMS = 12
"""How many numbers `moments` gives per line."""


def wide(device: torch.device) -> torch.dtype:
    """The type results are kept in."""
    return torch.float32 if device.type == "mps" else torch.float64


def cleaned(tensor: Tensor) -> Tensor:
    """In at least float32, with zeros where an element is not finite."""
    return at_least_single(tensor).nan_to_num(0.0, 0.0, 0.0)


def at_least_single(tensor: Tensor) -> Tensor:
    return tensor if tensor.itemsize >= 4 else tensor.float()


def moments(matrix: Tensor) -> Tensor:
    """Sums over each line of a matrix with at least one column: [_SUMS, lines].

    Elements that are not finite are replaced by the mean of the others: then they are no extremes,
    and nothing at all once the mean is taken off. Powers are of the distance from the mean in units
    of the line's width, so that none leaves the range of the type.
    """
    kind = wide(matrix.device)
    x = at_least_single(matrix.detach())
    clean = cleaned(x)
    wrong = clean != x
    bad = wrong.sum(1, dtype=kind)
    total = clean.sum(1, dtype=kind)
    size = torch.linalg.vector_norm(clean, 1, dim=1, dtype=kind)
    del clean
    mean = (total / (x.shape[1] - bad)).to(x.dtype)
    filled = torch.where(wrong, mean[:, None], x)
    low, high = filled.aminmax(dim=1)
    unit = (high - low).clamp_min(torch.finfo(x.dtype).tiny)
    y = filled.sub(mean[:, None]).div_(unit[:, None])
    square = y * y
    numbers = [
        bad,
        (x != x).sum(1, dtype=kind),
        (x == 0).sum(1, dtype=kind),
        size,
        mean,
        low,
        high,
        unit,
        y.sum(1, dtype=kind),
        square.sum(1, dtype=kind),
        y.mul_(square).sum(1, dtype=kind),
        square.mul_(square).sum(1, dtype=kind),
    ]
    return torch.stack(numbers)


def moments_of(group: Alike) -> list[Tensor]:
    """The sums of every tensor of a group, piece by piece."""
    return [moments(piece) for piece in group.pieces]


def records_of(group_sizes: Sequence[int], sums: Sequence[NDArray[np.float64]]) -> NDArray[np.void]:
    """The kernel's records of the tensors of a group, from the sums of its pieces.

    `group_sizes` are the columns of the pieces. Infinities are all counted as positive, rows not.
    """
    pieces = [
        _records(size, numbers.reshape(_SUMS, -1))
        for size, numbers in zip(group_sizes, sums, strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    whole = [kernel.merge(np.array(list(one), kernel.MOMENTS)) for one in zip(*pieces, strict=True)]
    return np.array(whole, kernel.MOMENTS)


def _records(size: int, numbers: NDArray[np.float64]) -> NDArray[np.void]:
    bad, nan, zeros, magnitude, near, low, high, unit, first, second, third, fourth = numbers
    records = np.zeros(numbers.shape[1], kernel.MOMENTS)
    records["count"], records["zeros"], records["nan"] = size, zeros, nan
    records["pos_inf"] = bad - nan
    with np.errstate(all="ignore"):  # lines without a finite element, and constant ones
        n = np.where(bad < size, size - bad, np.nan)
        # The mean that was taken off was rounded: what it missed is r.
        r, s2, s3, s4 = first / n, second / n, third / n, fourth / n
        variance = np.maximum(s2 - r * r, 0.0)
        variance[low == high] = 0.0
        mean = np.where(low == high, low, near + r * unit)
        std = np.sqrt(variance) * unit
        records["mean"], records["std"] = mean, std
        spread = np.where(variance > 0, np.sqrt(variance), np.nan)
        records["skewness"] = (s3 - 3 * r * s2 + 2 * r**3) / spread**3
        records["kurtosis"] = (s4 - 4 * r * s3 + 6 * r * r * s2 - 3 * r**4) / spread**4 - 3
        records["norm"] = np.sqrt(n) * np.hypot(mean, std)
        records["abs_mean"] = magnitude / n
    records["min"], records["max"] = low, high
    records["abs_max"] = np.maximum(np.abs(low), np.abs(high))
    for name in ("mean", "std", "norm", "min", "max", "abs_max", "abs_mean"):
        records[name][bad == size] = np.nan
    return records
