"""`Writer`: what a training hands over goes to a thread that keeps it in a run folder.

After `create`, nothing raises into the training. Only the thread touches files; it never gives up.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.subject import Event, EventKind, HistogramTable, Subject
from gradwatch.stats import Family, Kind
from gradwatch.store import batches
from gradwatch.store.batches import YIELD, Item
from gradwatch.store.layout import BITS, LOG, SCALAR_BIT, SCALARS, STEPS, packed, schemas
from gradwatch.store.retention import Retention, removal
from gradwatch.store.runs import make_writer_folder, next_attempt, write_run_json
from gradwatch.store.tables import Damaged, GrowingFile, TableWriter, release_memory

log = logging.getLogger("gradwatch")
Array = NDArray[Any]

FLUSH_SECONDS, SYNC_SECONDS, EXIT_SECONDS = 1.0, 10.0, 5.0
BATCH_ROWS, UNSYNCED_BYTES = 1000, 1 << 20
"""A batch of more rows would keep the training waiting for the interpreter. Memory keeps what is
not synced; beyond so many bytes of it the thread syncs."""
PART_ROWS, PART_BYTES, PART_SECONDS = 100_000, 8_000_000, 60.0
QUEUE_BYTES, LINES_LIMIT = 32 << 20, 1 << 16
PATIENCE, STALLED, FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0, 0.05, 5.0
"""Seconds that a step may wait for the thread to catch up, where no row may be given up. Without
any progress for the second time the disk refuses, and waiting would be in vain."""
_REFUSED = "gradwatch: %s cannot be written to (%s): rows wait in memory, as many as fit there"
_DELETED = "gradwatch: %s was deleted while it was recorded: the recording ends here"
# Exit and fork must reach every writer, and must not keep one alive that nobody uses.
_LIVE: "weakref.WeakSet[Writer]" = weakref.WeakSet()


class Writer(threading.Thread):
    """One process' folder of a run, and the thread that writes to it.

    `put` takes a lock and appends: no file call, no log line, no exception. A child made by `fork`
    has a silent writer: only the process that made it writes.
    """

    def __init__(
        self, run: Path, called: str, rank: int, versions: Any, keep: Retention | None
    ) -> None:
        super().__init__(name=f"gradwatch-writer-{rank}", daemon=True)
        # Absolute: a training may change its working folder.
        self._run, self._called, self._versions = run.absolute(), called, versions
        self._rank, self._attempt, self._keep = rank, 0, keep
        self.held: int | None = None
        """What keeps other trainings out of the run."""
        self.patient = False
        """Whether a step waits a moment where the thread does not keep up."""
        self.source: Callable[[], None] = lambda: None
        """Hands over what the recorder keeps: called by the thread before it writes."""
        self._subjects: dict[tuple[Kind, str], tuple[int, Subject]] = {}
        # The queue, under a lock that is held for a moment, never for a file. A model may be
        # collected, and its last logs come, inside it: the lock is one that a thread takes twice.
        self._wake = threading.Condition(threading.RLock())
        self._queue: deque[Item] = deque()
        self._lines: list[tuple[str, Any]] = []
        self._used = self._accepted = 0
        self._lost: list[int] = []
        """The first and the last step of which something was given up, since that was told."""
        self.flushed = self.dropped = 0
        """Calls whose data survive the death of this process, and those given up."""
        self.folder: Path | None = None
        """This writer's own folder; None where it could not be made yet."""
        self.background = 0.0
        """Seconds of processor time that the thread has used."""
        self.failure: OSError | None = None
        self.safe, self.finished = threading.Event(), threading.Event()
        """Everything is in a file and on the disk; every part is finished too."""
        self._descriptor = -1
        """The folder, held open: it stays the same one where somebody moves it."""
        self.tables: dict[str, TableWriter] = {}
        # What was taken from the queue and is not in a file yet.
        self._packed: list[bytes] = []
        self._items: dict[str, list[Item]] = {}
        self._marks: dict[int, int] = {}
        self._taken = self._rows = 0
        self._off = self._asked = self._closing = self._told = False
        self._wait = self._next_try = 0.0
        self._waited = 0, 0.0
        self._begun = self._progressed = time.monotonic()
        self._next_sync = self._begun + SYNC_SECONDS
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
    ) -> "Writer":
        """Make (or join, as a new attempt) the run folder `path` and start the thread.

        `path` is the run's own folder, such as `runs/NAME`; `name` is the true name, as it is.
        Where the folder cannot be made now, a warning says so and the thread keeps trying.
        """
        noted = dict(info or {})
        writer = cls(Path(path), name, rank, noted.get("versions", {}), keep and keep.shared(world))
        try:
            writer._open_folder()
        except OSError as error:
            writer.failure = error
            warnings.warn(f"gradwatch cannot write to {path} yet: {error.strerror}", stacklevel=2)
        writer.note(noted | {"world": world})
        writer.start()
        return writer

    # -- for the training ------------------------------------------------------------------------

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        """Ids for these subjects, old or new; a changed one keeps its id and is stored again."""
        changed: list[tuple[int, Subject]] = []
        with self._wake:  # two threads that declare the same subject must get one id
            for subject in subjects:
                key = subject.kind, subject.name
                number, known = self._subjects.get(key, (len(self._subjects), None))
                if known != subject:
                    self._subjects[key] = number, subject
                    changed.append((number, subject))
            numbers = [self._subjects[subject.kind, subject.name][0] for subject in subjects]
        if changed:
            self._line("subjects", changed)
        return np.array(numbers, np.uint32)

    def put(self, family: Family, step: int, ids: Array, rows: Array, states: Array) -> None:
        """Queue the rows of one family on one step (`row_dtype(family)`), with id and state each.

        The arrays are the writer's from now on: nobody may write to them.
        """
        for part in _pieces(len(ids)):
            own, data = ids[part], (rows[part], states[part])
            # The last piece tells that the step is whole.
            bit = BITS[family] if part.stop == len(ids) else 0
            self._add(Item(f"rows/{family}", step, own, data, bit, (rows.itemsize + 5) * len(own)))

    def histogram_table(self, family: Family, step: int, ids: Array, table: HistogramTable) -> None:
        """Queue the histograms of these subjects on one step."""
        for part in _pieces(len(ids)):
            some = table.part(part.start, part.stop)
            size = some.counts.nbytes + 64 * len(some)
            self._add(Item(f"histograms/{family}", step, ids[part], some, 0, size))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Keep logged numbers of one step."""
        self.numbers([(step, name, value) for name, value in values.items()])

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Keep logged numbers of many steps: step, name, value."""
        for step, name, value in items:
            self._add(Item(SCALARS, step, (0,), (name, value), SCALAR_BIT, 128))

    def event(self, event: Event) -> None:
        """Keep an event; one without a time gets the present one."""
        self._line("event", event if event.wall else replace(event, wall=time.time()))

    def graph(self, graph: Graph) -> None:
        """Keep the layer graph; the last one counts."""
        self._line("graph", graph)

    def note(self, info: Mapping[str, Any]) -> None:
        """Merge these keys into `run.info`."""
        self._line("note", dict(info))

    @property
    def backlog(self) -> float:
        """How full the queue is; above 1 rows come faster than the thread writes."""
        return self._used / QUEUE_BYTES

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything put so far is flushed; False if that took longer or cannot be."""
        target = self._accepted
        self.wake()
        with self._wake:
            ended = self.finished.is_set
            self._wake.wait_for(lambda: ended() or self.flushed + self.dropped >= target, timeout)
            return self.flushed + self.dropped >= target and not self._off

    def close(self, timeout: float = EXIT_SECONDS) -> bool:
        """Ask the thread to finish, wait for it; whether all was safe within `timeout` seconds.

        Without any time it is only asked: a later call, or the end of the process, waits for it.
        """
        if not self._off:
            self.wake(closing=True)
            self._off = self.finished.wait(timeout) or timeout > 0
            if self._off and not self.safe.is_set():
                self._tell()
        return self.safe.is_set()

    def _add(self, item: Item) -> None:
        """Queue it. Where twice as much waits as should, the disk refuses: the oldest goes."""
        if self._off or self.finished.is_set():
            return
        with self._wake:
            if self.patient and self.backlog > 1:
                self._wait_for_room(item.step)
            self._queue.append(item)
            self._accepted += 1
            self._used += item.bytes
            while self.backlog > 2:
                oldest = self._queue.popleft()
                self._used -= oldest.bytes
                self.dropped += 1
                self._lost = [*self._lost[:1], oldest.step]
            if len(self._queue) >= 64:
                self._wake.notify_all()

    def _wait_for_room(self, step: int) -> None:
        """Let the thread catch up; never longer than `PATIENCE` a step, nor for a stalled disk."""
        begun, spent = time.monotonic(), self._waited[1] if self._waited[0] == step else 0.0
        if self.failure is None and begun - self._progressed < STALLED and spent < PATIENCE:
            self.wake()
            self._wake.wait_for(lambda: self.backlog <= 1, PATIENCE - spent)
            self._waited = step, spent + time.monotonic() - begun

    def _line(self, kind: str, data: Any) -> None:
        """Queue a line of the log; in a storm of events the later ones are given up."""
        with self._wake:
            if kind == "event" and len(self._lines) >= LINES_LIMIT:
                self._lost = [*self._lost[:1], data.step]
            elif not self._off:
                self._lines.append((kind, data))
                self._accepted += 1

    def wake(self, closing: bool = False) -> None:
        """Let the thread write now; with `closing`, write all, finish every part and end."""
        with self._wake:
            self._asked, self._next_try = True, 0.0
            self._closing |= closing
            self._wake.notify_all()

    def _tell(self) -> None:
        """Say once that the disk refuses; the training is not stopped for it."""
        if self.failure and not self._told:
            self._told = True
            log.warning(_REFUSED, self._run, self.failure.strerror)

    def _silence(self) -> None:
        """In a forked child: no thread, locks in an unknown state; nothing may touch either."""
        self._off, self._wake = True, threading.Condition(threading.RLock())
        self.finished = threading.Event()
        self.finished.set()
        if self.held is not None:
            os.close(self.held)  # the run is the parent's, also when this child outlives it
            self.held = None

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        """Write once a second, or sooner when asked or when the queue fills, until closed."""
        while not self.finished.is_set():
            with self._wake:
                if self._wait or not (self._asked or self._closing or len(self._queue) >= 64):
                    self._wake.wait(self._wait or FLUSH_SECONDS)
                self._asked = False
            try:
                self.source()
                if time.monotonic() >= self._next_try:
                    self._turn()
            except OSError as error:
                self._back_off(error)
            except Exception:  # it would fail again and again: give it up
                log.warning("gradwatch: something could not be written", exc_info=True)
                self._packed, self._items, self._marks = [], {}, {}
                # What fails at every turn must not be tried at once.
                self.dropped, self._taken, self._wait = self.dropped + self._taken, 0, LONGEST_WAIT
                self.wake()  # wakes who waits for it
            self.background = time.thread_time()
        self.wake()  # wakes who waits for it

    def _turn(self) -> None:
        self._open_folder()
        batches.warm_up()
        if not os.fstat(self._descriptor).st_nlink:
            log.warning(_DELETED, self._run)
            self._off = True
            self._end()
            return
        if sum(file.size - file.synced for file in self.files()) > UNSYNCED_BYTES:
            self._sync()  # first: where it fails, memory must not fill with more
        self._write_queued()
        self._finish_due()
        if time.monotonic() > self._next_sync:
            self._sync()
        self.failure, self._wait = None, 0.0
        if self._closing:
            self._close()

    def _open_folder(self) -> None:
        """Make the folders, unless that was done; raises OSError where it cannot be done now."""
        if self.folder is None:
            self._attempt = next_attempt(self._run, self._rank)
            self.folder = make_writer_folder(self._run, self._rank, self._attempt)
        if self._descriptor < 0:
            write_run_json(self._run, self._called, self._versions)
            self._descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        if not self.tables:
            self._log = GrowingFile(self._descriptor, LOG)
            self.tables = {table: TableWriter(self._descriptor, table) for table in schemas()}

    def _back_off(self, error: OSError) -> None:
        """Try again before long, and then less and less often."""
        self.failure = error
        self._wait = min(max(self._wait * 2, FIRST_WAIT), LONGEST_WAIT)
        self._next_try = time.monotonic() + self._wait
        if self._wait >= LONGEST_WAIT:
            self._tell()

    def files(self) -> list[GrowingFile]:
        """What grows: the log, and a part of each table."""
        return [self._log, *(table.file for table in self.tables.values() if table.file)]

    def _sync(self) -> None:
        for file in self.files():
            file.sync()
        self._next_sync = time.monotonic() + SYNC_SECONDS

    # -- writing ---------------------------------------------------------------------------------

    def _write_queued(self) -> None:
        """Write what waits; what comes meanwhile waits for the next turn and goes together."""
        goal = self._accepted
        while self._taken or self.flushed + self.dropped < goal:
            if not self._taken:  # else there was an error, and what is not written is still here
                self._take()
            self._write_taken()
            self._finish_due()

    def _take(self) -> None:
        """All lines, and as many rows as go into a batch."""
        rows = 0
        with self._wake:
            lines, self._lines = self._lines, []
            lost, self._lost = self._lost, []
            self._taken = len(lines)
            while self._queue and (rows := rows + len(self._queue[0].ids)) <= BATCH_ROWS:
                item = self._queue.popleft()
                self._used -= item.bytes
                self._taken += 1
                self._items.setdefault(item.table, []).append(item)
        if lost:
            text = f"Writing did not keep up: not all of steps {lost[0]} to {lost[-1]} was kept."
            lines.append(("event", Event(lost[0], EventKind.GAP, text, wall=time.time())))
        for kind, data in lines:
            # What cannot be packed must not stop the rest.
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                self._packed.append(packed(kind, data))

    def _write_taken(self) -> None:
        """After an error, what is written already is not written again."""
        if self._packed:
            self._log.append(b"".join(self._packed))
            self._packed.clear()
        for table in list(self._items):
            batch, first = batches.batch_of(self._items[table]), self._items[table][0].step
            time.sleep(YIELD)
            self.tables[table].append(batch, first)
            for item in self._items.pop(table):
                self._rows += len(item.ids) if item.table.startswith("rows/") else 0
                self._marks[item.step] = self._marks.get(item.step, 0) | item.bit
            time.sleep(YIELD)
        if self._marks:  # last: a step that is marked has its rows
            self.tables[STEPS].append(batches.steps_batch(self._marks), min(self._marks))
            self._marks = {}
        self._progressed = time.monotonic()
        with self._wake:
            self.flushed, self._taken = self.flushed + self._taken, 0
            self._wake.notify_all()

    # -- finishing -------------------------------------------------------------------------------

    def _finish_due(self) -> None:
        now, bound = time.monotonic(), (self._keep and self._keep.bytes) or float("inf")
        size, age = min(PART_BYTES, bound / 8), max(PART_SECONDS, (now - self._begun) / 10)
        growing = [table for table in self.tables.values() if table.part.rows]
        streams = sum(table.part.bytes for table in growing)
        for table in sorted(growing, key=lambda table: -table.part.bytes):
            part = table.part
            due = part.rows >= PART_ROWS or part.bytes >= size or now - table.since > age
            if due or streams > bound / 4:
                streams -= part.bytes
                self._finish(table)

    def _finish(self, table: TableWriter) -> None:
        """Turn a growing part into Parquet, and its rows into coarse rows."""
        if not table.part.rows:
            return
        kind, _, family = table.table.partition("/")
        try:
            rows = table.read()
        except Damaged as error:
            text = f"{table.table}: a part {error}; it stays as it is."
            self._log.append(packed("event", Event(0, EventKind.DAMAGE, text)))
            table.leave(table.part)
            return
        if kind == "rows" and table.drawn < table.part.rows:
            coarse = batches.coarse_rows(rows.slice(table.drawn), Family(family))
            self.tables[f"coarse/{family}"].append(coarse, table.part.first_step)
            table.drawn = table.part.rows  # not again where the rest fails
        table.finish(batches.finished_columns(rows, [*self._subjects], self._rank, self._attempt))
        del rows
        release_memory()
        if self._keep:
            self._remove_oldest(self._keep)

    def _remove_oldest(self, keep: Retention) -> None:
        """Where the folder is larger or older than `keep` says: the log says it, then parts go."""
        tables = {name: table.finished for name, table in self.tables.items()}
        total = sum(part.bytes for parts in tables.values() for part in parts)
        total += sum(file.size for file in self.files())
        if gone := removal(tables, time.monotonic(), total, keep):
            self._log.append(packed("removed", {table: part.number for table, part in gone}))
            for table, part in gone:
                del tables[table][part]
                with contextlib.suppress(OSError):  # the log says that it does not count
                    os.unlink(f"{table}/{part.name}", dir_fd=self._descriptor)

    def _close(self) -> None:
        if not self.safe.is_set():
            self._write_queued()  # what came since the closing was asked for
            self._sync()
            if self.held is not None:
                os.close(self.held)  # before anybody can know that this recording has ended
                self.held = None
            self.safe.set()
        # Coarse tables last: finishing rows adds to them. What cannot be finished stays a stream.
        for name in sorted(self.tables, key=lambda name: name.startswith("coarse/")):
            with contextlib.suppress(OSError):
                self._finish(self.tables[name])
        note = {"background_seconds": round(time.thread_time(), 6), "rows": self._rows}
        parts = {name: found for name, table in self.tables.items() if (found := table.listed)}
        self._log.append(packed("note", note) + packed("closed", parts))
        self._log.sync()
        self._end()

    def _end(self) -> None:
        for file in self.files():
            file.close()
        os.close(self._descriptor)
        self.finished.set()


def _pieces(count: int) -> list[slice]:
    """So many rows in pieces that fit into a batch."""
    return [slice(at, min(at + BATCH_ROWS, count)) for at in range(0, count, BATCH_ROWS)]


def _silence_all() -> None:
    for writer in list(_LIVE):
        writer._silence()


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    writers = [writer for writer in list(_LIVE) if not writer._off]
    # Ask all of them before waiting for any: the time is for all together.
    for writer in writers:
        writer.wake(closing=True)
    for writer in writers:
        writer.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_silence_all)
atexit.register(_close_all)
