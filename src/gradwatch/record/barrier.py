"""Nothing we do may reach the training: the first error is logged once and recording stops."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("gradwatch")
log.addHandler(logging.NullHandler())


class Meter:
    """Time spent inside our code."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.clock = time.perf_counter
        self.started = time.perf_counter()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self.started

    @property
    def overhead(self) -> float:
        """Share of the run's wall time spent inside our hooks."""
        wall = self.wall
        return self.spent / wall if wall > 0 else 0.0


class Barrier:
    """Guards every way from the training into us, and meters it.

    Catches `Exception` only: KeyboardInterrupt and SystemExit pass through.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.off = False
        self.error: BaseException | None = None
        self.meter = Meter()
        self._on_failure = on_failure

    def run(self, action: Callable[..., Any], *args: Any) -> Any:
        """Call `action`, metered; None where it failed or recording is off."""
        if self.off:
            return None
        clock = self.meter.clock
        start = clock()
        try:
            return action(*args)
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.meter.spent += clock() - start

    def fail(self, error: Exception) -> None:
        """Switch recording off, with one log line; called twice it does nothing."""
        if self.off:
            return
        self.off = True
        self.error = error
        # The last line of defence: where even this fails, there is nowhere left to report to.
        with contextlib.suppress(Exception):
            _say(error)
        with contextlib.suppress(Exception):
            self._on_failure()


def _say(error: Exception) -> None:
    log.warning(
        "gradwatch stopped recording; the training goes on unchanged (%s: %s)",
        type(error).__name__,
        error,
        exc_info=error,
    )
