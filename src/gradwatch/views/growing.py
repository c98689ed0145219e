"""A run that is still being written, read on whenever it has grown."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gradwatch.run import Run
from gradwatch.store import follow

SECONDS = 1.0


def growing(
    path: Path, *, seconds: float = SECONDS, wait: Callable[[float], None] = time.sleep
) -> Iterator[Run]:
    """Yield the run now and each time it has new steps, until it says that it is complete."""
    seen: tuple[int, int] | None = None
    follower = follow(path)
    while True:
        run = follower.refresh()
        mark = (len(run.steps), len(run.events))
        if mark != seen:
            seen = mark
            yield run
        if run.info.get("complete"):
            return
        wait(seconds)
