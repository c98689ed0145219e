"""The runs being served: each opened once and read on when it grows, its answers kept as bytes.

`Library` finds them and gives them ids, `ServedRun` answers for one, `WorkerThreads` do what takes
long. A run that cannot be read is that run's trouble and nobody else's.
"""

import ctypes
import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from gradwatch.diagnosis import Diagnosis
from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.run.source import Loaded, Source
from gradwatch.server.encoded import AnswerCache, EncodedView, SentETags, ViewRequest
from gradwatch.stats import Stat
from gradwatch.store import list_runs, open_run
from gradwatch.store.places import Place
from gradwatch.store.runs import RunSummary
from gradwatch.text import plain
from gradwatch.views.model import ViewModel, build, diagnosed
from gradwatch.views.model.titles import HEAT_CHOICE, shown

LOG = logging.getLogger(__name__)
LISTING_SECONDS = 1.5
"""How long a listing waits for runs that are being looked at; the others follow with the next."""
WORKERS = 2
REST = 10.0
"""A growing run is read or built again only after this many times what the last time took."""
MOST_DIAGNOSED = 60_000_000
"""Checks load series whole; beyond so many values that is left to `gradwatch diagnose`."""
MOST_LOADED = 1 << 30
"""Bytes of one family's rows on the disk: a tenth of it is in memory for each statistic."""
BIG = 64 << 20
"""Bytes on disk from which on what is new in a run is read by the worker."""
REMOTE_SECONDS = 10.0
"""How long what was found in object storage counts as it was, before it is asked again."""
SPARK = 60
"""Points of a small loss curve."""


class RunGone(Exception):
    """The run is not, or no longer, in its folder."""


class Library:
    """All runs under the folders given; looked through again at every listing."""

    def __init__(self, roots: Sequence[str | os.PathLike[str]]) -> None:
        self.roots = tuple(Place.of(root).resolve() for root in roots)
        self._found: dict[Place, tuple[float, list[RunSummary]]] = {}
        self._runs: dict[str, ServedRun] = {}
        self._lock = threading.Lock()
        self._workers = WorkerThreads()
        keep_little_memory()

    def scan(self) -> "dict[str, ServedRun]":
        """The runs that are there now by their id, newest first."""
        runs: dict[str, ServedRun] = {}
        with self._lock:  # two scans at once would make two `ServedRun`s of one folder
            for root in self.roots:
                for item in self._summaries(root):
                    path = item.path.resolve()
                    raw = str(path).encode("utf-8", "surrogateescape")  # names may be any bytes
                    key = hashlib.blake2b(raw, digest_size=8).hexdigest()
                    run = self._runs.get(key) or ServedRun(key, path, item.name, self._workers)
                    run.size = item.bytes
                    runs[key] = run
            self._runs = runs  # replaced, never changed: others read it without the lock
        return runs

    def _summaries(self, root: Place) -> list[RunSummary]:
        now = time.monotonic()
        until, found = self._found.get(root, (0.0, []))
        if now < until:
            return found
        try:
            found = list_runs(root)
        except GradwatchError:
            # A folder that vanished: its runs are gone, the page says so. A server that does not
            # answer is another thing: its runs stay in the list.
            found = found if root.remote else []
        self._found[root] = _counts_until(now, root), found
        return found

    def run(self, key: str) -> "ServedRun":
        """By id only: what is not in the table does not exist."""
        run = self._runs.get(key) or self.scan().get(key)
        if run is None:
            raise RunGone
        run.mark()  # raises where it is gone
        return run

    def listing(self) -> list[dict[str, Any]]:
        """What the list shows of every run; those not looked at yet say so."""
        runs = self.scan()
        asked = {key for key, run in runs.items() if run.look() and not run.big}
        self._workers.wait(asked, LISTING_SECONDS)
        return [run.listed() for run in runs.values()]

    def pending(self) -> bool:
        """Whether some run was not looked at yet."""
        return any(run.summary is None for run in self._runs.values())


