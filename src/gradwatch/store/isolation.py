"""Decoding in a process of its own: over a forged file that process may die, and nobody else.

A server opens runs that come from anywhere, and lives for weeks. It gives a `Decoder` to everything
that reads sealed files (`call=`); a command that reads one run decodes in its own process.
"""

import atexit
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.isolated import WORKER, Died, IsolatedProcess, command
from gradwatch.store.decoding import pyarrow
from gradwatch.store.tables import Unreadable

_MEMORY = 3 << 29
"""Bytes beyond those it starts with; more than the largest columns that are unpacked together."""
_SECONDS = 30.0
_AT_ONCE = 2
_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
"""No memory kept for later, and no threads: the limit would count both."""


class Decoder:
    """Calls functions of ours in another process, started with the first call.

    Safe with threads: a second process is started where two call at once, and further ones wait.
    """

    def __init__(self, memory: int = _MEMORY, seconds: float = _SECONDS) -> None:
        self.memory, self.seconds = memory, seconds
        self._idle: list[IsolatedProcess] = []
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._deadly: set[int] = set()
        atexit.register(self.close)

    def __call__(self, function: Callable[..., Any], file: bytes, *arguments: Any) -> Any:
        """What the function returns of a file, which its first argument (the footer) tells apart.

        Raises Unreadable where the process died of it, now or before.
        """
        key = hash(file)
        if key in self._deadly:
            raise Unreadable("its decoder died of it before")
        with self._slots:
            try:
                return self._ask(function, file, *arguments)
            except Died:
                pass  # somebody may have killed it: only what dies of the same file twice blames it
            try:
                return self._ask(function, file, *arguments)
            except Died as error:
                self._deadly.add(key)
                raise Unreadable(f"the decoder died of it: {error}") from None

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        worker = self._worker()
        try:
            answer = worker.ask(function, arguments, seconds=self.seconds)
        except (Died, KeyboardInterrupt, SystemExit):  # the last two between question and answer
            worker.close()
            raise
        except Exception as error:
            self._idle.append(worker)
            if isinstance(error, Unreadable | GradwatchError):
                raise
            raise Unreadable(f"the decoder failed: {type(error).__name__}") from error
        self._idle.append(worker)
        return answer

    @property
    def processes(self) -> list[int]:
        """Those that wait for the next call."""
        return [pid for worker in self._idle if (pid := worker.pid)]

    def close(self) -> None:
        """End the processes; a further call starts a new one."""
        while self._idle:
            self._idle.pop().close()

    def _worker(self) -> IsolatedProcess:
        while self._idle:
            worker = self._idle.pop()
            if worker.pid:
                return worker
            worker.close()  # it died since, of nobody's file
        try:
            worker = IsolatedProcess(_command, _VARIABLES)
        except ImportError:
            pyarrow()  # says what to install
            raise
        worker.ask(confine, (self.memory,))
        return worker


def _command(pipe: str) -> list[str]:
    return command(WORKER, pipe, packages=("numpy", "pyarrow.parquet"))


def confine(memory: int) -> None:
    """From here on, this process has this much more memory, and no more."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system has all of it
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
