"""The writer's thread: the only one that touches files. It never raises and never gives up."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from gradwatch.run.event import Event, EventKind
from gradwatch.stats import Family, family_stats
from gradwatch.store.bodies import pack_event, to_json
from gradwatch.store.folder import make_writer_folder, next_attempt, write_run_json
from gradwatch.store.journal import Journal
from gradwatch.store.queue import Queue
from gradwatch.store.records import FAMILY_CODES, NO_SEQ, Head, Type, pack
from gradwatch.store.retention import Retention
from gradwatch.store.sealer import Sealer
from gradwatch.store.stage import Stage

log = logging.getLogger("gradwatch")

FLUSH_SECONDS = 1.0
SYNC_SECONDS = 10.0
SEAL_BYTES = 16 << 20
SEAL_STEPS = 4096
SMALLEST_SEALED = 64 << 10
"""At the end, a journal smaller than this stays one."""
_BREATH = 0.0002
_LONGEST_HOLD = 0.0002
"""Work of this many seconds, then a pause of as many, so that the training need not wait long."""
_SEAL_TRIES = 5
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0


class Scribe(threading.Thread):
    """Moves records from the queue to the journal, seals journals, waits where the disk fails."""

    def __init__(
        self,
        run: Path,
        name: str,
        rank: int,
        attempt: int | None,
        queue: Queue,
        wide: bool,
        versions: Mapping[str, str],
        retention: Retention | None,
    ) -> None:
        super().__init__(name=f"gradwatch-writer-{rank}", daemon=True)
        self.queue = queue
        self.wake = threading.Condition()
        self.flushed = 0
        self.synced = 0
        self.folder: Path | None = None
        self._run, self._run_name, self._versions = run, name, versions
        self._rank, self._attempt = rank, attempt
        self._stage = Stage(queue, wide)
        self._journal: Journal | None = None
        self._number = 0
        self._asked = False
        self._closing = False
        self._said_close = False
        self._wait = 0.0
        self._next_try = 0.0
        self._next_sync = time.monotonic() + SYNC_SECONDS
        self._next_seal = 0.0
        self._seal_failures = 0
        self._last_breath = 0.0
        self._steps = 0
        self._full: list[tuple[Path, int]] = []
        self._sealer: Sealer | None = None
        self._wide, self._retention = wide, retention
        self.safe = threading.Event()
        """Everything is in the file, and the file on the disk."""
        self.finished = threading.Event()
        self.made_anew: Callable[[], None] = lambda: None
        """Called when the folder had to be made again: what is in no file any more is put again."""
        self.failure: OSError | None = None

    # -- for the caller --------------------------------------------------------------------------

    def ask(self, closing: bool = False) -> None:
        """Write now; with `closing`, write all and end."""
        with self.wake:
            self._asked = True
            self._closing |= closing
            self._next_try = 0.0
            self.wake.notify_all()

    def prepare(self) -> OSError | None:
        """Make the folders; an error is kept, told, and tried again later by the thread."""
        try:
            self._make_folder()
        except OSError as error:
            self.failure = error
        return self.failure

    # -- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.finished.is_set():
            with self.wake:
                if self._wait:
                    self.wake.wait(self._wait)  # the disk failed: try again before long
                elif not (self._asked or self._closing or self.queue.pressing):
                    self.wake.wait(FLUSH_SECONDS)
                self._asked = False
            with contextlib.suppress(Exception):  # a defect here must not print into a training
                self._turn()

    def _turn(self) -> None:
        if time.monotonic() < self._next_try:
            return
        try:
            self._drain()
            if self._journal and time.monotonic() > self._next_sync:
                self._sync()
            if self._closing:
                self._finish()
        except OSError as error:
            self._back_off(error)
        self._seal_full()
        if self.safe.is_set():
            if self._sealer:
                with contextlib.suppress(OSError):  # levels are a convenience: the rows are safe
                    self._sealer.close()
            self.finished.set()

    def _drain(self) -> None:
        while self._stage.size or self._stage.fill():
            self._write()

    def _breathe(self) -> None:
        """Between two pieces of sealing: give the interpreter back, and rows come first."""
        if time.perf_counter() - self._last_breath < _LONGEST_HOLD:
            return
        time.sleep(_BREATH)
        self._last_breath = time.perf_counter()
        if (self._asked or self.queue.pressing) and time.monotonic() >= self._next_try:
            self._asked = False
            try:
                self._drain()
            except OSError as error:
                self._back_off(error)

    def _write(self) -> None:
        journal = self._ready_journal()
        try:
            journal.append(self._stage.data if journal.size else _schema() + self._stage.data)
        except OSError:
            self._give_up_journal()
            raise
        self.failure, self._wait = None, 0.0
        with self.wake:
            self.flushed += self._stage.records
            self.wake.notify_all()
        self._steps += self._stage.steps
        self._stage.clear()
        if journal.size >= SEAL_BYTES or self._steps >= SEAL_STEPS:
            self._roll()

    def _give_up_journal(self) -> None:
        """Its whole records are sealed later like any other's; new ones go to a new file."""
        journal, self._journal, self._steps = self._journal, None, 0
        if journal and journal.size:
            self._full.append((journal.path, self._number))

    def _roll(self) -> None:
        """The journal is full: the next record begins a new one, this one waits to be sealed."""
        journal, self._journal, self._steps = self._journal, None, 0
        if journal:
            self._full.append((journal.path, self._number))
            try:
                journal.sync()
            finally:
                journal.close()
            self.synced = self.flushed

    def _seal_full(self) -> None:
        while self._full and time.monotonic() >= self._next_seal:
            path, number = self._full[0]
            try:
                self._sealed(path, number)
            except OSError:
                self._seal_failures += 1
                if self._seal_failures < _SEAL_TRIES:
                    self._next_seal = time.monotonic() + _LONGEST_WAIT
                    return
            except Exception as error:
                # a journal that cannot be sealed stays a journal, and is read as one
                log.warning("gradwatch: %s is not sealed: %s", path.name, error)
            self._full.pop(0)
            self._seal_failures = 0

    def _sealed(self, path: Path, number: int) -> None:
        if self._sealer is None or self._sealer.folder != path.parent:
            self._sealer = Sealer(path.parent, self._wide, self._retention, self._breathe)
        gone = self._sealer.seal(path, number)
        if gone:  # said first, deleted then: whoever reads meanwhile knows why
            text = f"{len(gone)} files of older rows are deleted; coarser levels cover them."
            seqs = [[file.first_seq, file.last_seq] for file in gone]
            event = Event(
                gone[-1].last_step, EventKind.RETENTION, text, data={"seqs": seqs}, wall=time.time()
            )
            self._stage.add(Type.EVENT, pack_event(event), step=event.step)
            self._write()
            self._sealer.delete(gone)

    def _ready_journal(self) -> Journal:
        if self._journal and not self._journal.intact:
            self._journal.close()
            self._give_up_journal()
        if self._journal is None:
            if self.folder is None or not self.folder.is_dir():
                self._make_folder()
                self.made_anew()
            assert self.folder is not None
            self._number += 1
            self._journal = Journal(self.folder / f"j{self._number:05d}.gwj")
        return self._journal

    def _make_folder(self) -> None:
        if self._attempt is None:
            self._attempt = next_attempt(self._run, self._rank)
        self.folder = make_writer_folder(self._run, self._rank, self._attempt)
        write_run_json(self._run, self._run_name, self._versions)

    def _sync(self) -> None:
        assert self._journal is not None
        self._next_sync = time.monotonic() + SYNC_SECONDS
        try:
            self._journal.sync()
        except OSError:
            self._give_up_journal()
            raise
        self.synced = self.flushed

    def _finish(self) -> None:
        if not self._said_close:
            self._said_close = True
            numbers = {"flushed": self.flushed, "dropped": self.queue.dropped}
            self._stage.add(Type.CLOSE, to_json(numbers))
            self._write()
        if self._journal:
            if self._journal.size > SMALLEST_SEALED:
                self._roll()
            else:
                self._sync()
        self.safe.set()

    def _back_off(self, error: OSError) -> None:
        self.failure = error
        self._wait = min(max(self._wait * 2, _FIRST_WAIT), _LONGEST_WAIT)
        self._next_try = time.monotonic() + self._wait


@cache
def _schema() -> bytes:
    """One record per family: the columns of its rows, so that every journal explains itself."""
    records = []
    for family in Family:
        columns = [[str(item.stat), item.dtype, item.width] for item in family_stats(family)]
        body = to_json({"family": str(family), "columns": columns})
        code = FAMILY_CODES[family]
        records.append(pack(Head(Type.SCHEMA, code, 0, 0, NO_SEQ, 0, len(body), 0), body))
    return b"".join(records)