@dataclass
class ServedRun:
    """Plain requests get the whole model, diagnosis included: the bytes a report would hold.
    Requests for an answer `soon`, and windows of big runs, get a preview of what is known.

    Two locks: `_building` is held while a whole model is made, which may take minutes;
    `_previewing` while a preview is made or the run is read on. `_building` is taken before
    `_previewing`, never after it. The run is read on only when nobody reads it.
    """

    key: str
    path: Place
    name: str
    workers: "WorkerThreads"
    size: int = 0
    sent: SentETags = field(default_factory=SentETags)
    summary: dict[str, Any] | None = None
    summary_mark: str = ""
    ready: str = ""
    """The mark for which everything that takes long is done."""
    busy: str = ""
    """What a worker does for this run just now."""

    def __post_init__(self) -> None:
        self.run: Run | None = None
        self._run_mark = self._mark = ""
        self._marked_until = 0.0
        self._diagnosis: tuple[str, Diagnosis] | None = None
        self._newest: EncodedView | None = None
        self.shown = ""
        """The mark of that: every page may have it, also while the run rests."""
        self._answers = AnswerCache()
        self._opening_rest, self._building_rest = Rest(), Rest()
        self._building, self._previewing = threading.Lock(), threading.Lock()

    @property
    def big(self) -> bool:
        """Whether reading it takes so long that a page should not wait for all of it."""
        return self.size >= BIG

    @property
    def large(self) -> bool:
        """Whether the run, once open, turned out too large for the checks."""
        run = self.run
        return run is not None and len(run.steps) * len(run.parameters) > MOST_DIAGNOSED

    @property
    def resting(self) -> bool:
        """Whether a whole model was built so lately that the next one has to wait."""
        return self._building_rest.active

    def mark(self) -> str:
        """Changes whenever a file of the run does; reads no data."""
        now = time.monotonic()
        if now >= self._marked_until:
            try:
                if not self.path.exists():
                    raise RunGone
                self._mark = self.path.mark()
            except GradwatchError:  # a server that does not answer: the run is as it was
                if not self._mark:
                    raise
            self._marked_until = _counts_until(now, self.path)
        return self._mark

    # -- answers ---------------------------------------------------------------------------------

    def view(self, request: ViewRequest) -> EncodedView:
        """The answer to a request; only plain ones wait until all is read and diagnosed."""
        try:
            return self._view(request)
        except (GradwatchError, RunGone):
            raise
        except Exception as error:  # a made-up run can fail anywhere
            raise GradwatchError(f"{type(error).__name__}: {error}") from error

    def _view(self, request: ViewRequest) -> EncodedView:
        if request.plain and (request.needs_diagnosis or not self.big):
            return self.whole(request.first, request.last).only(request.sections)
        mark = self.mark()
        if self.ready != mark:
            self.workers.ask(self.key, self.prepare)
        if request.soon and request.whole_run and self._newest is not None:
            return self._newest.only(request.sections)
        answer = self._preview(mark, request)
        return answer.beside("coming", self._coming()) if request.soon else answer

    def whole(self, first: int | None, last: int | None) -> EncodedView:
        """The whole model of a window; of a run that rests, perhaps as it was a moment ago."""
        request = ViewRequest(first, last)
        with self._building:
            mark = self.mark()
            answer = self._answers.get("whole", mark, request)
            if answer is None and self.resting:
                answer = self._answers.newest("whole", request)
            if answer is not None:
                return answer
            with self._building_rest.after():
                with self._previewing:
                    source = self._open(mark, now=True).source
                run = Run(source)  # a new one each time: the series it loads are let go again
                diagnosis = None if self.large else self._diagnosed(mark, run)
                model = build(run, diagnosis, first=first, last=last)
            answer = self._answers.keep("whole", mark, request, EncodedView.of(model))
            if request.whole_run:
                self._newest, self.shown = answer, mark
                self._summarise(model)
            return answer

    def _preview(self, mark: str, request: ViewRequest) -> EncodedView:
        """From the run as it was opened last, with the findings where they are known."""
        with self._previewing:
            run = self.run
            if run is None or not self.big:  # of a big run new files are left to the worker
                run = self._open(mark)
            diagnosis = self._diagnosis[1] if self._diagnosis else None
            kind = "preview" if diagnosis else "undiagnosed preview"
            answer = self._answers.get(kind, self._run_mark, request)
            if answer is None:
                built = _built(run, request, diagnosis)
                answer = self._answers.keep(kind, self._run_mark, request, built)
                if self.large:
                    give_back_memory()
            return answer

    def _coming(self) -> dict[str, Any]:
        """What an early answer lacks: the work under way, and which maps there are."""
        maps = choosable(self.run) if self.run else []
        if self.large:
            return {"what": "not diagnosed: too large", "done": None, "maps": maps}
        if self._diagnosis is None:
            return {"what": "diagnosing", "done": None, "maps": maps}
        return {"maps": maps}

    def look(self) -> bool:
        """Whether its row in the list is old; then a worker is asked for a new one."""
        with suppress(GradwatchError, RunGone):
            if self.summary is None or self.summary_mark != self.mark():
                self.workers.ask(self.key, self.prepare)
                return True
        return False

    def listed(self) -> dict[str, Any]:
        """The run's row in the list, as far as it is known."""
        opening = "opening" if self.big else "not looked at yet"
        summary = self.summary or _unknown(opening)
        return {"id": self.key, "name": self.name, **summary}

    # -- the long work ---------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open, diagnose, summarise: by a worker's thread."""
        mark = ""
        try:
            mark = self.mark()
            if self.ready != mark:
                self._prepare(mark)
        except RunGone:
            raise
        except Exception:
            self.summary = _unknown("cannot be read: the terminal says why")
            if not self.path.remote:  # elsewhere it may be the server that did not answer
                self.summary_mark = mark
            raise

    def _prepare(self, mark: str) -> None:
        try:
            self.busy = "opening"
            if self.big or self.large:
                with self._previewing:
                    run = self._open(mark)
                    if self.large:
                        sections = {"run", "health", "scalars"}
                        self._summarise(build(Run(run.source), sections=sections, stats=()))
            if not self.large:
                self.busy = "diagnosing"
                self.whole(None, None)
            if self.summary_mark == mark:  # not while it rests: then it is as it was before
                self.ready = mark
        finally:
            self.busy = ""

    def _open(self, mark: str, *, now: bool = False) -> Run:
        """Open the run, or read on what is new; the caller holds `_previewing`.

        Only with `now`, when the caller holds `_building` too, is a run read on that rests or of
        which a whole model is being built.
        """
        stale = self._run_mark != mark
        may = now or not (self._opening_rest.active or self._building.locked())
        if self.run is None or (stale and may):
            with self._opening_rest.after():
                run = _locked(open_run(self.path), threading.RLock())
                _ = run.steps, run.scalars, run.recorded, run.parameters  # every answer needs them
            self.run, self._run_mark = run, mark
        return self.run

    def _diagnosed(self, mark: str, run: Run) -> Diagnosis:
        if self._diagnosis is None or self._diagnosis[0] != mark:
            self._diagnosis = mark, diagnosed(run)
        return self._diagnosis[1]

    def _summarise(self, model: ViewModel) -> None:
        """What the list shows of the run."""
        curves = {curve["name"]: curve["last"] for curve in model.scalars}
        loss = curves.get("loss", [])
        self.summary = {
            "state": model.health["state"],
            "line": model.health["line"],
            "steps": model.run["steps"],
            "loss": loss[:: max(1, -(-len(loss) // SPARK))],
            "last_loss": loss[-1] if loss else None,
            "complete": bool(self.run is not None and self.run.info.get("complete")),
        }
        self.summary_mark = self._run_mark


class LockedSource:
    """A run's source that one thread reads at a time: its caches are not made for several.

    Attributes are read once under the lock and kept, so that nobody who only wants to know the
    steps waits while a series is loaded. Events and information are not kept: loading a series can
    find damage, which adds to them.
    """

    def __init__(self, source: Any, lock: Any) -> None:
        self._source = source
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            value = getattr(self._source, name)
        if not callable(value):
            if name not in ("events", "info"):
                self.__dict__[name] = value  # Python finds it there and no longer comes here
            return value

        def call(*arguments: Any) -> Any:
            with self._lock:
                return value(*arguments)

        return call

    def load(self, stat: Stat) -> Loaded:
        """A whole series; of a run that is too large for it, whoever asks has to do without."""
        with self._lock:
            folders = getattr(self._source, "folders", ())  # of a run folder, not of arrays
            rows = [part for f in folders for part in f.parts[f"rows/{stat.family}"]]
            if (size := sum(part.bytes for part in rows)) > MOST_LOADED:
                raise GradwatchError(f"{stat} is in {size:,} bytes of rows: too many to be served.")
            loaded: Loaded = self._source.load(stat)
            return loaded

    @cached_property
    def thinned(self) -> "LockedSource | None":
        """What coarse rows show, likewise."""
        thinned = getattr(self._source, "thinned", None)
        return LockedSource(thinned, self._lock) if thinned else None

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """Each has a source of its own, but they share what lies beneath."""
        ranks: Mapping[int, Run] = getattr(self._source, "ranks", {})
        return {rank: _locked(run, self._lock) for rank, run in ranks.items()}


def _locked(run: Run, lock: Any) -> Run:
    return Run(cast(Source, LockedSource(run.source, lock)))


class Rest:
    """After work that took t seconds, `REST` × t seconds in which it is not done again."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def active(self) -> bool:
        """Whether the rest is not over yet."""
        return time.monotonic() < self._until

    @contextmanager
    def after(self) -> Iterator[None]:
        """Rest when this is done, unless it fails."""
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self._until = ended + REST * (ended - begun)


def keep_little_memory() -> None:
    """One heap for all threads: of dozens, each would keep for later what it once needed."""
    with suppress(OSError, AttributeError):  # glibc alone has this, and keeps so much
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX


def give_back_memory() -> None:
    """What was freed goes back to the system: a server is mostly idle."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _counts_until(begun: float, place: Place) -> float:
    """How long what a look found counts: a long run has so many files that one takes its time."""
    now = time.monotonic()
    return now + (REMOTE_SECONDS if place.remote else REST * (now - begun))


def _unknown(line: str) -> dict[str, Any]:
    """The row of a run of which nothing is known."""
    nothing: dict[str, Any] = {"steps": 0, "loss": [], "last_loss": None, "complete": False}
    return {"state": "unknown", "line": line, **nothing}


def _built(run: Run, request: ViewRequest, diagnosis: Diagnosis | None) -> EncodedView:
    return EncodedView.of(
        build(
            Run(run.source),  # what it loads is let go again
            diagnosis,
            first=request.first,
            last=request.last,
            stats=request.maps if request.maps is not None else first_map(run),
            with_paths=False,
            sections=request.sections,
        )
    )


def choosable(run: Run) -> list[str]:
    """The maps a page may ask for."""
    return [name for name in HEAT_CHOICE if shown(name).stat in run.recorded]


def first_map(run: Run) -> tuple[str, ...]:
    """The most telling one: a page shows one map at a time and asks for others when needed."""
    return tuple(choosable(run)[:1])


class WorkerThreads:
    """Jobs by two threads, each once however often it is asked for; a failing one is logged."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def ask(self, key: str, job: Callable[[], None]) -> None:
        """Do it when its turn comes, unless it is waiting or being done already."""
        with self._changed:
            if key in self._waiting:
                return
            self._waiting.add(key)
            self._jobs.put((key, job))
            if len(self._threads) < WORKERS:  # daemons: nobody waits for them at the end
                self._threads.append(
                    threading.Thread(target=self._work, name="gradwatch-worker", daemon=True)
                )
                self._threads[-1].start()

    def wait(self, keys: Set[str], seconds: float) -> None:
        """Until these jobs are done, but no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting & keys, seconds)

    def _work(self) -> None:
        while True:
            key, job = self._jobs.get()
            try:
                job()
            except Exception as error:
                LOG.warning("%s: %s", type(error).__name__, plain(str(error)))
            finally:
                with self._changed:
                    self._waiting.discard(key)
                    self._changed.notify_all()
                give_back_memory()
