"""Doing the tasks: here, on a pool of processes, or on a Dask cluster; one function for all."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import contextmanager, nullcontext
from typing import Protocol, TypeVar

from gradwatch.checkpoints.access import changed, unchanged
from gradwatch.checkpoints.index import FileId
from gradwatch.checkpoints.isolated import Workers
from gradwatch.errors import Exit, GradwatchError

_Result = TypeVar("_Result")


class Work(Protocol):
    """Something a worker can do: how much it reads, and of which files."""

    @property
    def bytes(self) -> int: ...
    @property
    def files(self) -> frozenset[FileId]: ...


_Task = TypeVar("_Task", bound=Work)
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def cores() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@contextmanager
def executor(workers: int, dask: str | None = None) -> Iterator[Executor]:
    """A pool of fresh processes, or the cluster at an address."""
    if dask is None:
        # Not forked: the caller may have threads, and a copy of its memory would be a waste.
        with Workers(workers) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise GradwatchError(
            "Dask is not installed; `pip install gradwatch[dask]` adds it.", Exit.USAGE
        ) from None
    try:
        client = Client(dask, timeout=30, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise GradwatchError(f"There is no Dask scheduler at {dask}: {error}.") from None
    with client, client.get_executor(pure=False) as cluster:  # type: ignore[no-untyped-call]
        yield cluster


def done_alone(
    tasks: Sequence[_Task], function: Callable[[_Task], _Result], progress: Progress
) -> list[_Result]:
    """One after another, in this process."""
    total, so_far, found = sum(task.bytes for task in tasks), 0, []
    for task in tasks:
        found.append(function(task))
        so_far += task.bytes
        progress(so_far, total)
    return found


def done_together(
    tasks: Sequence[_Task],
    function: Callable[[_Task], _Result],
    progress: Progress,
    *,
    workers: int,
    dask: str | None = None,
    pool: Executor | None = None,
) -> list[_Result]:
    """On workers, in any order; the results are in the order of the tasks."""
    total = sum(task.bytes for task in tasks)
    found: dict[int, _Result] = {}
    for attempt in range(2):
        left = [number for number in range(len(tasks)) if number not in found]
        try:
            with nullcontext(pool) if pool else executor(min(workers, len(left)), dask) as doing:
                futures = {doing.submit(function, tasks[number]): number for number in left}
                try:
                    for future in as_completed(futures):
                        found[futures[future]] = future.result()
                        progress(sum(tasks[number].bytes for number in found), total)
                except BaseException:
                    for future in futures:
                        future.cancel()
                    raise
            break
        except GradwatchError:
            raise
        except Exception as error:
            if not _lost_worker(error):
                raise
            _explain(tasks, left, last=attempt == 1)
    return [found[number] for number in range(len(tasks))]


def _lost_worker(error: Exception) -> bool:
    """A process that died: concurrent.futures' error, or Dask's, which is no subclass of it."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def _explain(tasks: Sequence[Work], left: Sequence[int], *, last: bool) -> None:
    """A mapped file that shrinks kills its reader: say so, or try the rest once more."""
    for number in left:
        for file in tasks[number].files:
            if not unchanged(file):
                raise changed(file) from None
    if last:
        raise GradwatchError(
            "The worker processes died twice, although the files did not change. "
            "Memory may be short."
        ) from None
