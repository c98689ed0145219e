"""Files for people: written beside, made durable, then renamed; nothing is overwritten silently."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gradwatch.errors import Exit, GradwatchError


def refuse_taken(path: Path, force: bool) -> None:
    """Say early that a file is in the way, before any work is done for it."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise GradwatchError(
            f"Expected a plain file at {path}, found a link, folder or device. Name another.",
            Exit.USAGE,
        )
    if path.exists() and not force:
        raise GradwatchError(
            f"{path} already exists. Name another file, or add --force to replace it.", Exit.USAGE
        )
    if not path.parent.is_dir():
        raise GradwatchError(f"There is no folder {path.parent} to write into.", Exit.USAGE)


def write_whole(path: Path, write: Callable[[BinaryIO], None], *, force: bool = False) -> int:
    """Call `write` with a new file beside `path`, then put it in place; return its size.

    Killed at any moment, the old file is intact or the new one whole.
    """
    refuse_taken(path, force)
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}")
    try:
        with open(beside, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(beside, path)
    except OSError as error:
        raise GradwatchError(f"Could not write {path}: {error.strerror}.") from None
    finally:
        beside.unlink(missing_ok=True)
    return size
