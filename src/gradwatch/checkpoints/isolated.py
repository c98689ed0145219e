"""A pool of processes that import nothing from the current folder, to measure checkpoints in."""

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gradwatch.isolated import NEUTRAL, WORKER, Died, IsolatedProcess
from gradwatch.isolated import command as isolated

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `main()` of a module, which is told the current folder."""
    relative = f"from gradwatch.checkpoints.readers import files; files.relative_to = {_here()!a}"
    return isolated(module, *arguments, before=relative)


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was deleted: no relative path leads anywhere
        return NEUTRAL


class Workers(Executor):
    """A pool of such processes, each fed by one thread.

    Unlike a ProcessPoolExecutor's, they neither start from the current folder (nor does a tracker
    process) nor import the caller's main module, so a script needs no `if __name__ == ...` guard.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._of_thread = threading.local()
        self._workers: list[IsolatedProcess] = []

    def submit(
        self, function: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Result]:
        """The function must be one of gradwatch's: a worker can import no other."""
        return self._threads.submit(self._ask, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the work to end (`cancel_futures`: break it off), then end the processes."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in list(self._workers):
                worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _ask(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not hasattr(self._of_thread, "worker"):
            self._of_thread.worker = IsolatedProcess(lambda pipe: command(WORKER, pipe))
            self._workers.append(self._of_thread.worker)
        try:
            return self._of_thread.worker.ask(function, args, kwargs)
        except Died:
            raise BrokenExecutor("A worker process died.") from None
