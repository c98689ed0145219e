"""Opening files of strangers: regular files only, links never followed out, reads bounded."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradwatch.checkpoints.index import FileId
from gradwatch.checkpoints.limits import HOLES, MIB
from gradwatch.errors import GradwatchError

relative_to = ""
"""The folder that relative paths start from, in processes that live in another; else empty."""


def place(path: Path | str) -> Path:
    """Where the file of that path is, as seen from this process; messages name the path itself."""
    return Path(relative_to, path)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file opened for `pread`, seen from `begin` for `size` bytes."""

    descriptor: int
    identity: FileId
    begin: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes, or a sentence."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise GradwatchError(
                f"{self.identity.path} is cut short or damaged: it has {self.size} bytes, "
                f"and bytes {offset} to {offset + length} were asked for."
            )
        return read_at(self.descriptor, self.begin + offset, length, self.identity.path)

    def part(self, offset: int, length: int) -> "OpenFile":
        """A stretch of this file as a file of its own."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise GradwatchError(
                f"{self.identity.path} is cut short or damaged: it has {self.size} bytes, "
                f"and a part of it is said to reach byte {offset + length}."
            )
        return OpenFile(self.descriptor, self.identity, self.begin + offset, length)


@contextmanager
def opened(path: Path) -> Iterator[OpenFile]:
    """Open a regular file; a pipe, device or folder is refused without waiting on it."""
    try:
        descriptor = os.open(place(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise GradwatchError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise GradwatchError(f"Cannot open {path}: {_reason(error)}.") from None
    try:
        identity = identified(descriptor, path)
        yield OpenFile(descriptor, identity, 0, identity.size)
    finally:
        os.close(descriptor)


def identified(descriptor: int, path: Path | str) -> FileId:
    """What the file is now; refuses what is no regular file and what is nearly all holes."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise GradwatchError(f"{path} is not a regular file; a checkpoint must be one.")
    if status.st_size > 256 * MIB and status.st_blocks * 512 < status.st_size // HOLES:
        raise GradwatchError(
            f"{path} claims {status.st_size} bytes but hardly any of them are on the disk; "
            "a checkpoint is not a sparse file, so it is not read."
        )
    return FileId(str(path), status.st_size, status.st_mtime_ns, status.st_ino)


def read_at(descriptor: int, offset: int, length: int, path: str) -> bytes:
    """`pread` until all is there."""
    found = bytearray()
    while len(found) < length:
        try:
            more = os.pread(descriptor, min(length - len(found), 64 * MIB), offset + len(found))
        except OSError as error:
            raise GradwatchError(f"Cannot read {path}: {_reason(error)}.") from None
        if not more:
            raise GradwatchError(f"{path} changed while reading: it is shorter than it was.")
        found += more
    return bytes(found)


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; a name with a path in it, or a link out, is refused."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise GradwatchError(
            f"{folder} names a file {name[:80]!r}, which is not a plain file name; it is not read."
        )
    path = folder / name
    home = place(folder).resolve()
    target = place(path).resolve()
    allowed = [home]
    if home.parent.name == "snapshots":  # a model hub's cache: snapshots/REVISION/NAME → blobs/HASH
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise GradwatchError(f"{path} is a link to outside its folder; it is not followed.")
    return target


def names_in(folder: Path, limit: int) -> list[str]:
    """The names in a folder, sorted, at most so many."""
    try:
        with os.scandir(place(folder)) as entries:
            found = []
            for entry in entries:
                found.append(entry.name)
                if len(found) > limit:
                    raise GradwatchError(
                        f"{folder} holds more than {limit} files; name the checkpoint itself."
                    )
    except OSError as error:
        raise GradwatchError(f"Cannot read the folder {folder}: {_reason(error)}.") from None
    return sorted(found)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
