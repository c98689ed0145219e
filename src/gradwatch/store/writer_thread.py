"""The writer thread: the only one that touches files. It never raises and never gives up.

`WriteBuffer` takes records out of the queue into one stretch of memory, ready for a single write;
`WriterThread` appends it to the journal, seals full journals, and waits where the disk fails.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.subject import Event, EventKind
from gradwatch.stats import Family
from gradwatch.store.format import (
    FAMILY_CODES,
    NO_SEQ,
    PAYLOAD_LIMIT,
    STEP_HEAD,
    Head,
    Type,
    pack,
    pack_event,
    pack_scalars,
    padded,
    to_json,
)
from gradwatch.store.full_journal import FullJournal
from gradwatch.store.journal import Journal, built_in, whereabouts
from gradwatch.store.queue import LostRecords, Queue, Scalar, SmallRecord
from gradwatch.store.retention import Retention
from gradwatch.store.runs import make_writer_folder, next_attempt, write_run_json
from gradwatch.store.sealer import Sealer

log = logging.getLogger("gradwatch")

FLUSH_SECONDS = 1.0
SYNC_SECONDS = 10.0
SEAL_BYTES = 16 << 20
SEAL_ROWS = 80_000
"""Of any family. With the rows of one more record (`SLOT_ROWS`) it stays below 100,000."""
WRITE_BUFFER_BYTES = 4 << 20
UNSYNCED_BYTES = 8 << 20
"""Of what is written, so much may wait for the disk to say that it has it; memory keeps it."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
_LAST_TRIES = 3
"""How often sealing is tried at the end, when all is safe in a journal."""
_REFUSED = (
    "gradwatch: %s cannot be written to (%s); the training goes on and what is recorded waits in "
    "memory, the oldest is given up when that is full. Make room, or make it writable again"
)
_DELETED = (
    "gradwatch: %s was deleted while it was recorded; what it held is gone, and the rest goes to a "
    "new folder there. Close the watcher first to be rid of a run"
)
_YIELD_SECONDS = 0.0002
_LONGEST_HOLD = 0.0002
"""Work of this many seconds, then a pause of as many: while this thread runs Python, the training
waits for the GIL, so it is given back after every small piece of work."""


