"""One thread for everything that takes long, so that answers need not wait for it."""

import logging
import queue
import threading
from collections.abc import Callable

from gradwatch.text import plain

LOG = logging.getLogger(__name__)


class Worker:
    """Jobs one after another, each once however often it is asked for; a failing one is logged."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, key: str, job: Callable[[], None]) -> None:
        """Do it when its turn comes, unless it is waiting or being done already."""
        with self._lock:
            if key in self._waiting:
                return
            self._waiting.add(key)
            self._jobs.put((key, job))
            if self._thread is None:  # a daemon: nobody waits for it when the server is stopped
                self._thread = threading.Thread(target=self._work, name="looker", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            key, job = self._jobs.get()
            try:
                job()
            except Exception as error:
                LOG.warning("%s: %s", type(error).__name__, plain(str(error)))
            finally:
                with self._lock:
                    self._waiting.discard(key)
