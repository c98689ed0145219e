"""A thread between the training and a service: the training never waits, the service never floods.

Numbers are sent at most once in `INTERVAL` seconds, the newest of each name; findings at once. A
service that fails is told of once and left alone.
"""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gradwatch.errors import Exit, GradwatchError
from gradwatch.forward.services import SERVICES, Service

INTERVAL = 1.0
PATIENCE = 10.0
WAITING = 256
"""Items the outbox holds while a service is slow; numbers beyond it are dropped, findings never."""

log = logging.getLogger("gradwatch")
Item = tuple[int, Mapping[str, float] | tuple[str, str]]


class Outbox:
    """Made with a service; `numbers` and `finding` may be called from the training's hooks."""

    def __init__(self, service: Service, *, interval: float = INTERVAL) -> None:
        self._service, self._interval = service, interval
        self._items: queue.Queue[Item | None] = queue.Queue()
        self._next = 0.0
        self._off = False
        self._thread = threading.Thread(target=self._work, name="gradwatch-forward", daemon=True)
        self._thread.start()

    def numbers(self, step: int, values: Mapping[str, float], *, last: bool = False) -> None:
        """Send these, unless some were sent a moment ago (`last` ones go anyway)."""
        now = time.monotonic()
        if self._off or (not last and (now < self._next or self._items.qsize() >= WAITING)):
            return
        self._next = now + self._interval
        self._items.put((step, dict(values)))

    def finding(self, step: int, title: str, text: str) -> None:
        if not self._off:
            self._items.put((step, (title, text)))

    def close(self, timeout: float = PATIENCE) -> None:
        """Send what waits, within `timeout` seconds."""
        self._items.put(None)
        self._thread.join(timeout)
        self._off = True

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            self._try(item)
        try:
            self._service.close()
        except Exception as error:
            log.warning("gradwatch: closing %s failed: %s", type(self._service).__name__, error)

    def _try(self, item: Item) -> None:
        if self._off:
            return
        step, what = item
        try:
            if isinstance(what, tuple):
                self._service.finding(step, *what)
            else:
                self._service.numbers(step, what)
        except Exception as error:
            self._off = True
            name = type(self._service).__name__
            log.warning("gradwatch: %s failed (%s); nothing more is sent there", name, error)


def open_outbox(service: str, name: str, folder: Path) -> Outbox:
    """The outbox of a service by its word; wrong words and missing packages raise here."""
    if service not in SERVICES:
        known = ", ".join(SERVICES)
        raise GradwatchError(f"Cannot forward to {service!r}; known: {known}.", Exit.USAGE)
    try:
        return Outbox(SERVICES[service](name, folder))
    except ImportError as error:
        raise GradwatchError(
            f"Forwarding to {service} needs its package, which cannot be imported: {error}.",
            Exit.USAGE,
        ) from error
