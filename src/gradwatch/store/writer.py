"""`Writer`: the caller's side of a run folder. After `create`, nothing raises or touches a file."""

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.graph import Graph
from gradwatch.run.subject import Event, EventKind, Histogram, HistogramTable, Subject
from gradwatch.stats import Family, Kind, row_dtype
from gradwatch.store import parquet
from gradwatch.store.format import FAMILY_CODES, Type, pack_event, pack_histograms, to_json
from gradwatch.store.queue import Queue, Scalar, SmallRecord
from gradwatch.store.retention import Retention
from gradwatch.store.writer_thread import WriterThread

QUEUE_BYTES = 32 << 20
EXIT_SECONDS = 2.0
_SUBJECTS_PER_RECORD = 16
HISTOGRAMS_PER_RECORD = 1024
# Exit and fork must reach every writer, and must not keep one alive that nobody uses.
_LIVE: "weakref.WeakSet[Writer]" = weakref.WeakSet()


class Writer:
    """Hands a training's rows to a daemon thread that keeps them in a run folder.

    `put` only queues: no file call, no log line, no exception. A child made by `fork` has
    a silent writer: only the process that made it writes.
    """

    def __init__(self, thread: WriterThread) -> None:
        self.thread = thread
        self._queue = thread.queue
        self._off = False
        self._ids: dict[tuple[Kind, str], int] = {}
        self._declared: dict[int, Subject] = {}
        self._dtypes = {family: (FAMILY_CODES[family], row_dtype(family)) for family in Family}
        self._declare_lock = threading.RLock()  # a model may be collected inside it, as in `Queue`
        self._noted: dict[str, Any] = {}
        self._refused = False
        thread.made_anew = self._repeat
        _LIVE.add(self)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        rank: int = 0,
        world: int = 1,
        info: Mapping[str, Any] | None = None,
        keep: Retention | None = None,
        attempt: int | None = None,
        held: int | None = None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> "Writer":
        """Make (or join, as a new attempt) the run folder `path` and start the thread.

        `path` is the run's own folder, such as `runs/NAME`; `name` is the true name, as it is.
        Where the folder cannot be made now, a warning says so and the thread keeps trying. `held`
        is the descriptor that holds the run, given back when all is written.
        """
        if not (0 <= rank < max(world, 1) and rank < 1_000_000):
            raise GradwatchError(
                f"Expected a rank from 0 to {world - 1}, got {rank} of {world}.", Exit.USAGE
            )
        versions = dict((info or {}).get("versions", {}))
        if keep and keep.bytes is not None:
            keep = replace(keep, bytes=keep.bytes // max(world, 1))  # of one folder
        sealing = parquet.available()  # imports pyarrow, here and not in the thread
        queue = Queue(queue_bytes)
        thread = WriterThread(Path(path), name, rank, attempt, queue, versions, keep, sealing)
        thread.held = held
        error = thread.prepare()
        if error:
            warnings.warn(
                f"gradwatch cannot write to {str(path)!r} ({error.strerror}); it keeps trying.",
                stacklevel=2,
            )
        writer = cls(thread)
        writer.note({**(info or {}), "world": world})
        thread.start()
        return writer

    # -- rows and the rest -----------------------------------------------------------------------

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        """Ids for these subjects, old or new; a changed one keeps its id and is stored again."""
        with self._declare_lock:  # two threads that declare the same subject must get one id
            ids = np.empty(len(subjects), np.uint32)
            changed: list[tuple[int, Subject]] = []
            for at, subject in enumerate(subjects):
                number = self._ids.setdefault((subject.kind, subject.name), len(self._ids))
                ids[at] = number
                if self._declared.get(number) != subject:
                    self._declared[number] = subject
                    changed.append((number, subject))
        if not self._off:
            step = _SUBJECTS_PER_RECORD
            self._queue.add(
                [_subjects(changed[at : at + step]) for at in range(0, len(changed), step)]
            )
        return ids

    def put(
        self,
        family: Family,
        step: int,
        ids: NDArray[np.uint32],
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
        *,
        owned: bool = False,
    ) -> None:
        """Queue the rows of one family on one step (`row_dtype(family)`).

        They are copied, unless the writer is to own what is handed in: then nobody may write to it.
        """
        if self._off:
            return
        try:
            code, dtype = self._dtypes[family]
            if rows.dtype is not dtype or not rows.flags.c_contiguous:
                if rows.dtype.names != dtype.names:
                    raise ValueError(f"rows of another make than those of {family}")
                rows = np.ascontiguousarray(rows.astype(dtype))
            if not len(rows) == len(ids) == len(states):
                raise ValueError("as many ids and states as rows are needed")
            if len(rows):
                if not owned:
                    ids, rows, states = np.array(ids), rows.copy(), np.array(states)
                self._queue.rows(code, _step(step), ids, rows, states)
                if self._queue.pressing:
                    self._wake()
        except Exception as error:
            self._refuse(error)

    def histograms(self, family: Family, step: int, id: int, histogram: Histogram) -> None:
        """Keep one subject's histogram."""
        self.histogram_table(family, step, np.array([id]), HistogramTable.of([histogram]))

    def histogram_table(
        self, family: Family, step: int, ids: NDArray[Any], table: HistogramTable
    ) -> None:
        """Queue the histograms of these subjects on one step; the thread packs them."""
        for begin in range(0, len(table), HISTOGRAMS_PER_RECORD):
            end = min(begin + HISTOGRAMS_PER_RECORD, len(table))
            pack = partial(pack_histograms, ids[begin:end], table.part(begin, end))
            code = FAMILY_CODES[family]
            self._add(SmallRecord(Type.HIST, code, _clamped(step), end - begin, pack))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Keep logged numbers of one step."""
        if self._off:
            return
        try:
            self._queue.scalars(_step(step), values)
        except Exception as error:
            self._refuse(error)

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Keep logged numbers of many steps: step, name, value."""
        if self._off:
            return
        try:
            self._queue.add([Scalar(_step(step), name, value) for step, name, value in items])
        except Exception as error:
            self._refuse(error)

    def event(self, event: Event) -> None:
        """Keep an event; one without a time gets the present one."""
        if not event.wall:
            event = replace(event, wall=time.time())
        self._add(SmallRecord(Type.EVENT, 0, _clamped(event.step), 1, lambda: pack_event(event)))

    def graph(self, graph: Graph) -> None:
        """Keep the layer graph; the last one counts."""
        self._add(SmallRecord(Type.GRAPH, 0, 0, len(graph.nodes), lambda: to_json(graph.to_dict())))

    def note(self, info: Mapping[str, Any]) -> None:
        """Merge these keys into `run.info`."""
        kept = dict(info)
        self._noted.update(kept)
        self._add(SmallRecord(Type.NOTE, 0, 0, len(kept), lambda: to_json(kept)))

    # -- how far it is ---------------------------------------------------------------------------

    @property
    def flushed(self) -> int:
        """Calls whose data survive the death of this process."""
        return self.thread.flushed

    @property
    def dropped(self) -> int:
        """Calls whose data were given up, because the disk did not keep up."""
        return self._queue.dropped

    @property
    def background(self) -> float:
        """Seconds of processor time that the writing thread has used so far."""
        return self.thread.background

    @property
    def folder(self) -> Path | None:
        """This writer's own folder; None where it could not be made yet."""
        return self.thread.folder

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything put so far is flushed; False if that took longer or cannot be."""
        if self._off:
            return False
        thread, target = self.thread, self._queue.accepted
        deadline = time.monotonic() + timeout
        thread.ask()
        with thread.wake:
            while thread.flushed + self._queue.dropped < target:
                left = deadline - time.monotonic()
                if left <= 0 or not thread.is_alive():
                    return False
                thread.wake.wait(min(left, 0.5))  # the thread could die without a last notice
        return True

    def close(self, timeout: float = EXIT_SECONDS) -> bool:
        """Ask the thread to finish, wait for it; whether all was safe within `timeout` seconds.

        Without any time it is only asked: a later call, or the end of the process, waits for it.
        """
        if self._off:
            return self.thread.safe.is_set()
        self.thread.ask(closing=True)
        self._off = self.thread.finished.wait(timeout) or timeout > 0
        if self._off and not self.thread.safe.is_set():
            self.thread.tell()
        return self.thread.safe.is_set()

    def _refuse(self, error: Exception) -> None:
        """Count what cannot be kept; the first time, record why."""
        self._queue.refuse()
        if not self._refused:
            self._refused = True
            text = f"Something could not be kept and was left out: {error!r}."
            self.event(Event(0, EventKind.NOT_RECORDED, text))

    def _repeat(self) -> None:
        """In the thread: put everything again that a new folder needs to be understood."""
        declared, step = sorted(self._declared.items()), _SUBJECTS_PER_RECORD
        items = [_subjects(declared[at : at + step]) for at in range(0, len(declared), step)]
        noted = dict(self._noted)
        self._queue.add([*items, SmallRecord(Type.NOTE, 0, 0, len(noted), lambda: to_json(noted))])

    def _add(self, item: SmallRecord) -> None:
        if not self._off:
            self._queue.add([item])

    def _wake(self) -> None:
        """Nudge the thread, but never wait for it: a held lock means that it is awake."""
        wake = self.thread.wake
        if wake.acquire(blocking=False):
            try:
                wake.notify_all()
            finally:
                wake.release()

    def _silence(self) -> None:
        """In a forked child: no thread, locks in an unknown state; nothing may touch either."""
        self._off = True
        self._declare_lock = threading.RLock()
        if self.thread.held is not None:
            os.close(self.thread.held)  # the run is the parent's, also when this child outlives it
            self.thread.held = None


def _step(step: int) -> int:
    if not -(1 << 63) <= step < 1 << 63:
        raise ValueError(f"step {step} does not fit 64 bits")
    return int(step)


def _clamped(step: int) -> int:
    return max(-(1 << 63), min(int(step), (1 << 63) - 1))


def _subjects(numbered: Sequence[tuple[int, Subject]]) -> SmallRecord:
    return SmallRecord(
        Type.SUBJECTS, 0, 0, len(numbered), lambda: to_json([[n, s.to_dict()] for n, s in numbered])
    )


def _silence_all() -> None:
    for writer in list(_LIVE):
        writer._silence()


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    writers = [writer for writer in list(_LIVE) if not writer._off]
    # Ask all of them before waiting for any: the time is for all together.
    for writer in writers:
        writer.thread.ask(closing=True)
    for writer in writers:
        writer.close(max(0.0, deadline - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_silence_all)
atexit.register(_close_all)
