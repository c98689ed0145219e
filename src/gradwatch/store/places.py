"""Where a run lies: a folder of this machine, or (`store/remote.py`) one at a URL.

In a local folder links are left alone: they could lead anywhere.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gradwatch.errors import GradwatchError
from gradwatch.files import make_folder, mode_like, write_whole
from gradwatch.store.parquet import RandomAccess
from gradwatch.text import plain

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters at least: C:// is a drive


def is_url(given: object) -> bool:
    """Whether this text names something elsewhere, not a path of this machine."""
    return isinstance(given, str) and _URL.match(given) is not None


class FileHandle:
    """A regular file, open for reading, that closes itself when nobody holds it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

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


@dataclass(frozen=True)
class Place:
    """A folder that may hold a run: `Place.of("runs/x")`, `Place.of("s3://bucket/runs/x")`."""

    path: str

    @staticmethod
    def of(given: "str | os.PathLike[str]") -> "Place":
        """From what a user hands in."""
        if isinstance(given, Place):
            return given
        from gradwatch.store import remote  # which needs this class

        text = os.fspath(given)
        scheme = match[1].lower() if (match := _URL.match(text)) else "file"
        if scheme not in ("file", "local"):
            return remote.place_of(text)
        return Place(str(Path(unquote(urlsplit(text).path) if match else text)))

    @property
    def remote(self) -> bool:
        """Whether each look at it is a request to a server."""
        return False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    def __truediv__(self, name: str) -> "Place":
        return Place(os.path.join(self.path, name))  # noqa: PTH118

    def __lt__(self, other: "Place") -> bool:
        return self.path < other.path

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    def resolve(self) -> "Place":
        """The same place by its whole path, without links on the way."""
        return Place(str(Path(self.path).resolve()))

    def exists(self) -> bool:
        """Whether there is such a folder."""
        try:
            return Path(self.path).is_dir()
        except (OSError, ValueError):  # a name that no file system takes
            return False

    def problem(self) -> str:
        """Why the folder cannot be listed, in the system's words; "" where it can."""
        try:
            os.scandir(self.path).close()
        except OSError as error:
            return error.strerror or type(error).__name__
        return ""

    def folders(self) -> list[str]:
        """The names of the folders in it; none where it cannot be read."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            return [item.name for item in entries if item.is_dir(follow_symlinks=False)]
        return []

    def files(self) -> dict[str, int]:
        """Bytes of every regular file in it and in its folders, by path such as `rows/grad/…`."""
        return {path: size for path, size, *_ in self._listing()}

    def files_and_stored(self) -> tuple[dict[str, int], int]:
        """The same, and how many bytes are really stored: the holes of a file are not."""
        listing = list(self._listing())
        return {path: size for path, size, *_ in listing}, sum(stored for *_, stored in listing)

    def mark(self) -> str:
        """Changes whenever a file does; reads no data."""
        stamps = sorted(item[:3] for item in self._listing())  # the rest may settle later
        return hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()

    def _listing(self) -> Iterator[tuple[str, int, int | None, int]]:
        """Path, bytes, time of change, bytes that are stored."""
        waiting = [""]
        while waiting:
            below = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(Path(self.path, below)) as entries:
                for item in entries:
                    path = below + item.name
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(path + "/")
                    elif item.is_file(follow_symlinks=False):
                        # One that is renamed meanwhile must not end the listing of the others.
                        with contextlib.suppress(FileNotFoundError):
                            facts = item.stat(follow_symlinks=False)
                            stored = min(facts.st_size, 512 * facts.st_blocks)
                            yield path, facts.st_size, facts.st_mtime_ns, stored

    def open(self, file: str) -> RandomAccess | None:
        """A file in it; None where there is no regular file: a link could lead out of the run's
        folder, and opening a pipe or a device could block or do harm."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = FileHandle(os.open(Path(self.path, file), flags))
        except (OSError, ValueError):
            return None
        return handle if stat.S_ISREG(os.fstat(handle.descriptor).st_mode) else None

    def put(self, file: str, data: bytes) -> None:
        """Write a file as a whole, over an older one; never through a link."""
        path = Path(self.path)
        try:
            make_folder(path)
            for part in file.split("/")[:-1]:
                path /= part
                if path.is_symlink():
                    raise NotADirectoryError(0, "a link is in the way")
                path.mkdir(mode_like(path.parent), exist_ok=True)
        except OSError as error:
            raise GradwatchError(f"Could not write {plain(str(path))}: {error.strerror}.") from None
        write_whole(Path(self.path, file), lambda target: target.write(data), force=True)

    def remove(self, file: str) -> None:
        """Remove a file that `files` has named."""
        with contextlib.suppress(OSError):
            Path(self.path, file).unlink()
