"""Run folders: names, the folders of their writers, `run.json`; listing and deleting them."""

import contextlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.errors import Exit, GradwatchError
from gradwatch.jsonio import dumps
from gradwatch.store.format import FORMAT, JSON_LIMIT, BadPayload, from_json
from gradwatch.version import __version__

_WRITER = re.compile(r"([0-9]{1,6})-([0-9]{1,6})-([0-9a-f]{8})")
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{p}{d}" for p in ("com", "lpt") for d in range(1, 10)}


@dataclass(frozen=True, slots=True, order=True)
class WriterFolder:
    """One writer's folder; the order is that of reading: by rank, then by attempt."""

    rank: int
    attempt: int
    tag: str
    path: Path


def folder_name(name: str) -> str:
    """A safe, portable folder name for a run's name; the true name is stored inside."""
    safe = re.sub(r"[^A-Za-z0-9._+=-]+", "_", name)[:100].strip("._-")
    if not safe or safe.lower().split(".")[0] in _RESERVED:
        return f"run_{safe}" if safe else "run"
    return safe


def writer_folders(run: Path) -> list[WriterFolder]:
    """The writers' folders of a run, links and anything else left aside."""
    folders = []
    with contextlib.suppress(OSError), os.scandir(run) as entries:
        for item in entries:
            match = _WRITER.fullmatch(item.name)
            if match and item.is_dir(follow_symlinks=False):
                rank, attempt, tag = match.groups()
                folders.append(WriterFolder(int(rank), int(attempt), tag, run / item.name))
    return sorted(folders)


def next_attempt(run: Path, rank: int) -> int:
    """The number of the attempt a new writer of this rank makes."""
    return max((f.attempt + 1 for f in writer_folders(run) if f.rank == rank), default=0)


def make_writer_folder(run: Path, rank: int, attempt: int) -> Path:
    """Make a folder nobody else has; mkdir is exclusive everywhere, on network file systems too."""
    run.mkdir(parents=True, exist_ok=True)
    while True:
        path = run / f"{rank:04d}-{attempt:04d}-{secrets.token_hex(4)}"
        try:
            path.mkdir()
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
    text = dumps(document, indent=1, ascii_only=True)
    beside.write_text(text + "\n", encoding="ascii")
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


def read_run_json(run: Path) -> dict[str, Any] | None:
    """What `run.json` says, or None where there is no sound one."""
    handle = FileHandle.open(run / "run.json")
    try:
        document = from_json(handle.read(min(handle.size, JSON_LIMIT), 0)) if handle else None
    except BadPayload:
        return None
    return document if isinstance(document, dict) else None


class FileHandle:
    """A regular file, open for reading, that closes itself when nobody holds it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> "FileHandle | None":
        """None where there is no regular file: a link could lead out of the run's folder, and
        opening a pipe or a device could block or do harm."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = cls(os.open(path, flags))
        except (OSError, ValueError):
            return None
        return handle if stat.S_ISREG(os.fstat(handle.descriptor).st_mode) else None

    @property
    def size(self) -> int:
        """Bytes the file has at this moment; a writer may be appending."""
        return os.fstat(self.descriptor).st_size

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file, none where it cannot be read."""
        try:
            data = os.pread(self.descriptor, length, offset)
            while data and len(data) < length:
                more = os.pread(self.descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError:
            return b""
        return data

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as a list shows it; nothing of its data is read."""

    path: Path
    name: str
    created: float
    """Seconds since 1970, by the clock of the machine that began it; 0 where unknown."""
    bytes: int
    ranks: int
    attempts: int
    sound: bool
    """Whether `run.json` could be read; the data may be sound all the same."""


def list_runs(folder: str | os.PathLike[str]) -> list[RunSummary]:
    """Every run in `folder`, newest first; the folder itself where it is a run."""
    root = Path(folder)
    if is_run(root):
        return [summary(root)]
    try:
        inside = [path for path in root.iterdir() if not path.is_symlink()]
    except OSError as error:
        raise GradwatchError(
            f"Expected a folder of runs at {str(root)!r}, which cannot be read: {error.strerror}. "
            "Runs are kept in `runs` beside the training unless told otherwise."
        ) from None
    summaries = [summary(path) for path in inside if is_run(path)]
    return sorted(summaries, key=lambda item: (-item.created, item.name))


def is_run(path: Path) -> bool:
    """Whether this folder is a run: it has a `run.json` or a writer's folder."""
    return path.is_dir() and ((path / "run.json").is_file() or bool(writer_folders(path)))


def summary(path: Path) -> RunSummary:
    """Name, size, ranks and attempts of one run, from file names and sizes alone."""
    document = read_run_json(path) or {}
    name, created = document.get("name"), document.get("created")
    folders = writer_folders(path)
    return RunSummary(
        path,
        name if isinstance(name, str) else path.name,
        float(created) if isinstance(created, int | float) else 0.0,
        sum(_sizes(path)),
        len({folder.rank for folder in folders}),
        len({folder.attempt for folder in folders}),
        bool(document),
    )


def delete_run(path: str | os.PathLike[str]) -> None:
    """Delete a run folder, and nothing that is not one; links inside are removed, not followed."""
    run = Path(path)
    if run.is_symlink() or not is_run(run):
        raise GradwatchError(
            f"Expected a run folder at {str(run)!r}, found something else; nothing was deleted.",
            Exit.USAGE,
        )
    try:
        shutil.rmtree(run)
    except OSError as error:
        raise GradwatchError(
            f"Could not delete {str(run)!r} wholly ({error.strerror}); check who owns it."
        ) from None


def _sizes(path: Path) -> Iterator[int]:
    # Path.walk would do, but Python 3.11 lacks it
    for root, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                yield Path(root, name).lstat().st_size
