"""Names and folders: a run's folder, the folder of one writer, `run.json`."""

import contextlib
import json
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

from gradwatch.store.records import FORMAT, JSON_LIMIT
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
    kept = re.sub(r"[^A-Za-z0-9._+=-]+", "_", name)[:100].strip("._-")
    if not kept or kept.lower().split(".")[0] in _RESERVED:
        return f"run_{kept}" if kept else "run"
    return kept


def writer_folders(run: Path) -> list[WriterFolder]:
    """The writers' folders of a run, links and anything else left aside."""
    found = []
    with contextlib.suppress(OSError), os.scandir(run) as entries:
        for item in entries:
            match = _WRITER.fullmatch(item.name)
            if match and item.is_dir(follow_symlinks=False):
                rank, attempt, tag = match.groups()
                found.append(WriterFolder(int(rank), int(attempt), tag, run / item.name))
    return sorted(found)


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
    if os.path.lexists(target):
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
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")
    try:
        os.link(beside, target)  # refuses to replace, unlike rename
        beside.unlink()
    except FileExistsError:
        beside.unlink()
    except OSError:
        os.replace(beside, target)


def read_run_json(run: Path) -> dict[str, Any] | None:
    """What `run.json` says, or None where there is no sound one."""
    raw = read_regular(run / "run.json", JSON_LIMIT)
    try:
        document = json.loads(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def open_regular(path: Path) -> int | None:
    """A descriptor of a regular file, never of a link, pipe or device; None where there is none."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def read_regular(path: Path, limit: int) -> bytes | None:
    """The first `limit` bytes of a regular file."""
    descriptor = open_regular(path)
    if descriptor is None:
        return None
    try:
        return pread(descriptor, min(os.fstat(descriptor).st_size, limit), 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def pread(descriptor: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes; fewer only at the end of the file."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    while (missing := length - sum(map(len, parts))) > 0:
        more = os.pread(descriptor, missing, offset + length - missing)
        if not more:
            break
        parts.append(more)
    return b"".join(parts)
