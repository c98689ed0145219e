"""Doing units of work: in this process, on a pool of processes, or on a Dask cluster."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gradwatch.checkpoints.blocks import (
    Access,
    changed,
    close_all,
    mapping,
    reading,
    unchanged,
)
from gradwatch.checkpoints.index import FileId
from gradwatch.checkpoints.isolated import Workers
from gradwatch.checkpoints.limits import ALONE_BYTES
from gradwatch.errors import Exit, GradwatchError

_Result = TypeVar("_Result")
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True)
class ScanOptions:
    """How to work: how many processes, on which cluster, and who hears of progress."""

    workers: int | None = None
    """None: as many as there are processors; 0: none, all in the calling process."""
    dask: str | None = None
    progress: Progress = lambda done, total: None
    executor: Executor | None = None
    """Anything of that form, instead of a pool of our own; it is not shut down."""


@dataclass(frozen=True, slots=True)
class WorkUnit(Generic[_Result]):
    """One call of a function of ours; small enough to be sent to a worker."""

    function: Callable[..., _Result]
    """Gets an `Access`, then the arguments."""
    arguments: tuple[Any, ...]
    bytes: int
    """How much it reads."""
    files: frozenset[FileId]

    def done(self, access: Access) -> _Result:
        """The result, if the files stayed as they were."""
        result = self.function(access, *self.arguments)
        for file in self.files:
            if not unchanged(file):
                raise changed(file)
        return result


def done_in_worker(unit: WorkUnit[_Result]) -> _Result:
    """In a worker process: with the files mapped."""
    return unit.done(mapping)


def do_work(
    units: Sequence[WorkUnit[_Result]],
    options: ScanOptions,
    path: str,
    size: int,
    alone: int = ALONE_BYTES,
) -> list[_Result]:
    """The results in the order of the units; up to `alone` bytes here, above that on workers."""
    small = size <= alone and options.workers is None
    here = options.dask is None and options.executor is None
    try:
        if not units or (here and (small or options.workers == 0)):
            return _done_here(units, options.progress)
        return _done_by_workers(units, options)
    except (OSError, MemoryError) as error:
        raise GradwatchError(f"Cannot read {path}: {error}.") from None
    finally:
        close_all()


def _done_here(units: Sequence[WorkUnit[_Result]], progress: Progress) -> list[_Result]:
    total, so_far, results = sum(unit.bytes for unit in units), 0, []
    for unit in units:
        results.append(unit.done(reading))
        so_far += unit.bytes
        progress(so_far, total)
    return results


def _done_by_workers(units: Sequence[WorkUnit[_Result]], options: ScanOptions) -> list[_Result]:
    """In any order. What a worker left undone when it died is tried once more."""
    total, so_far = sum(unit.bytes for unit in units), 0
    results: dict[int, _Result] = {}
    for last_attempt in (False, True):
        left = [number for number in range(len(units)) if number not in results]
        try:
            with _executor(options, len(left)) as executor:
                futures = {executor.submit(done_in_worker, units[n]): n for n in left}
                try:
                    for future in as_completed(futures):
                        results[futures[future]] = future.result()
                        so_far += units[futures[future]].bytes
                        options.progress(so_far, total)
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
            # A mapped file that shrinks kills its reader: say so, or try the rest once more.
            for file in {file for n in left for file in units[n].files}:
                if not unchanged(file):
                    raise changed(file) from None
            if last_attempt:
                raise GradwatchError(
                    "The worker processes died twice, although the files did not change. "
                    "Memory may be short."
                ) from None
    return [results[number] for number in range(len(units))]


@contextmanager
def _executor(options: ScanOptions, units: int) -> Iterator[Executor]:
    """The caller's own, the cluster at an address, or a pool of fresh processes."""
    if options.executor is not None:
        yield options.executor
        return
    if options.dask is None:
        # Not forked: the caller may have threads, and a copy of its memory would be a waste.
        with Workers(min(options.workers or _cores(), units)) as pool:
            yield pool
        return
    try:
        from distributed import Client
    except ImportError:
        raise GradwatchError(
            "Dask is not installed; `pip install distributed` adds it.", Exit.USAGE
        ) from None
    try:
        client = Client(options.dask, timeout=30, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise GradwatchError(f"There is no Dask scheduler at {options.dask}: {error}.") from None
    with client, client.get_executor(pure=False) as cluster:
        yield cluster


def _cores() -> int:
    """Processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _lost_worker(error: Exception) -> bool:
    """A process that died: concurrent.futures' error, or Dask's, which is no subclass of it."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
