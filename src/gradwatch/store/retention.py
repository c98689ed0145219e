"""Retention, off by default: fine files go, oldest first, once a coarser level covers them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SealedRange:
    """A finished file and how far it reaches."""

    path: Path
    last_step: int
    first_seq: int
    last_seq: int


class Levels(Protocol):
    """What retention asks the levels."""

    finished: dict[int, list[SealedRange]]

    def covered(self, level: int) -> int: ...


@dataclass
class Retention:
    """How many of the newest steps are kept in full, by tens and by hundreds."""

    raw: int = 10_000
    tens: int = 80_000
    hundreds: int = 600_000
    _files: list[SealedRange] = field(default_factory=list)
    _newest: int = -(1 << 62)

    def sealed(self, file: SealedRange) -> None:
        """A level-0 file was finished."""
        self._files.append(file)
        self._newest = max(self._newest, file.last_step)

    def due(self, levels: Levels) -> list[SealedRange]:
        """What is old enough and covered by a coarser level."""
        found: list[SealedRange] = []
        for level, (files, keep) in self._kept(levels).items():
            safe = levels.covered(level + 1)
            for file in files:
                if self._newest - file.last_step < keep or file.last_seq >= safe:
                    break
                found.append(file)
        return found

    def delete(self, files: Sequence[SealedRange], levels: Levels) -> None:
        """Delete what was due, after it was said in an event."""
        for file in files:
            with contextlib.suppress(OSError):
                file.path.unlink(missing_ok=True)
        for listed, _ in self._kept(levels).values():
            listed[:] = [file for file in listed if file not in files]

    def _kept(self, levels: Levels) -> Mapping[int, tuple[list[SealedRange], int]]:
        return {
            0: (self._files, self.raw),
            1: (levels.finished[1], self.tens),
            2: (levels.finished[2], self.hundreds),
        }
