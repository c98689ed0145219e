"""Retention: what `keep=` means, and which parts go to bound a run's folder."""

import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store.folder import Folder
from gradwatch.store.layout import LOG, Part, packed
from gradwatch.store.places import Place
from gradwatch.store.runs import writers

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([a-z]+)", re.ASCII | re.IGNORECASE)


class Retention(NamedTuple):
    """What to keep: so many bytes of the run's folder, or full rows of so many seconds."""

    bytes: int | None = None
    seconds: float | None = None

    def shared(self, folders: int) -> "Retention":
        """The share of one of so many writers' folders."""
        return Retention(self.bytes and self.bytes // max(folders, 1), self.seconds)


def retention(keep: object) -> Retention | None:
    """What a user asks to keep: "all" (None), a size such as "1GB", an age such as "7d"."""
    text = keep if isinstance(keep, str) else ""
    if text == "all":
        return None
    match = _AMOUNT.fullmatch(text)
    unit = match[2].lower() if match else ""
    amount = float(match[1]) * _UNITS.get(unit, 0) if match else 0.0
    if unit.endswith("b") and amount >= 10**6:
        return Retention(bytes=int(amount))
    if unit in ("h", "d") and amount > 0:
        return Retention(seconds=amount)
    raise GradwatchError(
        f"`keep` must be 'all', a size from 1MB up such as '500MB' or '1GB', or an age such as "
        f"'12h' or '7d', got {keep!r}.",
        Exit.USAGE,
    )


Parts = list[tuple[str, Part]]
"""Parts that go, by table."""
Tables = Mapping[str, Mapping[Part, float]]
"""By table its parts in order, and when each was finished."""


def removal(tables: Tables, now: float, total: int, keep: Retention) -> Parts:
    """What goes now, by table: the oldest full rows first, then the oldest coarse rows.

    `total` is the size of the folder. The newest part of each table always stays. A folder that is
    too large shrinks by an eighth, so that not every new part makes another one go.
    """
    limit = keep.bytes * 7 // 8 if keep.bytes is not None and total > keep.bytes else total
    gone: Parts = []
    for kinds in (("rows", "histograms"), ("coarse",)):
        found = [
            (part.first_step, table, part, ended)
            for table, parts in tables.items()
            if table.partition("/")[0] in kinds
            for part, ended in [*parts.items()][:-1]
        ]
        for _, table, part, ended in sorted(found):
            old = "rows" in kinds and now - ended > (keep.seconds or math.inf)
            if old or total > limit:
                gone.append((table, part))
                total -= part.bytes
    return gone


# -- after the fact --------------------------------------------------------------------------------


def prunable(run: str | os.PathLike[str], keep: Retention) -> dict[Path, Parts]:
    """By writer's folder, what is beyond what is to be kept of this run of this machine.

    Folders that are not closed are left alone; their writers may be at work.
    """
    place = Place.of(run)
    closed = [f for *_, name in writers(place) if (f := Folder(place / name)).closed]
    gone: dict[Path, Parts] = {}
    for folder in closed:
        path, total = Path(folder.place), sum(folder.place.files().values())
        tables = {
            table: {part: (path / table / part.name).stat().st_mtime for part in parts}
            for table, parts in folder.parts.items()
        }
        if found := removal(tables, time.time(), total, keep.shared(len(closed))):
            gone[path] = found
    return gone


def prune(gone: Mapping[Path, Parts]) -> None:
    """Remove what `prunable` found: the log says so first."""
    for folder, parts in gone.items():
        with (folder / LOG).open("ab") as log:
            log.write(packed("removed", {table: part.number for table, part in parts}))
        for table, part in parts:
            (folder / table / part.name).unlink(missing_ok=True)
