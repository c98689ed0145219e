"""One served run: what was built of it, what is being built, and what can be told meanwhile."""

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwatch.run import Run
from gradwatch.server.glimpse import Glimpse, choosable
from gradwatch.server.made import Made, Told
from gradwatch.server.wish import Wish
from gradwatch.server.worker import Worker
from gradwatch.store import Follower, follow
from gradwatch.views.model import build, diagnosed
from gradwatch.views.model.health import Diagnosed

KEPT = 6
"""Windows of one run kept as bytes."""
REST = 5.0
"""A growing run is built again only after this many times what the last build took."""
MOST_DIAGNOSED = 60_000_000
"""Checks load series whole; beyond so many values that is left to `gradwatch diagnose`."""
BIG = 64 << 20
"""Bytes on disk from which on a run is opened beside, with a first look meanwhile."""
SPARK = 60
"""Points of a small loss curve."""


class Gone(Exception):
    """The run is not there (any more)."""


@dataclass
class Shelf:
    """One run: its followers, and what was built of it."""

    key: str
    path: Path
    name: str
    worker: Worker
    size: int = 0
    told: Told = field(default_factory=Told)
    models: OrderedDict[tuple[Any, ...], Made] = field(default_factory=OrderedDict)
    summary: dict[str, Any] | None = None
    summary_mark: str = ""
    ready: str = ""
    """The mark for which everything that takes long is done."""
    busy: str = ""
    """What the worker does for this run just now."""

    def __post_init__(self) -> None:
        self.glimpse = Glimpse(self.path)
        self._follower: Follower = follow(self.path)
        self._lock = threading.Lock()
        self._built = -1e9
        self._took = 0.0
        self._run: tuple[str, Run] | None = None
        self._diagnosis: tuple[str, Diagnosed] | None = None

    @property
    def big(self) -> bool:
        return self.size >= BIG

    @property
    def large(self) -> bool:
        """Whether the run, once open, turned out too large for the checks."""
        run = self.glimpse.run
        return run is not None and len(run.steps) * len(run.parameters) > MOST_DIAGNOSED

    def mark(self) -> str:
        """Changes whenever a file of the run does; reads no data."""
        if not self.path.is_dir():
            raise Gone
        seen = hashlib.blake2b(digest_size=8)
        try:
            for file in sorted(self.path.rglob("*")):
                found = file.stat(follow_symlinks=False)
                seen.update(f"{file.name} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            seen.update(b"changing")
        return seen.hexdigest()

    @property
    def resting(self) -> bool:
        """Whether it was built a moment ago, measured by what that took."""
        return time.monotonic() - self._built < REST * self._took

    # -- answers ---------------------------------------------------------------------------------

    def view(self, wish: Wish) -> Made:
        """The answer to a question; only plain ones wait until all is read and diagnosed."""
        if wish.plain and (wish.waits or not self.big):
            return self.model(wish.first, wish.last).only(wish.sections)
        mark = self.mark()
        if wish.soon and wish.maps is None and wish.first is None and wish.last is None:
            final = self._latest()
            if final is not None:
                self._later(mark)
                return final.only(wish.sections)
        return self._at_once(mark, wish)

    def model(self, first: int | None, last: int | None) -> Made:
        """The view model of a window: the same bytes a report of it would hold."""
        if self.big:
            self.glimpse.open(self.mark())
        with self._lock:
            mark = self.mark()
            key = (mark, first, last)
            if key in self.models:
                self.models.move_to_end(key)
                return self.models[key]
            older = [known for known in self.models if known[1:] == (first, last)]
            if self.resting and older:
                return self.models[older[-1]]
            return self._build(key, first, last)

    def _latest(self) -> Made | None:
        """The newest model of the whole run, of a run that was shorter perhaps."""
        whole = [made for key, made in list(self.models.items()) if key[1:] == (None, None)]
        return whole[-1] if whole else None

    def _later(self, mark: str) -> None:
        if self.ready != mark:
            self.worker.ask(self.key, self.prepare)

    def _at_once(self, mark: str, wish: Wish) -> Made:
        self._later(mark)
        if self.glimpse.run is None and self.big:
            first = self.glimpse.first_look(wish)
            if first is not None:
                return first.beside("coming", self.coming()) if wish.soon else first
        if self.glimpse.run is None or not self.big:
            self.glimpse.open(mark)
        known = self._diagnosis[1] if self._diagnosis else None
        made = self.glimpse.made(wish, known)
        coming = self.coming()
        return made.beside("coming", coming) if wish.soon and coming else made

    def coming(self) -> dict[str, Any]:
        """What an answer given at once does not have yet: what is done, how far, which maps."""
        run = self.glimpse.run
        told: dict[str, Any] = {}
        if run is None:
            told = {"what": "opening", "done": round(self.glimpse.done, 2)}
        elif not self.large and self._diagnosis is None:
            told = {"what": "diagnosing", "done": None}
        elif self.large:
            told = {"what": "not diagnosed: too large", "done": None}
        return {**told, "maps": choosable(run) if run else []}

    # -- the long work ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open, diagnose, summarise: by the worker's thread."""
        mark = self.mark()
        if self.ready == mark:
            return
        try:
            self.busy = "opening"
            if self.big:
                self.glimpse.open(mark)
            if self.large:
                self._summarise(mark)
                self.busy = ""  # it is open; the rest is for speed alone
                self.glimpse.warm()
            else:
                self.busy = "diagnosing"
                self.model(None, None)
            if not self.resting or self.summary_mark == mark:
                self.ready = mark
        finally:
            self.busy = ""

    def _summarise(self, mark: str) -> None:
        wish = Wish(sections=frozenset({"run", "health", "scalars"}), maps=())
        made = self.glimpse.made(wish, None)
        assert self.glimpse.run is not None
        complete = bool(self.glimpse.run.info.get("complete"))
        self.summary, self.summary_mark = summarised(complete, made.parsed), mark

    def _build(self, key: tuple[Any, ...], first: int | None, last: int | None) -> Made:
        begun = time.monotonic()
        mark = str(key[0])
        if self.large:  # opened once is enough
            run = self.glimpse.open(mark)
            model = self.glimpse.model(first, last)
        else:
            run = self._opened(mark)
            small = len(run.steps) * len(run.parameters) <= MOST_DIAGNOSED
            diagnosis = self._diagnosed(mark, run) if small else None
            model = build(run, diagnosis, first=first, last=last)
        made = Made.of(model)
        self.models[key] = made
        while len(self.models) > KEPT:
            self.models.popitem(last=False)
        if first is None and last is None:
            complete = bool(run.info.get("complete"))
            self.summary, self.summary_mark = summarised(complete, model), mark
        self._built = time.monotonic()
        self._took = self._built - begun
        return made

    def _opened(self, mark: str) -> Run:
        if self._run is None or self._run[0] != mark:
            self._run = mark, self._follower.refresh()
        return Run(self._run[1].source)  # what it loads is let go again

    def _diagnosed(self, mark: str, run: Run) -> Diagnosed:
        if self._diagnosis is None or self._diagnosis[0] != mark:
            self._diagnosis = mark, diagnosed(Run(run.source))  # what it loads is let go
        return self._diagnosis[1]


def summarised(complete: bool, model: dict[str, Any]) -> dict[str, Any]:
    """What the list shows of a run."""
    loss = next((curve for curve in model["scalars"] if curve["name"] == "loss"), None)
    values = loss["last"] if loss else []
    step = max(1, -(-len(values) // SPARK))
    return {
        "state": model["health"]["state"],
        "line": model["health"]["line"],
        "steps": model["run"]["steps"],
        "loss": values[::step],
        "last_loss": values[-1] if values else None,
        "complete": complete,
    }
