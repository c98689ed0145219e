"""Retention: which sealed rows may go, and the event that says so. Rollups always stay."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwatch.run.subject import Event, EventKind
from gradwatch.store.manifest import SealedFile

FULL_ROWS = ("rows", "sketches", "histograms")
"""Kinds of files that retention takes."""


@dataclass(frozen=True)
class Retention:
    """What to keep of the full rows: so many bytes of the run's folder, or so many seconds."""

    bytes: int | None = None
    seconds: float | None = None


def due(
    folder: Path, rows: Mapping[int, Sequence[SealedFile]], total: int, keep: Retention
) -> list[SealedFile]:
    """The files of full rows that go now, the oldest first; `rows` are all of them, by number.

    `total` is the size of the folder. The newest rows always stay.
    """
    gone: list[SealedFile] = []
    numbers = sorted(rows)
    for number in numbers[:-1]:
        if not (keep.bytes is not None and total > keep.bytes):
            oldest = folder / rows[number][0].file
            if keep.seconds is None or _age(oldest) <= keep.seconds:
                break
        gone += rows[number]
        total -= sum(file.bytes for file in rows[number])
    return gone


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def removal(gone: Sequence[SealedFile]) -> Event:
    """The event that says which rows retention takes."""
    first, last = min(file.first_step for file in gone), max(file.last_step for file in gone)
    return Event(
        last,
        EventKind.RETENTION,
        f"The rows of steps {first} to {last} were removed to keep the run small; "
        "rollups stand for them.",
        data={"files": len(gone), "first_step": first, "last_step": last},
        wall=time.time(),
    )
