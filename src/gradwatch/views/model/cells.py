"""Heatmap cells: one byte each, on a scale of 252 levels; four codes for what is no level."""

import base64
import math
import sys
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Code(IntEnum):
    """Bytes that are no level."""

    EMPTY = 0  # not measured
    ZERO = 1  # exactly zero, which has no logarithm
    LOWEST = 2
    HIGHEST = 253
    NO_GRADIENT = 254
    NONFINITE = 255


LEVELS = Code.HIGHEST - Code.LOWEST
LEAST_SPAN = 1e4
"""A log scale has at least four decades, so that a steady run looks steady."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the levels lie: `low` … `high`, logarithmically or evenly."""

    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, values: NDArray[np.float64], log: bool, unit: str = "") -> "Scale":
        """The scale that holds all finite values; fractions always go from 0 to 1."""
        if unit == "fraction":
            return cls(0.0, 1.0, False)
        usable = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
        if not usable.size:
            return cls(1e-8, 1.0, True) if log else cls(0.0, 1.0, False)
        low, high = float(usable.min()), float(usable.max())
        if log and high < low * LEAST_SPAN:  # nearly equal values belong in the middle
            middle = math.sqrt(low) * math.sqrt(high)
            half, ends = math.sqrt(LEAST_SPAN), sys.float_info
            return cls(max(middle / half, ends.min), min(middle * half, ends.max), True)
        if log:
            return cls(low, high, True)
        return cls(low, high if high > low else low + 1.0, False)

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "log": self.log}

    def level(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 … 1 for low … high; NaN stays NaN."""
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (np.log(values) - math.log(self.low)) / math.log(self.high / self.low)

    def value(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `level`."""
        if not self.log:
            return self.low + level * (self.high - self.low)
        found: NDArray[np.float64] = np.exp(
            math.log(self.low) + level * math.log(self.high / self.low)
        )
        return found


def coded(
    values: NDArray[np.float64],
    scale: Scale,
    nonfinite: NDArray[np.bool_],
    no_gradient: NDArray[np.bool_],
) -> NDArray[np.uint8]:
    """One byte per value; a bucket with any non-finite element says so before everything else."""
    codes = np.full(values.shape, Code.EMPTY, np.uint8)
    codes[no_gradient] = Code.NO_GRADIENT
    measured = np.isfinite(values)
    level = np.clip(scale.level(np.where(measured, values, np.nan)), 0, 1)
    there = np.isfinite(level)
    codes[there] = np.rint(level[there] * LEVELS).astype(np.uint8) + Code.LOWEST
    if scale.log:
        codes[measured & (values <= 0)] = Code.ZERO
    codes[nonfinite] = Code.NONFINITE
    return codes


def decoded(codes: NDArray[np.uint8], scale: Scale) -> NDArray[np.float64]:
    """Back to numbers: within half a level; NaN for empty, no gradient and non-finite."""
    level = (codes.astype(np.float64) - Code.LOWEST) / LEVELS
    values = scale.value(level)
    values[(codes == Code.EMPTY) | (codes >= Code.NO_GRADIENT)] = np.nan
    if scale.log:
        values[codes == Code.ZERO] = 0.0
    return values


def packed(codes: NDArray[np.uint8]) -> str:
    """Deflated (raw) and in base64. Rows follow each other, so that neighbours in time compress."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(squeeze.compress(codes.tobytes()) + squeeze.flush()).decode()


def unpacked(text: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """The inverse of `packed`."""
    raw = zlib.decompress(base64.b64decode(text), -15)
    return np.frombuffer(raw, np.uint8).reshape(rows, columns)
