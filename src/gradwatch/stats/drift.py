"""What moved between two tensors of the same shape, added up stretch by stretch."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class DriftSums:
    """Counts and sums over both; elements not finite on either side are counted, not summed."""

    count: int = 0
    changed: int = 0
    """Elements that are not equal any more; NaN equals NaN."""
    flipped: int = 0
    """Elements that went from one side of zero to the other."""
    zeros_before: int = 0
    zeros_after: int = 0
    nonfinite: int = 0
    """Elements that are not finite before, after, or both."""
    nonfinite_before: int = 0
    nonfinite_after: int = 0
    before: float = 0.0
    """Sum of squares, as are `after` and `difference`."""
    after: float = 0.0
    product: float = 0.0
    difference: float = 0.0

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite is counted
    def add(self, x: NDArray[np.floating], y: NDArray[np.floating], *, scale: float = 1.0) -> None:
        """One stretch of both. Sums are those of the elements over `scale`.

        Squares of doubles beyond 1e±154 leave the range: where such may come, hand in the largest
        absolute value of both tensors, the same for every stretch. Ratios do not depend on it.
        """
        self.count += x.size
        self.changed += int(np.count_nonzero((x != y) & ~(np.isnan(x) & np.isnan(y))))
        self.flipped += int(np.count_nonzero(np.sign(x) * np.sign(y) < 0))
        self.zeros_before += int(np.count_nonzero(x == 0))
        self.zeros_after += int(np.count_nonzero(y == 0))
        a, b = x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)
        finite_before, finite_after = np.isfinite(a), np.isfinite(b)
        finite = finite_before & finite_after
        if not finite.all():
            self.nonfinite += int(np.count_nonzero(~finite))
            self.nonfinite_before += int(np.count_nonzero(~finite_before))
            self.nonfinite_after += int(np.count_nonzero(~finite_after))
            a, b = a[finite], b[finite]
        if scale != 1.0:
            a, b = a / scale, b / scale
        moved = b - a
        self.before += float(np.vdot(a, a))
        self.after += float(np.vdot(b, b))
        self.product += float(np.vdot(a, b))
        self.difference += float(np.vdot(moved, moved))

    def __iadd__(self, other: "DriftSums") -> "DriftSums":
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def relative_change(self) -> float:
        """‖after − before‖ / ‖before‖; infinite for a tensor that left zero."""
        if self.before > 0:
            return math.sqrt(self.difference / self.before)
        return math.inf if self.difference > 0 else 0.0

    @property
    def cosine(self) -> float:
        """Between before and after; NaN where one of them is zero."""
        size = math.sqrt(self.before) * math.sqrt(self.after)
        return max(-1.0, min(1.0, self.product / size)) if size > 0 else math.nan
