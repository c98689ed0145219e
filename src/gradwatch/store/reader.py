"""`open_run`: a run folder, or several, as a `Run`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.files import paths_of
from gradwatch.run.run import Run
from gradwatch.run.source import Source
from gradwatch.store.attempt import COARSEST, Attempt, FolderIndex
from gradwatch.store.format import FORMAT
from gradwatch.store.merge_ranks import MergedSource
from gradwatch.store.rank import RankSource
from gradwatch.store.runs import read_run_json, writer_folders

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Follower:
    """A run that may still grow; `refresh` reads only what is new."""

    def __init__(self, path: Paths, *, attempt: int | None = None) -> None:
        self._runs = paths_of(path)
        self._attempt = attempt
        self._indexes: dict[Path, FolderIndex] = {}

    def refresh(self, progress: Callable[[float], None] = lambda _: None) -> Run:
        """The run as it is now; `progress` is called with the share read so far, from 0 to 1."""
        if not self._runs:
            raise GradwatchError("Expected at least one run folder, got none.")
        documents = [_document(run) for run in self._runs]
        for run in self._runs:
            for folder in writer_folders(run):
                if self._attempt in (None, folder.attempt):
                    # kept between refreshes: an index knows how far it has read each file
                    self._indexes.setdefault(folder.path, FolderIndex(folder))
        if not self._indexes:
            raise GradwatchError(_nothing(self._runs, self._attempt))
        for number, index in enumerate(self._indexes.values()):
            index.refresh(_share(progress, number, len(self._indexes)))
        # of several folders the `run.json` of the first one named wins
        return Run(self._source({k: v for d in reversed(documents) for k, v in d.items()}))

    def _source(self, info: dict[str, Any]) -> Source:
        ranks: dict[int, list[FolderIndex]] = {}
        for index in self._indexes.values():
            ranks.setdefault(index.folder.rank, []).append(index)
        # `Attempt.of` copies: a `Run` handed out before must not change when the indexes read on.
        sources = [
            RankSource(rank, [Attempt.of(index) for index in sorted(indexes, key=_order)], info)
            for rank, indexes in sorted(ranks.items())
        ]
        return sources[0] if len(sources) == 1 else MergedSource(sources)


def open_run(path: Paths, *, attempt: int | None = None) -> Run:
    """Open a run folder (or the folders of several ranks or parts) for reading.

    Growing, killed and damaged runs open too: what is sound is there, events say what is not.
    Raises `GradwatchError` only where nothing at all can be read.
    """
    return Follower(path, attempt=attempt).refresh()


def follow(path: Paths) -> Follower:
    """For pages and terminals that look again and again: `follow(path).refresh()`."""
    return Follower(path)


def glance(path: str | os.PathLike[str]) -> Run | None:
    """A long run of one process from its coarsest rollup alone, opened in a fraction of the time.

    The newest steps, all scalars and all events are missing: it is for a first look while the whole
    run is opened. None where a run has no such rollup, several writers, or nameless subjects.
    """
    run = Path(path)
    folders = [f for f in writer_folders(run) if any(f.path.glob(f"{COARSEST}*.gwl"))]
    if len(folders) != 1 or len(writer_folders(run)) != 1:
        return None
    index = FolderIndex(folders[0], coarse=True)
    index.refresh()
    attempt = Attempt.of(index)
    # Subjects declared late have their names in files that are not read here.
    named = all(set(chunk.ids.tolist()) <= set(index.small.subjects) for chunk in attempt.chunks)
    if not attempt.chunks or not named:
        return None
    return Run(RankSource(folders[0].rank, [attempt], _document(run)))


def _share(progress: Callable[[float], None], number: int, count: int) -> Callable[[float], None]:
    """Turns the progress of folder `number` into that of all `count` folders."""
    return lambda part: progress((number + part) / count)


def _order(index: FolderIndex) -> tuple[int, str]:
    """Attempts from old to new; of two writers that took the same number, one is always later."""
    return index.folder.attempt, index.folder.tag


def _document(run: Path) -> dict[str, Any]:
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


def _nothing(runs: Sequence[Path], attempt: int | None) -> str:
    shown = ", ".join(repr(str(run)) for run in runs)
    if attempt is not None and any(writer_folders(run) for run in runs):
        return (
            f"Expected attempt {attempt} in {shown}, found none; leave it out to see all attempts."
        )
    if not any(run.is_dir() for run in runs):
        return f"Expected a run folder at {shown}, found none. `gradwatch runs` lists them."
    return (
        f"Expected a run folder with at least one writer's folder (such as 0000-0000-1a2b3c4d) "
        f"at {shown}, found none. Was nothing recorded yet?"
    )
