"""The runs in a folder: list them, weigh them, delete one."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store.folder import read_run_json, writer_folders


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
    found = [summary(path) for path in inside if is_run(path)]
    return sorted(found, key=lambda item: (-item.created, item.name))


def is_run(path: Path) -> bool:
    """Whether this folder is a run: it has a `run.json` or a writer's folder."""
    return path.is_dir() and ((path / "run.json").is_file() or bool(writer_folders(path)))


def summary(path: Path) -> RunSummary:
    """Weigh one run."""
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
    for root, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(root, name)).st_size
