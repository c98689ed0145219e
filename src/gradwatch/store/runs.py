"""Run folders: names, `run.json`, the folders of writers; finding, listing and deleting them."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import numpy as np

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import make_folder
from gradwatch.jsonio import dumps, loads
from gradwatch.store.layout import FORMAT, WRITER
from gradwatch.store.places import Place, is_url
from gradwatch.text import nearest, plain, several, shortened
from gradwatch.version import __version__

HOME = "runs"
"""Where `watch` puts runs unless told otherwise."""


def folder_name(name: str) -> str:
    """A safe, portable folder name for a run's name; the true name is stored inside."""
    return re.sub(r"[^A-Za-z0-9._+=-]+", "_", name)[:100].strip("._-") or "run"


# -- making ----------------------------------------------------------------------------------------


def next_attempt(run: Path, rank: int) -> int:
    """The number of the attempt a new writer of this rank makes."""
    return max((there + 1 for own, there, _ in writers(Place.of(run)) if own == rank), default=0)


def make_writer_folder(run: Path, rank: int, attempt: int) -> Path:
    """Make a folder nobody else has; mkdir is exclusive everywhere, on network file systems too."""
    make_folder(run)
    path = run / f"{rank:04d}-{attempt:04d}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


def write_run_json(run: Path, name: str, versions: Mapping[str, str]) -> None:
    """Write `run.json`, unless another writer was first: ranks start at the same moment."""
    ours = {"gradwatch": __version__, "python": python_version(), "numpy": np.__version__}
    facts = {"format": FORMAT, "id": secrets.token_hex(16), "name": name, "created": time.time()}
    document = facts | {"versions": ours | dict(versions)}
    # One write of a few bytes: whoever reads it meanwhile finds all of it or nothing.
    with contextlib.suppress(FileExistsError), (run / "run.json").open("xb") as file:
        file.write(dumps(document, indent=1, ascii_only=True).encode() + b"\n")


def hold(run: Path, name: str, versions: Mapping[str, str]) -> int | None:
    """Make a run's folder and hold it until the descriptor is closed or the process ends.

    BlockingIOError where another training holds it; None where it cannot be made or locked here.
    """
    try:
        make_folder(run)
        write_run_json(run, name, versions)
        # for writing: some network file systems lock nothing else
        descriptor = os.open(run / "run.json", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        return None


# -- finding ---------------------------------------------------------------------------------------


def writers(run: Place) -> list[tuple[int, int, str]]:
    """Rank, attempt and name of every writer's folder of a run, in this order."""
    found = [match for name in run.folders() if (match := WRITER.fullmatch(name))]
    return sorted((int(match[1]), int(match[2]), match[0]) for match in found)


def read_run_json(run: Place) -> dict[str, Any]:
    """What `run.json` says, with a name and a time in any case; 0 where that is not known."""
    try:
        document = {"created": 0.0, **loads((run.read("run.json") or b"{}").decode())}
        return {"name": run.name, **document, "created": float(document["created"])}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return {"name": run.name, "created": 0.0}


def is_run(place: Place) -> bool:
    """Whether this folder is a run: it has a `run.json` or a writer's folder."""
    return place.read("run.json") is not None or bool(writers(place))


def find_run(wanted: str, home: Place) -> Place:
    """The run a person means: a folder, or a run in `home` by its name or a unique part of it.

    Nothing stands for the newest. Who deletes must not ask here: that takes whole names.
    """
    there = bool(wanted) and (is_url(wanted) or Place.of(wanted).exists())
    if there and (is_url(wanted) or is_run(Place.of(wanted))):
        return Place.of(wanted)
    runs = {name: read_run_json(home / name) for name in home.folders() if is_run(home / name)}
    newest = sorted(runs, key=lambda name: (runs[name]["created"], name), reverse=True)
    named = [name for name in newest if wanted in (name, runs[name]["name"])]
    near = named or [name for name in newest if wanted.lower() in name.lower()]
    if len(near) == 1 or (near and not wanted):
        return home / near[0]
    if there:  # whoever opens it says what is wrong with it
        return Place.of(wanted)
    shown, where = shortened(wanted, 200), plain(str(home))
    names = several([*map(plain, near)], 3)
    some = f"{len(near)}: {names}; say more of its name" if near else "none"
    hint = f" The nearest: {nearest(wanted, runs)}." if runs and not near else ""
    raise GradwatchError(f"Expected one run named {shown!r} in {where!r}, found {some}.{hint}")


# -- listing and deleting --------------------------------------------------------------------------


class RunSummary(NamedTuple):
    """One run as a list shows it; nothing of its data is read."""

    path: Place
    name: str
    created: float
    """Seconds since 1970, by the clock of the machine that began it; 0 where unknown."""
    bytes: int
    ranks: int
    attempts: int


def list_runs(folder: str | os.PathLike[str]) -> list[RunSummary]:
    """Every run in `folder`, newest first; the folder itself too where a writer was at work in it.

    A `run.json` beside runs makes no run of their folder: it must not hide them.
    """
    root = Place.of(folder)
    if not root.exists():
        raise GradwatchError(f"Expected a folder of runs at {str(root)!r}, found none.")
    names = root.folders()
    others = [name for name in names if not WRITER.fullmatch(name)]
    found = [place for name in others if is_run(place := root / name)]
    summaries = map(_summary, found if others == names else [*found, root])
    return sorted(summaries, key=lambda item: (-item.created, item.name))


def _summary(place: Place) -> RunSummary:
    """Name, size, ranks and attempts of one run, from file names and sizes alone."""
    document, found = read_run_json(place), writers(place)
    ranks, attempts = (len({own[at] for own in found}) for at in (0, 1))
    size = sum(place.files().values())
    return RunSummary(place, document["name"], document["created"], size, ranks, attempts)


def delete_run(path: str | os.PathLike[str]) -> list[str]:
    """Delete a run: its writers' folders, `run.json`, what was forwarded to TensorBoard.

    Anything else stays, and is returned. Links are neither followed nor removed.
    """
    run = Path(path)
    if run.is_symlink() or not (run / "run.json").is_file():
        text = f"Expected a run.json in {plain(str(run))!r}; nothing was deleted."
        raise GradwatchError(text, Exit.USAGE)
    kinds = re.compile(rf"{WRITER.pattern}|tensorboard|run\.json")
    # `run.json` goes last: where something goes wrong, the rest can be deleted again.
    for entry in sorted(run.iterdir(), key=lambda entry: entry.name == "run.json"):
        if kinds.fullmatch(entry.name) and not entry.is_symlink():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    left = sorted(entry.name for entry in run.iterdir())
    if not left:
        run.rmdir()
    return left
