"""`open_run`: a run folder, or several, as a `Run`."""

import os
from collections.abc import Sequence
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.files import paths_of
from gradwatch.run.run import Run
from gradwatch.store.folder import Folder
from gradwatch.store.layout import FORMAT
from gradwatch.store.merge_ranks import MergedSource
from gradwatch.store.places import Place
from gradwatch.store.rank import RankSource
from gradwatch.store.runs import HOME, find_run, read_run_json, writers

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Follower:
    """A run that may still grow: `refresh` opens it as it is now."""

    def __init__(self, path: Paths, *, attempt: int | None = None) -> None:
        self._runs, self._attempt = [_found(item) for item in paths_of(path)], attempt

    def refresh(self) -> Run:
        """The run as it is now; finished parts that were read lately are not read again."""
        # Of several folders the `run.json` of the first one named wins.
        info = {k: v for run in reversed(self._runs) for k, v in _document(run).items()}
        # Attempts from old to new; of two writers that took the same number, one is always later.
        places = [run / writer.name for run in self._runs for writer in writers(run)]
        opened = [f for f in map(Folder, places) if self._attempt in (None, f.attempt)]
        folders = sorted(opened, key=lambda f: (f.rank, f.attempt, f.place.name))
        if not folders:
            shown = ", ".join(repr(str(run)) for run in self._runs)
            text = f"Expected a run folder at {shown}, found none: see `gradwatch runs`."
            raise GradwatchError(text)
        ranks: dict[int, list[Folder]] = {}
        begins: dict[int, int] = {}
        for folder in folders:
            ranks.setdefault(folder.rank, []).append(folder)
            first = begins.get(folder.attempt, folder.first_step)
            begins[folder.attempt] = min(folder.first_step, first)
        sources = [RankSource(rank, own, info, begins) for rank, own in ranks.items()]
        sources = [source for source in sources if source.folders]
        return Run(sources[0] if len(sources) == 1 else MergedSource(sources))


def open_run(path: Paths, *, attempt: int | None = None) -> Run:
    """Open a run for reading: by its name, a unique part of it, its folder or its URL.

    Several folders (of ranks or of parts) open as one run. Growing, killed and damaged runs open
    too: what is sound is there, events say what is not. Raises `GradwatchError` only where nothing
    at all can be read.
    """
    return Follower(path, attempt=attempt).refresh()


def _found(item: str | os.PathLike[str]) -> Place:
    """The run that is meant; only text that is no path can be a name."""
    place = Place.of(item)
    if isinstance(item, Place) or place.remote or place.exists() or os.sep in str(place):
        return place
    return find_run(str(item), Place.of(HOME))


def _document(run: Place) -> dict[str, Any]:
    """`run.json`, refused where the format is another."""
    document = read_run_json(run)
    if document.setdefault("format", FORMAT) != FORMAT:
        raise GradwatchError(
            f"Expected a run of format {FORMAT}, {str(run)!r} is of format {document['format']}. "
            "Open it with the gradwatch that wrote it."
        )
    return document
