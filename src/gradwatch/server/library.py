"""The runs being served: ids instead of paths, models kept while a run stands still."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.store import follow, list_runs
from gradwatch.store.opening import Follower
from gradwatch.views.model import build, diagnosed, to_json

KEPT = 6
"""Windows of one run kept as bytes."""
REST = 5.0
"""A growing run is built again only after this many times what the last build took."""
LOOK_SECONDS = 1.5
"""How long one listing may diagnose runs; the others follow with the next listing."""
MOST_DIAGNOSED = 60_000_000
"""Checks load series whole; beyond so many values that is left to `gradwatch diagnose`."""
SPARK = 60
"""Points of a small loss curve."""


class Gone(Exception):
    """The run is not there (any more)."""


@dataclass
class Shelf:
    """One run: its follower, and what was built of it."""

    path: Path
    name: str
    follower: Follower
    lock: threading.Lock = field(default_factory=threading.Lock)
    models: OrderedDict[tuple[Any, ...], bytes] = field(default_factory=OrderedDict)
    built: float = -1e9
    took: float = 0.0
    summary: dict[str, Any] | None = None
    summary_mark: str = ""

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
        return time.monotonic() - self.built < REST * self.took

    def model(self, first: int | None, last: int | None) -> bytes:
        """The view model of a window as JSON: the same bytes a report of it would hold."""
        with self.lock:
            mark = self.mark()
            key = (mark, first, last)
            if key in self.models:
                self.models.move_to_end(key)
                return self.models[key]
            older = [known for known in self.models if known[1:] == (first, last)]
            if self.resting and older:
                return self.models[older[-1]]
            return self._build(key, first, last)

    def _build(self, key: tuple[Any, ...], first: int | None, last: int | None) -> bytes:
        begun = time.monotonic()
        run = self.follower.refresh()
        small = len(run.steps) * len(run.parameters) <= MOST_DIAGNOSED
        model = build(run, diagnosed(run) if small else None, first=first, last=last)
        text = to_json(model).encode()
        self.models[key] = text
        while len(self.models) > KEPT:
            self.models.popitem(last=False)
        if first is None and last is None:
            self.summary, self.summary_mark = summarised(run, model), str(key[0])
        self.built = time.monotonic()
        self.took = self.built - begun
        return text


class Library:
    """All runs under the folders given; looked through again at every listing."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._shelves: dict[str, Shelf] = {}
        self._lock = threading.Lock()

    def scan(self) -> dict[str, Shelf]:
        """Ids and shelves of the runs that are there now, newest first."""
        found: dict[str, Shelf] = {}
        for root in self.roots:
            try:
                runs = list_runs(root)
            except GradwatchError:
                continue  # a folder that vanished: its runs are gone, the page says so
            for item in runs:
                path = item.path.resolve()
                key = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
                known = self._shelves.get(key)
                found[key] = known or Shelf(path, item.name, follow(path))
        with self._lock:
            self._shelves = found
        return found

    def shelf(self, key: str) -> Shelf:
        """By id only: what is not in the table does not exist."""
        found = self._shelves.get(key) or self.scan().get(key)
        if found is None or not found.path.is_dir():
            raise Gone
        return found

    def listing(self) -> list[dict[str, Any]]:
        """Every run in a line; those not looked at yet say so."""
        until = time.monotonic() + LOOK_SECONDS
        return [_line(key, shelf, until) for key, shelf in self.scan().items()]

    def pending(self) -> bool:
        """Whether some run was not looked at yet."""
        return any(shelf.summary is None for shelf in self._shelves.values())


def _line(key: str, shelf: Shelf, until: float) -> dict[str, Any]:
    told: dict[str, Any] = {"state": "unknown", "line": "not looked at yet", "steps": 0}
    rest: dict[str, Any] = {"loss": [], "last_loss": None, "complete": False}
    try:
        stale = shelf.summary is None or shelf.summary_mark != shelf.mark()
        if stale and time.monotonic() < until:
            shelf.model(None, None)
    except GradwatchError:
        told["line"] = "cannot be read"
        shelf.summary = {**told, **rest}
    except Gone:
        told["line"] = "is gone"
    return {"id": key, "name": shelf.name, **told, **rest, **(shelf.summary or {})}


def summarised(run: Run, model: dict[str, Any]) -> dict[str, Any]:
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
        "complete": bool(run.info.get("complete")),
    }
