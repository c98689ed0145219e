"""`open_run`: a run folder, or several, as a `Run`."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.files import paths_of
from gradwatch.run.run import Run
from gradwatch.run.source import ReadCache
from gradwatch.store.attempt import Attempt
from gradwatch.store.budget import Budget
from gradwatch.store.chunks import ahead
from gradwatch.store.folder import Folder
from gradwatch.store.format import FORMAT
from gradwatch.store.merge_ranks import MergedSource
from gradwatch.store.parquet import Isolation, directly
from gradwatch.store.places import Place
from gradwatch.store.rank import RankSource
from gradwatch.store.runs import read_run_json, writer_folders

_CACHED_BYTES = 24 << 20
"""Of files, per folder: what is sealed or written never changes, so it is as good as new."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Follower:
    """A run that may still grow; `refresh` reads only what is new.

    `call` is how Parquet is decoded: a server does it where a decoder may die without harm.
    """

    def __init__(
        self,
        path: Paths,
        *,
        attempt: int | None = None,
        call: Isolation = directly,
        cache: ReadCache | None = None,
    ) -> None:
        self._runs = [Place.of(item) for item in paths_of(path)]
        self._attempt = attempt
        self._call = call
        self._folders: dict[Place, Folder] = {}
        self.budget = Budget()
        self._cache = cache or ReadCache(
            lambda: min(_CACHED_BYTES * len(self._folders), self.budget.room)
        )

    def refresh(self, progress: Callable[[float], None] = lambda _: None) -> Run:
        """The run as it is now; `progress` is called with the share read so far, from 0 to 1."""
        if not self._runs:
            raise GradwatchError("Expected at least one run folder, got none.")
        documents = [_document(run) for run in self._runs]
        for run in self._runs:
            for writer in writer_folders(run):
                if self._attempt in (None, writer.attempt) and writer.path not in self._folders:
                    # kept between refreshes: it knows how far it has read each file
                    self._folders[writer.path] = Folder(
                        writer, self._call, self._cache, self.budget
                    )
        if not self._folders:
            raise GradwatchError(_nothing(self._runs, self._attempt))
        ranks: dict[int, list[Attempt]] = {}
        # Attempts from old to new; of two writers that took the same number, one is always later.
        folders = sorted(self._folders.values(), key=lambda folder: folder.writer)
        # A look at a folder of this machine takes no waiting, which is what threads are for.
        remote = any(run.remote for run in self._runs)
        look = Folder.look_anew
        looks = ahead(look, folders) if remote else map(look, folders)
        for number, (folder, attempt) in enumerate(zip(folders, looks, strict=True), start=1):
            ranks.setdefault(folder.writer.rank, []).append(attempt)
            progress(number / len(folders))
        # of several folders the `run.json` of the first one named wins
        info = {k: v for document in reversed(documents) for k, v in document.items()}
        begins = _begins([attempt for attempts in ranks.values() for attempt in attempts])
        sources = [RankSource(rank, attempts, info, begins) for rank, attempts in ranks.items()]
        sources = [source for source in sources if source.attempts]
        return Run(sources[0] if len(sources) == 1 else MergedSource(sources))


def open_run(path: Paths, *, attempt: int | None = None) -> Run:
    """Open a run folder (or the folders of several ranks or parts) for reading.

    Growing, killed and damaged runs open too: what is sound is there, events say what is not.
    Raises `GradwatchError` only where nothing at all can be read.
    """
    return Follower(path, attempt=attempt).refresh()


def follow(path: Paths, *, call: Isolation = directly, cache: ReadCache | None = None) -> Follower:
    """For pages and terminals that look again and again: `follow(path).refresh()`.

    Whoever follows several runs may give them one cache.
    """
    return Follower(path, call=call, cache=cache)


def _begins(attempts: Sequence[Attempt]) -> dict[int, int]:
    """The first step of each attempt on any rank; of a single one nobody needs to know."""
    begins: dict[int, int] = {}
    if len({attempt.number for attempt in attempts}) > 1:
        for attempt in attempts:
            if len(attempt.steps):
                first = int(attempt.steps[0])
                begins[attempt.number] = min(first, begins.get(attempt.number, first))
    return begins


def _document(run: Place) -> dict[str, Any]:
    """`run.json` with what a reader needs; refused only where the format is another."""
    document = read_run_json(run) or {}
    number = document.get("format", FORMAT)
    if isinstance(number, int) and number != FORMAT:
        remedy = "a newer gradwatch" if number > FORMAT else "the gradwatch that wrote it"
        raise GradwatchError(
            f"Expected a run of format {FORMAT}, {str(run)!r} is of format {number}. "
            f"Open it with {remedy}."
        )
    name = document.get("name")
    return {**document, "format": FORMAT, "name": name if isinstance(name, str) else run.name}


def _nothing(runs: Sequence[Place], attempt: int | None) -> str:
    shown = ", ".join(repr(str(run)) for run in runs)
    if attempt is not None and any(writer_folders(run) for run in runs):
        return (
            f"Expected attempt {attempt} in {shown}, found none; leave it out to see all attempts."
        )
    if not any(run.exists() for run in runs):
        return f"Expected a run folder at {shown}, found none. `gradwatch runs` lists them."
    return (
        f"Expected a run folder with at least one writer's folder (such as 0000-0000-1a2b3c4d) "
        f"at {shown}, found none. Was nothing recorded yet?"
    )
