"""The loss as the checks see it: start, level, progress, noise."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats.medians import Array


@dataclass(frozen=True)
class Curve:
    """A scalar where it was logged and finite. `chance` is the best constant predictor's loss."""

    steps: NDArray[np.int64]
    values: Array
    chance: float | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def start(self) -> float:
        """The first value, or the median of the first three if that is lower (one odd batch)."""
        return float(min(self.values[0], np.median(self.values[:3])))

    @cached_property
    def late(self) -> float:
        """Median of the last tenth, at least five values."""
        return float(np.median(self.values[-max(5, len(self) // 10) :]))

    @cached_property
    def smooth(self) -> Array:
        """Medians of up to twenty stretches of the run."""
        parts = np.array_split(self.values, min(20, max(1, len(self) // 3)))
        return np.array([np.median(part) for part in parts])

    @cached_property
    def reference(self) -> float:
        """Where a network that knows nothing stands: chance where it is known, else the start."""
        return self.start if self.chance is None else min(self.start, self.chance)

    @cached_property
    def progress(self) -> float:
        """Share of the starting level that has gone; negative when the loss rose."""
        return (self.start - self.late) / max(abs(self.start), 1e-30)

    @cached_property
    def trained_before(self) -> bool:
        """The start is far below chance: fine-tuning, where little is left to gain."""
        return self.chance is not None and self.start < 0.7 * self.chance

    @cached_property
    def converged(self) -> bool:
        """Most of the loss is gone: what remains may well be the floor."""
        return self.late <= 0.25 * self.reference

    def gain(self, part: float) -> float:
        """Relative fall within the last `part` of the run, from the medians of its two halves."""
        tail = self.values[-max(4, int(len(self) * part)) :]
        half = len(tail) // 2
        first, second = float(np.median(tail[:half])), float(np.median(tail[half:]))
        return (first - second) / max(abs(first), 1e-30)
