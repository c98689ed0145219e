"""Progress bars on standard error, shown only when a person is watching."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
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


def _bar(*columns: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
