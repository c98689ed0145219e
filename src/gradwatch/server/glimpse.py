"""Answers at once: windows of a run from its stored levels, before all is read or diagnosed."""

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from gradwatch.run import Run
from gradwatch.server.made import Made
from gradwatch.server.wish import Wish
from gradwatch.store import follow, glance
from gradwatch.views.model import HEAT_CHOICE, build, shown
from gradwatch.views.model.health import Diagnosed

KEPT = 24
"""Answers kept as bytes: who pans comes back."""
REST = 5.0
"""A growing run is read on only after this many times what the last reading took."""

WARMED = 10
"""Windows that are read beforehand."""
LOOK_SECONDS = 2.0
"""How long the opening of a run steps back, at each of its files, for somebody's first look."""


class Glimpse:
    """One run, opened once and read on when it grows; before that, its coarsest level."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = 0.0
        """How much of the run is open, from 0 to 1."""
        self.opening = False
        self.run: Run | None = None
        self.mark = ""
        self._follower = follow(path)
        self._lock = threading.Lock()
        self._first: Run | None = None
        self._first_kept: dict[Wish, Made] = {}
        self._first_lock = threading.Lock()
        self._looked = threading.Event()
        self._looked.set()
        self._kept: OrderedDict[tuple[str, Wish, bool], Made] = OrderedDict()
        self._opened = -1e9
        self._took = 0.0

    @property
    def resting(self) -> bool:
        return time.monotonic() - self._opened < REST * self._took

    def open(self, mark: str) -> Run:
        """Open the run, or read on what is new; takes its time."""
        with self._lock:
            if self.run is None or (self.mark != mark and not self.resting):
                begun = time.monotonic()
                self.opening = True
                try:
                    self.run = self._follower.refresh(self._hear)
                    _ = self.run.steps, self.run.scalars  # what every answer needs
                finally:
                    self.opening = False
                self.mark, self._first, self._first_kept = mark, None, {}
                self._opened = time.monotonic()
                self._took = self._opened - begun
            return self.run

    def _hear(self, part: float) -> None:
        self.done = 0.9 * part  # the rest is putting together
        self._looked.wait(LOOK_SECONDS)  # somebody waits for a first look: that comes first

    def made(self, wish: Wish, diagnosis: Diagnosed | None) -> Made:
        """The answer from the run as it was opened last."""
        with self._lock:
            assert self.run is not None
            key = (self.mark, wish, diagnosis is None)
            if key not in self._kept:
                self._kept[key] = _built(self.run, wish, diagnosis)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def model(self, first: int | None, last: int | None) -> dict[str, Any]:
        """The whole view model without a diagnosis."""
        with self._lock:
            assert self.run is not None
            return build(Run(self.run.source), None, first=first, last=last)

    def first_look(self, wish: Wish) -> Made | None:
        """The answer from the coarsest level alone; None where there is none."""
        with self._first_lock:
            if wish in self._first_kept:
                return self._first_kept[wish]
            self._looked.clear()
            try:
                if self._first is None and self.run is None:
                    self._first = glance(self.path)
                run = self._first
                if run is None:
                    return None
                made = _built(run, wish, None)
                if len(self._first_kept) < KEPT:
                    self._first_kept[wish] = made
                return made
            finally:
                self._looked.set()

    def warm(self) -> None:
        """Read what panning is going to need: the first map and the curves of the finer levels."""
        assert self.run is not None
        steps = self.run.steps
        for first in steps[:: max(1, len(steps) // WARMED)].tolist():
            last = first + len(steps) // WARMED
            sections = frozenset({"heat", "learning_rates", "updates"})
            self.made(Wish(first, last, first_map(self.run), sections), None)


def _built(run: Run, wish: Wish, diagnosis: Diagnosed | None) -> Made:
    maps = wish.maps if wish.maps is not None else first_map(run)
    return Made.of(
        build(
            Run(run.source),  # what it loads is let go again
            diagnosis,
            first=wish.first,
            last=wish.last,
            stats=maps,
            with_paths=False,
            sections=wish.sections,
        )
    )


def choosable(run: Run) -> list[str]:
    """The maps a page may ask for."""
    return [name for name in HEAT_CHOICE if shown(name).stat in run.recorded]


def first_map(run: Run) -> tuple[str, ...]:
    """The most telling one: a page shows one map at a time and asks for others when needed."""
    return tuple(choosable(run)[:1])
