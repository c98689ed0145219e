"""Progress on standard error, shown only when a person is watching."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

PATIENCE = 1.0
"""Seconds after which a bar appears: what is quicker needs none."""


@contextmanager
def bytes_bar() -> Iterator[Callable[[int, int], None]]:
    """A function to be called with the bytes done and the bytes in all."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _bar(TextColumn("reading"), *columns) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def share_bar(word: str) -> Iterator[Callable[[float], None]]:
    """A function to be called with the share that is done, from 0 to 1."""
    begun = time.monotonic()
    with _bar(*Progress.get_default_columns()) as bar:
        task = bar.add_task(word, total=1.0, visible=False)
        yield lambda share: bar.update(
            task, completed=share, visible=time.monotonic() - begun > PATIENCE
        )


@contextmanager
def waiting(word: str) -> Iterator[None]:
    """A sign of life and the seconds, for work that cannot say how much of it is done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    bar = _bar(*columns)
    bar.add_task(word, total=None)
    appear = threading.Timer(PATIENCE, bar.start)
    appear.daemon = True
    appear.start()
    try:
        yield
    finally:
        appear.cancel()
        appear.join()  # it may be just starting the bar
        if bar.live.is_started:
            bar.stop()


def _bar(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
