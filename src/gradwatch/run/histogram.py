"""Signed power-of-two histograms, kept sparse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Histogram:
    """Counts per power of two of |x|: bin e holds 2^e ≤ |x| < 2^(e+1).

    Bins of both signs, zeros and non-finite elements together are the tensor's count, always.
    """

    first_exponent: int
    negative: NDArray[np.uint64]
    positive: NDArray[np.uint64]
    zeros: int = 0
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0

    @property
    def count(self) -> int:
        """Elements of the tensor, zeros and non-finite ones included."""
        finite = int(self.negative.sum()) + int(self.positive.sum())
        return finite + self.zeros + self.nan + self.positive_inf + self.negative_inf
