"""The bounded queue of one layer's gradient norms."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gradwatch.analysis.original import floats

CAPACITY = 1000
"""What the original's debugger keeps per layer."""


@dataclass
class History:
    """One layer; a `max_history_length` of 0 still keeps one sample."""

    layer_name: str
    max_history_length: int = CAPACITY
    gradient_norms: deque[float] = field(default_factory=deque)
    step_numbers: deque[int] = field(default_factory=deque)

    def add(self, norm: float, step: int) -> None:
        """Drop the oldest sample when full, then append; nothing checks the step."""
        if len(self.gradient_norms) >= self.max_history_length and self.gradient_norms:
            self.gradient_norms.popleft()
            self.step_numbers.popleft()
        self.gradient_norms.append(norm)
        self.step_numbers.append(step)

    @property
    def trend_slope(self) -> float | None:
        """Slope per sample (not per step); None below three samples."""
        return floats.slope(self.gradient_norms) if len(self.gradient_norms) >= 3 else None


Histories = Mapping[str, History]


def record(
    layer: str, norms: Iterable[float], steps: Iterable[int], limit: int = CAPACITY
) -> History:
    """Feed norms one by one."""
    history = History(layer, limit)
    for norm, step in zip(norms, steps, strict=True):
        history.add(float(norm), int(step))
    return history
