"""Where a run lies: a folder of this machine. Links are left alone: they could lead anywhere."""

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gradwatch.store.parquet import RandomAccess


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


@dataclass(frozen=True, order=True)
class Place:
    """A folder that may hold a run: `Place.of("runs/x")`."""

    path: str

    @classmethod
    def of(cls, given: "str | os.PathLike[str] | Place") -> "Place":
        """From what a user hands in."""
        return given if isinstance(given, Place) else cls(os.fspath(given))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(self.path).name

    def __truediv__(self, name: str) -> "Place":
        return Place(os.path.join(self.path, name))  # noqa: PTH118

    def __str__(self) -> str:
        return self.path

    def exists(self) -> bool:
        """Whether there is such a folder."""
        return Path(self.path).is_dir()

    def folders(self) -> list[str]:
        """The names of the folders in it; none where it cannot be read."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            return [item.name for item in entries if item.is_dir(follow_symlinks=False)]
        return []

    def files(self) -> dict[str, int]:
        """Bytes of every regular file in it and in its folders, by path such as `rows/grad/…`."""
        sizes: dict[str, int] = {}
        waiting = [""]
        while waiting:
            below = waiting.pop()
            with contextlib.suppress(OSError), os.scandir(Path(self.path, below)) as entries:
                for item in entries:
                    path = below + item.name
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(path + "/")
                    elif item.is_file(follow_symlinks=False):
                        sizes[path] = item.stat(follow_symlinks=False).st_size
        return sizes

    def open(self, file: str) -> RandomAccess | None:
        """A file in it; None where there is no regular file: a link could lead out of the run's
        folder, and opening a pipe or a device could block or do harm."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = FileHandle(os.open(Path(self.path, file), flags))
        except (OSError, ValueError):
            return None
        return handle if stat.S_ISREG(os.fstat(handle.descriptor).st_mode) else None
