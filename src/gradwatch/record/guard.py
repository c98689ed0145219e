"""Nothing we do may reach the training: the first error is logged once and recording stops."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("gradwatch")

_CUDA = torch.backends.cuda.is_built()
"""Of a torch without it nobody needs to ask what a stream does."""


class Overhead(float):
    """The share of a run's time that was spent inside our code; as text, in its two parts.

    The first seconds are free, so that short runs are recorded whole; the budget holds after them.
    """

    free: float
    """How many of the free seconds were used."""
    after: float
    """The share of the time since they were used up."""

    def __new__(cls, spent: float, wall: float, allowance: float, charged: float) -> "Overhead":
        """`charged` is for how many seconds by now the budget holds."""
        self = super().__new__(cls, spent / wall if wall > 0 else 0.0)
        self.free = min(spent, allowance)
        self.after = max(spent - allowance, 0.0) / charged if charged > 0 else 0.0
        return self

    def __str__(self) -> str:
        free = f"{self.free:.2g} s of the free ones"
        return f"{free}, then {100 * self.after:.2g} % of the time" if self.after else free


class OverheadTimer:
    """Adds up the time spent inside our code."""

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds so far; hooks too frequent for `ErrorGuard.run` add to them themselves."""
        self.started = time.perf_counter()

    @property
    def wall(self) -> float:
        """Seconds since the recording began."""
        return time.perf_counter() - self.started


class ErrorGuard:
    """Every call from the training into our code goes through `run`, which times it.

    Catches `Exception` only: KeyboardInterrupt and SystemExit pass through. While a CUDA graph is
    captured nothing is done: what we launch, or ask of a device, would become part of the graph or
    break it.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.off = False
        self.error: BaseException | None = None
        self.timer = OverheadTimer()
        self._on_failure = on_failure

    def run(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call `action` and time it; None where it failed or recording is off."""
        if self.off or (_CUDA and capturing()):
            return None
        start = time.perf_counter()
        try:
            return action(*args)
        except Exception as error:
            self.fail(error)
        finally:
            self.timer.spent += time.perf_counter() - start

    def switch_off(self) -> None:
        """From now on `run` does nothing."""
        self.off = True

    def fail(self, error: Exception) -> None:
        """Switch recording off, with one log line; called twice it does nothing."""
        if self.off:
            return
        self.off = True
        self.error = error
        # The last line of defence: where even this fails, there is nowhere left to report to.
        with contextlib.suppress(Exception):
            said = "gradwatch stopped recording; the training goes on unchanged (%s: %s)"
            log.warning(said, type(error).__name__, error)
            log.debug("gradwatch: where it happened", exc_info=error)
        with contextlib.suppress(Exception):
            self._on_failure()


def capturing() -> bool:
    """Whether a CUDA graph is being captured on the present stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
