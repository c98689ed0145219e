"""Numbers logged while nothing is recorded: read at once, handed over many at a time.

After a step's worth of somebody else's work our code is cold, and a walk through all of it for one
number costs many times what it costs in a loop. So in the stretches that record nothing a log is
only jotted down.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

from torch import Tensor

from gradwatch.record.barrier import Barrier
from gradwatch.record.doze import Doze

MOST = 64
LONGEST = 1.0
"""They wait for so many others, or so many seconds: no longer than the writer lets rows wait."""

Jot = tuple[int, str, float]
"""Number of the step last made, name, value."""


class Jots:
    """Keeps what was logged until `hand_over` takes it."""

    def __init__(
        self, barrier: Barrier, doze: Doze, hand_over: Callable[[Sequence[Jot]], None]
    ) -> None:
        self._barrier, self._doze, self._hand_over = barrier, doze, hand_over
        self._plain: set[str] = set()
        self._kept: list[Jot] = []
        self._since = 0.0

    def learn(self, names: Iterable[str]) -> None:
        """These names stand for ordinary numbers, of which nothing but the number matters."""
        self._plain.update(names)

    def take(self, values: Mapping[str, Any]) -> bool:
        """Jot the values down; False where they have to go the long way.

        One function without calls of its own: see above.
        """
        if not self._doze.left:
            return False
        start = perf_counter()
        step, plain, jots = self._doze.clock.number, self._plain, []
        try:
            for name, value in values.items():
                if name not in plain:
                    return False
                if type(value) is Tensor:
                    if not value.is_cpu:
                        return False
                    value = value.item()
                elif type(value) is not float:
                    value = float(value)
                if value - value != 0.0:  # NaN or Inf
                    return False
                jots.append((step, name, value))
        except Exception:
            return False  # the long way knows what to do
        kept = self._kept
        if not kept:
            self._since = start
        kept += jots
        if len(kept) < MOST and start - self._since < LONGEST:
            self._barrier.meter.spent += perf_counter() - start
        else:
            self._barrier.run(self.drain)
        return True

    def drain(self) -> None:
        """Hand over what is kept."""
        if self._kept:
            kept, self._kept = self._kept, []
            self._hand_over(kept)
