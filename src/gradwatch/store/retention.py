"""Retention: which sealed rows may go, and the event that says so. Rollups always stay."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradwatch.errors import Exit, GradwatchError
from gradwatch.run.subject import Event, EventKind
from gradwatch.store.manifest import SealedFile

FULL_ROWS = ("rows", "sketches", "histograms")
"""Kinds of files that retention takes."""


@dataclass(frozen=True)
class Retention:
    """What to keep of the full rows: so many bytes of the run's folder, or so many seconds."""

    bytes: int | None = None
    seconds: float | None = None


_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([a-z]+)", re.ASCII | re.IGNORECASE)
SMALLEST = 10**6


def retention(keep: object) -> Retention | None:
    """What a user asks to keep: "all" (None), a size such as "1GB", an age such as "7d"."""
    text = keep if isinstance(keep, str) else ""
    if text == "all":
        return None
    match = _AMOUNT.fullmatch(text)
    unit = match[2].lower() if match else ""
    amount = float(match[1]) * _UNITS.get(unit, 0) if match else 0.0
    if unit.endswith("b") and amount >= SMALLEST:
        return Retention(bytes=int(amount))
    if unit in ("h", "d") and amount > 0:
        return Retention(seconds=amount)
    raise GradwatchError(
        f"`keep` must be 'all', a size from 1MB up such as '500MB' or '1GB', or an age such as "
        f"'12h' or '7d', got {keep!r}.",
        Exit.USAGE,
    )


def due(
    rows: Mapping[int, Sequence[SealedFile]],
    total: int,
    keep: Retention,
    age: Callable[[int], float],
) -> list[SealedFile]:
    """The files of full rows that go now, the oldest first; `rows` are all of them, by number.

    `total` is the size of the folder, `age` the seconds since those of a number were sealed. The
    newest rows always stay.
    """
    gone: list[SealedFile] = []
    numbers = sorted(rows)
    for number in numbers[:-1]:
        too_large = keep.bytes is not None and total > keep.bytes
        if not too_large and (keep.seconds is None or age(number) <= keep.seconds):
            break
        gone += rows[number]
        total -= sum(file.bytes for file in rows[number])
    return gone


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
