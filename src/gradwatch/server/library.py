"""The runs being served: ids instead of paths."""

import hashlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.server.shelf import Gone, Shelf
from gradwatch.server.worker import Worker
from gradwatch.store import list_runs

LOOK_SECONDS = 1.5
"""How long one listing may diagnose runs; the others follow with the next listing."""


class Library:
    """All runs under the folders given; looked through again at every listing."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._shelves: dict[str, Shelf] = {}
        self._lock = threading.Lock()
        self._worker = Worker()

    def scan(self) -> dict[str, Shelf]:
        """Ids and shelves of the runs that are there now, newest first."""
        found: dict[str, Shelf] = {}
        with self._lock:
            for root in self.roots:
                try:
                    runs = list_runs(root)
                except GradwatchError:
                    continue  # a folder that vanished: its runs are gone, the page says so
                for item in runs:
                    path = item.path.resolve()
                    key = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
                    known = self._shelves.get(key)
                    found[key] = known or Shelf(key, path, item.name, self._worker)
                    found[key].size = item.bytes
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
        if stale and shelf.big:
            shelf.worker.ask(key, shelf.prepare)
            told["line"] = f"opening, {100 * shelf.glimpse.done:.0f} %"
        elif stale and time.monotonic() < until:
            shelf.model(None, None)
    except GradwatchError:
        told["line"] = "cannot be read"
        shelf.summary = {**told, **rest}
    except Gone:
        told["line"] = "is gone"
    return {"id": key, "name": shelf.name, **told, **rest, **(shelf.summary or {})}
