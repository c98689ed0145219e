"""Files of strangers: only regular ones are opened, links never lead out, reads are bounded."""

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gradwatch.checkpoints.index import FileId
from gradwatch.checkpoints.limits import HOLES, MIB
from gradwatch.errors import GradwatchError

_MAX_BRACKETS = 1_000_000

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

    @property
    def path(self) -> str:
        """The path it was opened by, for messages."""
        return self.identity.path

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes; GradwatchError where the file does not have them."""
        self._must_hold(offset, length, f"bytes {offset} to {offset + length} were asked for")
        return read_at(self.descriptor, self.begin + offset, length, self.path)

    def head(self, length: int) -> bytes:
        """The first bytes, fewer if the file is shorter."""
        return self.read(0, min(self.size, length))

    def part(self, offset: int, length: int) -> "OpenFile":
        """A stretch of this file as a file of its own."""
        self._must_hold(offset, length, f"a part of it is said to reach byte {offset + length}")
        return OpenFile(self.descriptor, self.identity, self.begin + offset, length)

    def _must_hold(self, offset: int, length: int, claim: str) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise GradwatchError(
                f"{self.path} is cut short or damaged: it has {self.size} bytes, and {claim}."
            )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[OpenFile]:
    """Open a regular file; a pipe, device or folder is refused without waiting on it."""
    try:
        # O_NONBLOCK: opening a pipe nobody writes to would wait for ever. For files it is nothing.
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


def stored_bytes(paths: Iterable[Path | str]) -> int:
    """Bytes that the files really take on the disk: holes in a sparse file do not count."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):  # gone since: whoever reads it will say so
            status = place(path).stat()
            total += min(status.st_size, getattr(status, "st_blocks", 1 << 60) * 512)
    return total


def read_at(descriptor: int, offset: int, length: int, path: str) -> bytes:
    """`pread` until all is there."""
    data = bytearray()
    while len(data) < length:
        try:
            more = os.pread(descriptor, min(length - len(data), 64 * MIB), offset + len(data))
        except OSError as error:
            raise GradwatchError(f"Cannot read {path}: {_reason(error)}.") from None
        if not more:
            raise GradwatchError(f"{path} changed while reading: it is shorter than it was.")
        data += more
    return bytes(data)


def read_all(path: Path, limit: int) -> bytes:
    """All bytes of a file that has no reason to be larger than `limit`."""
    with opened(path) as file:
        if file.size > limit:
            raise GradwatchError(f"{path} has {file.size} bytes; at most {limit} are read.")
        return file.read(0, file.size)


def inside(folder: Path, name: str) -> Path:
    """The file of that name in a folder; a name with a path in it, or a link out, is refused."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise GradwatchError(
            f"{folder} names a file {name[:80]!r}, which is not a plain file name; it is not read."
        )
    path = folder / name
    try:
        home, target = place(folder).resolve(), place(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself; no file's name
        raise GradwatchError(f"Cannot open {path}: {_reason(error)}.") from None
    allowed = [home]
    if home.parent.name == "snapshots":  # a model hub's cache: snapshots/REVISION/NAME → blobs/HASH
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(parent) for parent in allowed):
        raise GradwatchError(f"{path} is a link to outside its folder; it is not followed.")
    return target


def names_in(folder: Path, limit: int) -> list[str]:
    """The names in a folder, sorted, at most so many."""
    names = []
    try:
        with os.scandir(place(folder)) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > limit:
                    raise GradwatchError(
                        f"{folder} holds more than {limit} files; name the checkpoint itself."
                    )
    except OSError as error:
        raise GradwatchError(f"Cannot read the folder {folder}: {_reason(error)}.") from None
    return sorted(names)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def parse_json(raw: bytes, source: str) -> dict[str, Any]:
    """A JSON object, strictly: sized before it is parsed, no key twice, no NaN or Infinity."""

    def refuse(reason: str) -> NoReturn:
        raise GradwatchError(f"{source} is not usable: {reason}.") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(items := dict(pairs)) != len(pairs):
            refuse("a key stands there twice")
        return items

    # Every list and object costs memory of its own: count them before they are made.
    if raw.count(b"{") + raw.count(b"[") > _MAX_BRACKETS:
        refuse("it has more than a million lists and objects")
    try:
        tree = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=lambda word: refuse(f"it contains {word}"),
        )
    except RecursionError:
        refuse("it is nested too deeply")
    except ValueError:
        refuse("it is not valid JSON")
    if not isinstance(tree, dict):
        refuse("it is not an object")
    return tree
