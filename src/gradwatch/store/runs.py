"""Run folders: names, the folders of their writers, `run.json`; listing and deleting them."""

import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import make_folder, mode_like, new_file
from gradwatch.jsonio import dumps
from gradwatch.store.format import FORMAT, JSON_LIMIT, BadPayload, from_json
from gradwatch.store.places import Place, is_url
from gradwatch.text import nearest, plain, several, shortened
from gradwatch.version import __version__

_WRITER = re.compile(r"([0-9]{1,6})-([0-9]{1,6})-([0-9a-f]{8})")
SEALED = re.compile(
    r"(rows|sketches|histograms)/[a-z]+/[0-9]+\.parquet"
    r"|rollups/[a-z]+-10{1,3}/[0-9]+\.parquet|(scalars|events)/[0-9]+\.parquet|subjects\.parquet"
)
_BESIDE = re.compile(r"(?:^|(?<=/))\.([^/]+)\.(?:[0-9a-f]{8}|[0-9a-f]{12})$")
"""A file that a kill left before it was renamed."""
_FILE = re.compile(
    rf"{_WRITER.pattern}/(?:{SEALED.pattern}|manifest\.json|graph\.json|journal-[0-9]+\.gwj)(?:\.part)?"
    r"|run\.json|tensorboard/events\.out\.tfevents\.[^/]+"
)
_FOLDER = re.compile(
    rf"{_WRITER.pattern}(?:/(?:rows|sketches|histograms|rollups|scalars|events)(?:/[a-z0-9-]+)?)?"
    r"|tensorboard"
)
"""What gradwatch writes, by the path in the run's folder. Whatever has another name is not ours."""
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{p}{d}" for p in ("com", "lpt") for d in range(1, 10)}


@dataclass(frozen=True, slots=True, order=True)
class WriterFolder:
    """One writer's folder; the order is that of reading: by rank, then by attempt."""

    rank: int
    attempt: int
    tag: str
    path: Place


def folder_name(name: str) -> str:
    """A safe, portable folder name for a run's name; the true name is stored inside."""
    safe = re.sub(r"[^A-Za-z0-9._+=-]+", "_", name)[:100].strip("._-")
    if not safe or safe.lower().split(".")[0] in _RESERVED:
        return f"run_{safe}" if safe else "run"
    return safe


def writer_folders(run: Place) -> list[WriterFolder]:
    """The writers' folders of a run, links and anything else left aside."""
    folders = []
    for name in run.folders():
        if match := _WRITER.fullmatch(name):
            rank, attempt, tag = match.groups()
            folders.append(WriterFolder(int(rank), int(attempt), tag, run / name))
    return sorted(folders)


def next_attempt(run: Path, rank: int) -> int:
    """The number of the attempt a new writer of this rank makes."""
    folders = writer_folders(Place.of(run))
    return max((folder.attempt + 1 for folder in folders if folder.rank == rank), default=0)


def make_writer_folder(run: Path, rank: int, attempt: int) -> Path:
    """Make a folder nobody else has; mkdir is exclusive everywhere, on network file systems too."""
    make_folder(run)
    while True:
        path = run / f"{rank:04d}-{attempt:04d}-{secrets.token_hex(4)}"
        try:
            path.mkdir(mode_like(run))
        except FileExistsError:
            continue
        return path


def write_run_json(run: Path, name: str, versions: Mapping[str, str]) -> None:
    """Write `run.json` beside and put it in place, unless another writer was first."""
    target = run / "run.json"
    if os.path.lexists(target):  # a dangling link too: it must not be written through
        return
    document = {
        "format": FORMAT,
        "id": secrets.token_hex(16),
        "name": name,
        "created": time.time(),
        "versions": {
            "gradwatch": __version__,
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "numpy": np.__version__,
            **versions,
        },
    }
    beside = run / f".run.json.{secrets.token_hex(4)}"
    with new_file(beside, mode_like(run)) as file:
        file.write(dumps(document, indent=1, ascii_only=True).encode() + b"\n")
    # Ranks start at the same moment. A rename would replace what another one has just put there,
    # and with it the run's id; a link refuses to. Some file systems have no links: there the last
    # rename wins, which leaves one whole file as well.
    try:
        os.link(beside, target)
        beside.unlink()
    except FileExistsError:
        beside.unlink()
    except OSError:
        beside.replace(target)


