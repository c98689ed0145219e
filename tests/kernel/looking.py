"""What looks at gradients, made and called for tests; and what it should have found."""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.kernel import reference

from gradwatch import kernel
from gradwatch.kernel import BinTable, Gradients
from gradwatch.stats import Family, row_dtype

TYPES = (torch.Tensor, torch.nn.Parameter)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NONE, SCALED, CHANGED, UNKNOWN = range(4)


@dataclass
class Recorded:
    """What one call of `record` gave and filled."""

    measured: bool
    others: list[int] | None
    kind: int
    factor: float
    exact: bool
    mirrored: int
    outside: list[tuple[int, float]] | None
    rows: np.ndarray
    states: list[int]
    bins: BinTable
    odd: np.ndarray

    def __getitem__(self, name: str) -> list[float]:
        values: list[float] = self.rows[f"grad_{name}"].tolist()
        return values


def look(parameters: Sequence[Any], rows: Sequence[int] | None = None) -> Gradients:
    """At parameters, held weakly."""
    if rows is None:
        rows = [p.shape[0] if p.dim() > 1 and p.numel() else 0 for p in parameters]
    return kernel.gradients([weakref.ref(p) for p in parameters], rows, TYPES, DTYPES)


def record(
    looked: Gradients,
    count: int,
    *,
    bins: bool = False,
    given: dict[int, Any] | None = None,
    multiplier: float | None = None,
    scale: float = 1.0,
    cosines: bool = True,
) -> Recorded:
    """One recorded step, into memory full of rubbish."""
    rows, states = np.empty(count, row_dtype(Family.GRAD)), np.full(count, 99, np.uint8)
    rows.view(np.uint8)[:] = 0xAB
    first, sizes, odd = (np.full(n, -7, np.int64) for n in (count, count, 4 * count))
    counts = np.full(count * kernel.MOST_BINS, 3, np.uint64)
    room = (first, sizes, counts, odd.view(np.uint64)) if bins else None
    found = looked.record(rows, states, room, given, multiplier, scale, cosines)
    table = BinTable(first, sizes, counts[: 2 * sizes.sum()] if bins else counts[:0])
    return Recorded(*found, rows, states.tolist(), table, odd.reshape(-1, 4))


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype))


def filled(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """The elements as float64, in the order of memory."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: -strides[d])
    return tensor.detach().permute(order).double().numpy().flatten()


def wanted(tensor: torch.Tensor, multiplier: float = 1.0) -> dict[str, float]:
    """The columns of a gradient's row, by their definitions; without the memory of rows."""
    found = reference.moments(numbers(tensor) * multiplier)
    found["inf"] = found.pop("pos_inf") + found.pop("neg_inf")
    zeros, count = found.pop("zeros"), found["count"]
    found["zero_fraction"] = zeros / count if count else math.nan
    table = tensor.detach().double().numpy()
    found["zero_rows"] = sum(reference.zero_rows(table)) if table.ndim > 1 and count else 0
    return found


def differences(row: np.void, wanted: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The columns that are not what they should be."""
    wrong = {}
    for name, value in wanted.items():
        seen = row[f"grad_{name}"]
        exact = name in ("count", "nan", "inf", "zero_rows")
        small = {
            "mean": 1e-6 * np.nan_to_num(wanted["std"]),
            "skewness": 2e-5,
            "kurtosis": 6e-5,
        }.get(name, 0.0)
        if not np.isclose(seen, value, 0.0 if exact else 2e-5, small, equal_nan=True):
            wrong[name] = float(seen), value
    return wrong


def places(count: int, most: int) -> list[int]:
    """Where the elements of a sample lie: runs of four, one in each of as many equal stretches."""
    if count <= most:
        return list(range(count))
    runs = most // 4
    stretch = float(count // 4) / float(runs)
    found: list[int] = []
    for i in range(runs):
        fraction = (i * 0x9E3779B97F4A7C15 % 2**64 >> 11) / 2**53
        start = 4 * int((i + fraction) * stretch)
        found += range(start, start + 4)
    return found


def cosine(last: torch.Tensor, now: torch.Tensor) -> float:
    """By the sample of 1,024 elements."""
    a, b = (numbers(x)[places(x.numel(), 1024)].astype(np.longdouble) for x in (last, now))
    size = np.sqrt((a**2).sum()) * np.sqrt((b**2).sum())
    with np.errstate(all="ignore"):
        found = float((a * b).sum() / size) if size else math.nan
    return found if math.isfinite(found) else math.nan