class WriteBuffer:
    """Takes records out of the queue and keeps them until the disk is known to have them.

    A file system may take a write and tell only when it is asked to sync that it lost it.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        room = WRITE_BUFFER_BYTES + UNSYNCED_BYTES
        self._buffer: NDArray[np.uint8] = np.empty(room, np.uint8)
        self.seq = 0
        self.written = 0
        """Records that are in a journal: the number of the first one that is not."""
        self.unsynced = 0
        """Bytes at the front that are in a journal, and perhaps not on the disk."""
        self._synced = 0
        """Records that are on the disk, counted like those written."""
        self.size = 0
        """Bytes that wait to be written, behind those."""
        self.records = 0
        """Calls whose data are in the buffer: what an acknowledgement is worth."""
        self.rows = 0
        """Rows taken so far."""
        self.journal_rows = dict.fromkeys(FAMILY_CODES.values(), 0)
        """Rows of each family for the present journal, written or about to be."""

    @property
    def data(self) -> memoryview:
        """The bytes that wait to be written: whole records, one after another."""
        return self._buffer.data[self.unsynced : self.unsynced + self.size]

    @property
    def perhaps_lost(self) -> memoryview:
        """The bytes that were written, and are perhaps not on the disk."""
        return self._buffer.data[: self.unsynced]

    def fill(self) -> bool:
        """Take what waits, as far as it fits; whether there is anything to write."""
        # First, so that a gap is on the disk before the rows behind it.
        lost = self._queue.take_lost()
        if lost:
            self.add(Type.EVENT, pack_event(_gap(lost)), step=lost.first_step)
        self._take_small()
        while not self.enough and self._take_rows():
            if self.records % 32 == 0:
                time.sleep(_YIELD_SECONDS)
        return self.size > 0

    def was_written(self) -> None:
        """All that waited is in the journal."""
        self.unsynced += self.size
        self.size = self.records = 0
        self.written = self.seq

    def was_synced(self) -> None:
        """All that was written is on the disk: forget it."""
        self._buffer[: self.size] = self._buffer[self.unsynced : self.unsynced + self.size]
        self.unsynced, self._synced = 0, self.written

    def write_again(self) -> None:
        """What was written since the last sync may be lost: it waits to be written again."""
        self.size += self.unsynced
        self.unsynced, self.written = 0, self._synced

    @property
    def enough(self) -> bool:
        """Whether the present journal has as many rows of a family as are to be sealed at once."""
        return max(self.journal_rows.values()) >= SEAL_ROWS

    def begin_journal(self) -> None:
        """What is taken from now on goes to a new journal."""
        self.journal_rows = dict.fromkeys(self.journal_rows, 0)

    def _take_small(self) -> None:
        queue = self._queue
        scalars: list[Scalar] = []
        # Looked at without the lock: no other thread ever empties the queue.
        while queue.small and self.size < WRITE_BUFFER_BYTES // 2:
            with queue.lock:
                item = queue.small.popleft()
            self.records += 1
            if isinstance(item, Scalar):
                scalars.append(item)
                if len(scalars) == 256:
                    self._put_scalars(scalars)
                continue
            self._put_small(item)
        self._put_scalars(scalars)

    def _put_small(self, item: SmallRecord) -> None:
        try:
            payload = item.pack()
        except (ValueError, TypeError, MemoryError, RecursionError):
            return  # what cannot be packed must not stop the rest
        self.add(item.type, payload, item.family, item.step, item.rows)
        time.sleep(_YIELD_SECONDS)

    def _put_scalars(self, scalars: list[Scalar]) -> None:
        if scalars:
            payload = pack_scalars(scalars)
            self.add(Type.SCALARS, payload, 0, scalars[0].step, len(scalars))
            scalars.clear()
            time.sleep(_YIELD_SECONDS)

    def _take_rows(self) -> bool:
        taken = self._queue.take_rows(WRITE_BUFFER_BYTES - self.size)
        if taken is None:
            return False
        family, step, ids, rows, states, _ = taken
        front = STEP_HEAD.pack(len(rows), rows.dtype.itemsize)
        front += np.asarray(ids, "<u4").tobytes() + np.asarray(states, np.uint8).tobytes()
        payload = front.ljust(padded(len(front)), b"\0") + rows.tobytes()
        self.add(Type.STEP, payload, family, step, len(rows))
        self.records += 1
        self.rows += len(rows)
        self.journal_rows[family] += len(rows)
        return True

    def add(
        self, type_: int, payload: bytes, family: int = 0, step: int = 0, rows: int = 0
    ) -> None:
        """A record from its payload, at the end of what waits to be written."""
        if len(payload) > PAYLOAD_LIMIT:
            return
        record = pack(
            Head(type_, family, 0, 0, self._take_seq(), step, len(payload), rows), payload
        )
        end = self.unsynced + self.size
        if end + len(record) > len(self._buffer):
            grown = np.empty(end + len(record), np.uint8)
            grown[:end] = self._buffer[:end]
            self._buffer = grown
        self._buffer[end : end + len(record)] = np.frombuffer(record, np.uint8)
        self.size += len(record)

    def _take_seq(self) -> int:
        self.seq += 1
        return self.seq - 1


def _gap(lost: LostRecords) -> Event:
    return Event(
        lost.first_step,
        EventKind.GAP,
        f"The disk did not keep up: {lost.records} records of steps {lost.first_step} to "
        f"{lost.last_step} were given up.",
        data=lost._asdict(),
        wall=time.time(),
    )


class WriterThread(threading.Thread):
    """Moves records from the queue to the journal, seals journals, waits where the disk fails."""

    def __init__(
        self,
        run: Path,
        name: str,
        rank: int,
        attempt: int | None,
        queue: Queue,
        versions: Mapping[str, str],
        retention: Retention | None,
        sealing: bool = True,
    ) -> None:
        super().__init__(name=f"gradwatch-writer-{rank}", daemon=True)
        self.queue = queue
        self.wake = threading.Condition()
        self.flushed = 0
        self.folder: Path | None = None
        self._opened: int | None = None
        """The folder, held open: so it is found again where somebody moves it."""
        self.held: int | None = None
        """What keeps other trainings out of the run."""
        # From here on the thread's own, but for what `ask` sets under `wake`.
        # Absolute: a training may change its working folder.
        self._run, self._run_name, self._versions = run.absolute(), name, versions
        self._rank, self._attempt = rank, attempt
        self._pending = WriteBuffer(queue)
        self._journal: Journal | None = None
        self._number = 0
        self._asked = False
        self._closing = False
        self._close_written = False
        self._wait = 0.0
        self._next_try = 0.0
        self._next_sync = time.monotonic() + SYNC_SECONDS
        self._next_seal = self._seal_wait = 0.0
        self._last_yield = 0.0
        self._first_record = 0
        self._full: list[FullJournal] = []
        self._superseded: list[Path] = []
        """Journals of which the disk has nothing for sure: they go when the next one has it all."""
        self._sealing = sealing
        self._sealer: Sealer | None = None
        self._retention = retention
        self.background = 0.0
        """Seconds of processor time that this thread has used."""
        self.safe = threading.Event()
        """Everything is in the file, and the file on the disk."""
        self.finished = threading.Event()
        self.made_anew: Callable[[], None] = lambda: None
        """Called when the folder had to be made again: what is in no file any more is put again."""
        self.failure: OSError | None = None
        self._told = False

    # -- for the caller --------------------------------------------------------------------------

    def ask(self, closing: bool = False) -> None:
        """Write now; with `closing`, write all and end."""
        with self.wake:
            self._asked = True
            self._closing |= closing
            self._next_try = 0.0
            self.wake.notify_all()

    def prepare(self) -> OSError | None:
        """Make the folders; an error is returned, and the thread tries again later."""
        try:
            self._make_folder()
        except OSError as error:
            self.failure = error
        return self.failure

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        """Write once a second, or sooner when asked or when the ring fills, until closed."""
        while not self.finished.is_set():
            with self.wake:
                if self._wait:
                    self.wake.wait(self._wait)  # the disk failed: try again before long
                elif not (self._asked or self._closing or self.queue.pressing):
                    self.wake.wait(FLUSH_SECONDS)
                self._asked = False
            with contextlib.suppress(Exception):  # a defect here must not print into a training
                self._turn()
        if self._opened is not None:
            os.close(self._opened)

    def _turn(self) -> None:
        if time.monotonic() < self._next_try:
            return
        try:
            self._drain()
            if time.monotonic() > self._next_sync:
                self._sync()
            if self._closing:
                self._finish()
        except OSError as error:
            self._back_off(error)
        self._seal_full()  # last: it only rewrites what is on the disk already
        self.background = time.thread_time()
        if self.safe.is_set():
            self.finished.set()

    def _drain(self) -> None:
        """Write what waits; what comes meanwhile waits for the next turn and goes together."""
        queue, goal = self.queue, self.queue.accepted
        while self._pending.size or (self.flushed + queue.dropped < goal and self._pending.fill()):
            self._write()

    def _yield_gil(self) -> None:
        """Between two pieces of sealing: let the training run, and write new rows first."""
        if time.perf_counter() - self._last_yield < _LONGEST_HOLD or self.safe.is_set():
            return  # at the end nobody is kept waiting
        time.sleep(_YIELD_SECONDS)
        self._last_yield = time.perf_counter()
        if (self._asked or self.queue.pressing) and time.monotonic() >= self._next_try:
            self._asked = False
            try:
                self._drain()
            except OSError as error:
                self._back_off(error)

    def _write(self) -> None:
        journal = self._ready_journal()
        try:
            # The schema goes into the same write as the first rows: no journal is without it.
            journal.append(self._pending.data if journal.size else _schema() + self._pending.data)
        except OSError:
            if journal.holds(self._pending.perhaps_lost):
                self._pending.was_synced()
            self._give_up_journal()
            raise
        self.failure, self._wait = None, 0.0
        with self.wake:
            self.flushed += self._pending.records
            self.wake.notify_all()
        self._pending.was_written()
        while self._superseded:
            with contextlib.suppress(OSError):
                self._superseded.pop().unlink()
        if journal.size >= SEAL_BYTES >> _first_journals(self._number) or (self._pending.enough):
            self._roll()
        elif self._pending.unsynced >= UNSYNCED_BYTES:
            self._sync()

    def _give_up_journal(self) -> None:
        """Its records on the disk are sealed later like any other's; the rest goes to a new file.

        After a failed write or sync the kernel may have dropped pages it said it had: a file that
        failed once is never appended to again.
        """
        journal, self._journal = self._journal, None
        self._pending.write_again()
        if journal and self._pending.written > self._first_record:
            self._wait_for_sealing(journal)
        elif journal:
            self._superseded.append(journal.path)

    def _roll(self) -> None:
        """The journal is full: the next record begins a new one, this one waits to be sealed."""
        self._sync()
        journal, self._journal = self._journal, None
        if journal:
            self._wait_for_sealing(journal)
            journal.close()

    def _wait_for_sealing(self, journal: Journal) -> None:
        first, self._first_record = self._first_record, self._pending.written
        last = self._first_record - 1
        self._full.append(FullJournal(journal.path, self._number, first, last))
        if not self._pending.size:
            self._pending.begin_journal()

    def _seal_full(self) -> None:
        if not self._sealing:
            self._full.clear()  # they stay journals, and are read as such
        tries = 0
        # A journal that was given up goes only when what it may have lost is written again.
        while self._full and not self._pending.size and time.monotonic() >= self._next_seal:
            journal = self._full[0]
            try:
                self._seal(journal)
            except FileNotFoundError:
                if self._moved():
                    continue
                # somebody deleted it
            except OSError:
                tries += 1
                if self.safe.is_set() and tries < _LAST_TRIES:
                    time.sleep(FIRST_WAIT)
                    continue
                self._seal_wait = min(max(self._seal_wait * 2, FIRST_WAIT), LONGEST_WAIT)
                self._next_seal = time.monotonic() + self._seal_wait
                return
            except Exception as error:
                # a journal that cannot be sealed stays a journal, and is read as one
                log.warning("gradwatch: %s is not sealed: %s", journal.path.name, error)
            self._full.pop(0)
            self._seal_wait = 0.0

    def _seal(self, journal: FullJournal) -> None:
        folder = journal.path.parent
        if self._sealer is None or self._sealer.folder != folder:
            assert self._attempt is not None
            keep, rank, attempt = self._retention, self._rank, self._attempt
            self._sealer = Sealer(folder, rank, attempt, keep, self._yield_gil)
        written = self._close_written and not self._pending.size and not self._journal
        last = written and len(self._full) == 1  # also where syncing it failed
        unsealed = self._journal.size if self._journal else 0
        self._sealer.seal(journal, closing=self._numbers if last else None, unsealed=unsealed)

    def _numbers(self) -> dict[str, float]:
        """What the run's information says of this thread's work."""
        seconds = round(time.thread_time(), 6)
        return {"background_seconds": seconds, "rows": self._pending.rows}

    def _ready_journal(self) -> Journal:
        journal = self._journal
        if journal and not journal.intact and not (self._moved() and journal.intact):
            journal.close()
            self._give_up_journal()
        if self._journal is None:
            if self.folder is None or not (self._moved() or self.folder.is_dir()):
                # It could not be made before, or somebody deleted it: no file has the names.
                if self.folder is not None:
                    log.warning(_DELETED, self._run)
                self._make_folder()
                self.made_anew()
            assert self.folder is not None
            self._number += 1
            self._journal = Journal(self.folder / f"journal-{self._number:05d}.gwj")
        return self._journal

    def _make_folder(self) -> None:
        if self._attempt is None:
            self._attempt = next_attempt(self._run, self._rank)
        self.folder = make_writer_folder(self._run, self._rank, self._attempt)
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None
        with contextlib.suppress(OSError):
            self._opened = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        write_run_json(self._run, self._run_name, self._versions)

    def _moved(self) -> bool:
        """Whether somebody moved the folder; then everything goes on in it, where it is now."""
        if self.folder is None or self._opened is None or self.folder.is_dir():
            return False
        now = whereabouts(self._opened)
        if now is None:
            return False
        log.warning("gradwatch: %s was moved; the recording goes on in %s", self._run, now.parent)
        self.folder, self._run = now, now.parent
        self._full = [full._replace(path=now / full.path.name) for full in self._full]
        self._superseded = [now / path.name for path in self._superseded]
        if self._sealer:
            self._sealer.folder = now
        if self._journal:
            self._journal.path = now / self._journal.path.name
        return True

    def _sync(self) -> None:
        self._next_sync = time.monotonic() + SYNC_SECONDS
        try:
            if self._journal:
                self._journal.sync()
        except OSError:
            self._give_up_journal()
            raise
        self._pending.was_synced()

    def _finish(self) -> None:
        if not self._close_written:
            self._drain()  # again: a folder made anew a moment ago needs its subjects
            self._pending.fill()  # what was given up since then is told too
            self._close_written = True
            self._pending.add(Type.NOTE, to_json(self._numbers()))
            numbers = {"flushed": self.flushed, "dropped": self.queue.dropped}
            self._pending.add(Type.CLOSE, to_json(numbers))
            self._write()
        self._roll()
        self._next_seal = 0.0
        if self.held is not None:
            os.close(self.held)  # before anybody can know that this recording has ended
            self.held = None
        self.safe.set()

    def _back_off(self, error: OSError) -> None:
        self.failure = error
        self._wait = min(max(self._wait * 2, FIRST_WAIT), LONGEST_WAIT)
        self._next_try = time.monotonic() + self._wait
        if self._wait >= LONGEST_WAIT:
            self.tell()

    def tell(self) -> None:
        """Say once that the disk refuses; the training is not stopped for it."""
        if self.failure and not self._told:
            self._told = True
            log.warning(_REFUSED, self._run, self.failure.strerror)


def _first_journals(number: int) -> int:
    """The first journals are sealed at a sixteenth, an eighth, … of the full size: other programs
    see rows early, and what sealing needs of memory is taken before a training is long under way.
    """
    return max(0, 5 - number)


@cache
def _schema() -> bytes:
    """One record per family: the columns of its rows, so that every journal explains itself."""
    records = []
    for family in Family:
        payload = to_json({"family": str(family), "columns": built_in(family)})
        code = FAMILY_CODES[family]
        records.append(pack(Head(Type.SCHEMA, code, 0, 0, NO_SEQ, 0, len(payload), 0), payload))
    return b"".join(records)
