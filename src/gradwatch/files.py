"""Files are whole or absent: written beside, synced, then renamed; never over another file."""

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from gradwatch.errors import Exit, GradwatchError


def paths_of(given: Any) -> list[str | os.PathLike[str]]:
    """One path, or several in order, as they are handed in; a URL stays as it is."""
    try:
        several = [given] if isinstance(given, str | os.PathLike) else list(given)
        return [item if "://" in os.fspath(item) else Path(item) for item in several]
    except TypeError:
        raise GradwatchError(
            f"Expected the path of a file or folder, or several, got {repr(given)[:60]}.",
            Exit.USAGE,
        ) from None


def refuse_taken(path: Path, force: bool, remedy: str = "add --force") -> None:
    """Say early that a file is in the way, before any work is done for it."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise GradwatchError(
            f"Expected a plain file at {path}, found a link, folder or device. Name another.",
            Exit.USAGE,
        )
    if path.exists() and not force:
        raise GradwatchError(
            f"{path} already exists. Name another file, or {remedy} to replace it.", Exit.USAGE
        )
    if not path.parent.is_dir():
        raise GradwatchError(f"There is no folder {path.parent} to write into.", Exit.USAGE)


def mode_in(folder: Path) -> int:
    """For whom a run or a report made in this folder is, before the umask: for its owner alone
    where root makes it or where another user could write; else the umask decides."""
    if not hasattr(os, "geteuid"):
        return 0o777  # Windows, where folders hand on their own rights
    status = folder.stat()
    # A group with the number of its user has no other members, by the custom of most systems.
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != os.geteuid()
    alone = os.geteuid() == 0 or by_group or status.st_mode & stat.S_IWOTH
    return 0o700 if alone else 0o777


def make_folder(path: Path) -> None:
    """Make a folder and those on the way to it, unless they are there."""
    if not path.is_dir() and path != path.parent:
        make_folder(path.parent)
        path.mkdir(mode_in(path.parent), exist_ok=True)


def new_file(path: Path, mode: int) -> BinaryIO:
    """A file that was not there before, open for writing."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode & 0o666))


def write_whole(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    force: bool = False,
    remedy: str = "add --force",
) -> int:
    """Call `write` with a new file beside `path`, then put it in place; return its size.

    Killed at any moment, the old file is intact or the new one whole.
    """
    refuse_taken(path, force, remedy)
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}")
    try:
        with new_file(beside, mode_in(path.parent)) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # without it, a crash may leave the new name on an empty file
            size = file.tell()
        beside.replace(path)
    except OSError as error:
        raise GradwatchError(f"Could not write {path}: {error.strerror}.") from None
    finally:
        beside.unlink(missing_ok=True)
    return size


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> Path:
    """Write UTF-8 text as it is, from Python; folders on the way are made."""
    target = Path(path)
    try:
        make_folder(target.parent)
    except OSError as error:
        raise GradwatchError(f"Could not write {target}: {error.strerror}.") from None
    raw = text.encode()
    write_whole(target, lambda f: f.write(raw), force=overwrite, remedy="pass overwrite=True")
    return target