def hold(run: Path, name: str, versions: Mapping[str, str]) -> int | None:
    """Make a run's folder and hold it until the descriptor is closed or the process ends.

    BlockingIOError where another training holds it; None where it cannot be made or locked here.
    """
    try:
        import fcntl  # which Windows has not

        make_folder(run)
        write_run_json(run, name, versions)
        # for writing: some network file systems lock nothing else
        descriptor = os.open(run / "run.json", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def read_run_json(run: Place) -> dict[str, Any] | None:
    """What `run.json` says, or None where there is no sound one."""
    handle = run.open("run.json")
    try:
        document = from_json(handle.read(min(handle.size, JSON_LIMIT), 0)) if handle else None
    except BadPayload:
        return None
    return document if isinstance(document, dict) else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as a list shows it; nothing of its data is read."""

    path: Place
    name: str
    created: float
    """Seconds since 1970, by the clock of the machine that began it; 0 where unknown."""
    bytes: int
    ranks: int
    attempts: int
    sound: bool
    """Whether `run.json` could be read; the data may be sound all the same."""


def list_runs(folder: str | os.PathLike[str]) -> list[RunSummary]:
    """Every run in `folder`, newest first; the folder itself too where a writer was at work in it.

    A `run.json` beside runs makes no run of their folder: it must not hide them.
    """
    root = Place.of(folder)
    if problem := root.problem():
        raise GradwatchError(
            f"Expected a folder of runs at {str(root)!r}, which cannot be read: {problem}. "
            "Runs are kept in `runs` beside the training unless told otherwise."
        )
    names = root.folders()
    others = [name for name in names if not _WRITER.fullmatch(name)]
    found = [place for name in others if is_run(place := root / name)]
    summaries = map(summary, found if others == names else [*found, root])
    return sorted(summaries, key=lambda item: (-item.created, item.name))


def find_run(wanted: str, home: Place) -> Place:
    """The run a person means: a folder, or a run in `home` by its name or a unique part of it.

    Nothing stands for the newest. Who deletes must not ask here: that takes whole names.
    """
    if is_url(wanted) or (wanted and is_run(Place.of(wanted))):
        return Place.of(wanted)
    runs = {name: place for name in home.folders() if is_run(place := home / name)}
    if not wanted:
        newest = max(runs.values(), key=_begun, default=None)
        if newest is None:
            raise GradwatchError(
                f"Expected a run in {plain(str(home))!r}, found none. Record one with "
                "gradwatch.watch, or name its folder."
            )
        return newest
    named = {place.name for place in runs.values() if wanted in (place.name, _true_name(place))}
    near = named or {name for name in runs if wanted.lower() in name.lower()}
    if len(near) == 1:
        return runs[near.pop()]
    if Place.of(wanted).exists():  # whoever opens it says what is wrong with it
        return Place.of(wanted)
    if near:
        some = sorted(near, key=lambda name: _begun(runs[name]), reverse=True)
        raise GradwatchError(
            f"Expected the name of one run, got {plain(wanted)!r}, which fits {len(near)}: "
            f"{several([plain(name) for name in some], 3)}. Say more of the name."
        )
    hint = f" The nearest: {nearest(wanted, runs)}." if runs else ""
    raise GradwatchError(
        f"Expected a run at {shortened(wanted, 200)!r}, found none, and none of that name in "
        f"{plain(str(home))!r}.{hint}"
    )


def _begun(place: Place) -> tuple[float, str]:
    return _created(read_run_json(place) or {}), place.name


def _created(document: Mapping[str, Any]) -> float:
    """Within what every calendar can show; the file may say anything."""
    seconds = document.get("created")
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 4e9 else 0.0


def _true_name(place: Place) -> Any:
    return (read_run_json(place) or {}).get("name")


def is_run(place: Place) -> bool:
    """Whether this folder is a run: it has a `run.json` or a writer's folder."""
    return place.open("run.json") is not None or bool(writer_folders(place))


def summary(place: Place) -> RunSummary:
    """Name, size, ranks and attempts of one run, from file names and sizes alone."""
    document = read_run_json(place) or {}
    name = document.get("name")
    folders = writer_folders(place)
    return RunSummary(
        place,
        name if isinstance(name, str) else place.name,
        _created(document),
        sum(place.files().values()),
        len({folder.rank for folder in folders}),
        len({folder.attempt for folder in folders}),
        bool(document),
    )


def delete_run(path: str | os.PathLike[str]) -> list[str]:
    """Delete what gradwatch wrote in a run's folder; anything else stays, and is returned.

    Links are neither followed nor removed.
    """
    run = Path(path)
    if run.is_symlink() or not writer_folders(Place.of(path)):
        raise GradwatchError(
            f"Expected a run folder of this machine at {str(Place.of(path))!r}, found something "
            "else; nothing was deleted.",
            Exit.USAGE,
        )
    left: list[str] = []
    full: set[Path] = set()
    try:
        # by descriptors: a folder that becomes a link meanwhile leads nowhere else
        for root, folders, files, descriptor in os.fwalk(run, topdown=False):
            below = Path(root).relative_to(run)
            for name in (*files, *folders):
                here = below / name
                kind = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISREG(kind) and _FILE.fullmatch(_BESIDE.sub(r"\1", here.as_posix())):
                    os.unlink(name, dir_fd=descriptor)
                elif stat.S_ISDIR(kind) and here not in full and _FOLDER.fullmatch(here.as_posix()):
                    os.rmdir(name, dir_fd=descriptor)
                else:
                    full.add(below)
                    left += [] if here in full else [str(here)]
        if not left:
            run.rmdir()
    except OSError as error:
        raise GradwatchError(
            f"Could not delete {str(run)!r} wholly ({error.strerror}); check who owns it."
        ) from None
    return left
