"""Files are whole or absent: written beside, then renamed; never over another one by accident."""

import os
import tempfile
from pathlib import Path

from gradwatch.errors import Exit, GradwatchError


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> Path:
    """Write UTF-8 text as it is; folders on the way are made."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise GradwatchError(
            f"{target} exists already. Choose another name, or pass overwrite=True.", Exit.USAGE
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            os.replace(beside, target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise GradwatchError(f"Could not write {target}: {error.strerror}.") from error
    return target
