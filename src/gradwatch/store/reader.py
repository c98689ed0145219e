"""`open_run`: a run folder, or several, as a `Run`."""

import os
from collections.abc import Sequence
from typing import Any

from gradwatch.errors import GradwatchError
from gradwatch.files import paths_of
from gradwatch.run.run import Run
from gradwatch.store.folder import NEVER, Folder
from gradwatch.store.layout import FORMAT
from gradwatch.store.merge_ranks import MergedSource
from gradwatch.store.places import Place
from gradwatch.store.rank import RankSource
from gradwatch.store.runs import HOME, find_run, read_run_json, writers

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_run(path: Paths, *, attempt: int | None = None) -> Run:
    """Open a run for reading: by its name, a unique part of it, its folder or its URL.

    Several folders (of ranks or of parts) open as one run. Growing, killed and damaged runs open
    too: what is sound is there, events say what is not. Open a growing run again to see it as it is
    then. Raises `GradwatchError` only where nothing at all can be read.
    """
    runs = [_found(item) for item in paths_of(path)]
    # Of several folders the `run.json` of the first one named wins.
    info = {name: value for run in reversed(runs) for name, value in _document(run).items()}
    # Attempts from old to new; of two writers that took the same number, one is always later.
    places = [run / name for run in runs for *_, name in writers(run)]
    opened = [folder for folder in map(Folder, places) if attempt in (None, folder.attempt)]
    folders = sorted(opened, key=lambda f: (f.rank, f.attempt, f.place.name))
    if not folders:
        shown = ", ".join(repr(str(run)) for run in runs)
        raise GradwatchError(f"Expected a run folder at {shown}, found none: see `gradwatch runs`.")
    ranks: dict[int, list[Folder]] = {}
    begins: dict[int, int] = {}
    for folder in folders:
        ranks.setdefault(folder.rank, []).append(folder)
        begins[folder.attempt] = min(folder.first_step, begins.get(folder.attempt, NEVER))
    made = (RankSource(rank, ranks[rank], info, begins) for rank in ranks)
    sources = [source for source in made if source.folders]
    return Run(sources[0] if len(sources) == 1 else MergedSource(sources))


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
