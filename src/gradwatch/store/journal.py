"""The growing file of a writer: whole records, and nothing half left behind."""

import contextlib
import os
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """One append-only file. After an error it is cut back to its last whole record and closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes known to be whole records."""
        self._descriptor = os.open(path, _FLAGS, 0o644)

    def append(self, data: memoryview | bytes) -> None:
        """Write all of it, or raise OSError with the file cut back to what it was."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self.abandon()
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Ask the disk to keep it; after a failure the file must not be trusted with more."""
        try:
            os.fsync(self._descriptor)
        except OSError:
            self.close()
            raise

    @property
    def intact(self) -> bool:
        """Whether the file is still in its folder and as long as we made it."""
        try:
            status = os.fstat(self._descriptor)
            return status.st_nlink > 0 and status.st_size == self.size and self.path.exists()
        except OSError:
            return False

    def abandon(self) -> None:
        """Cut off what may be half a record, and close."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self.size)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def sync_folder(path: Path) -> None:
    """Make new and renamed names in a folder last; not every file system can, and then we go on."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
