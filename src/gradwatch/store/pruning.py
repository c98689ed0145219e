"""Retention after the fact: the oldest full rows of a finished run go; rollups always stay."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradwatch.errors import GradwatchError
from gradwatch.store import manifest as manifests
from gradwatch.store.format import BadPayload
from gradwatch.store.journal import place_beside, sync_folder, write_beside
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.places import Place
from gradwatch.store.retention import FULL_ROWS, Retention, due, removal
from gradwatch.store.runs import writer_folders
from gradwatch.store.sealer import events_file


def prunable(run: str | os.PathLike[str], keep: Retention) -> dict[Path, list[SealedFile]]:
    """By writer's folder, the files of full rows beyond what is to be kept of this run.

    Folders that are not closed are left alone; their writers may be at work.
    """
    if Place.of(run).remote:
        raise GradwatchError(f"Expected a run of this machine to prune, got {Place.of(run)}.")
    closed = {
        Path(folder.path): manifest
        for folder in writer_folders(Place.of(run))
        if (manifest := _manifest(Path(folder.path))) is not None and manifest.closed
    }
    if keep.bytes is not None:
        keep = replace(keep, bytes=keep.bytes // max(len(closed), 1))  # of one folder
    gone: dict[Path, list[SealedFile]] = {}
    for folder, manifest in closed.items():
        rows: dict[int, list[SealedFile]] = {}
        for file in manifest.files:
            if file.kind in FULL_ROWS:
                rows.setdefault(file.number, []).append(file)
        total = sum(file.bytes for file in manifest.files)
        if files := due(folder, rows, total, keep):
            gone[folder] = files
    return gone


def prune(gone: Mapping[Path, Sequence[SealedFile]]) -> None:
    """Remove what `prunable` found: an event says so, then no manifest names it, then it goes."""
    for folder, files in gone.items():
        manifest = _manifest(folder)
        if manifest is None:
            raise GradwatchError(
                f"{str(folder)!r} was changed meanwhile; nothing of it was removed."
            )
        try:
            _without(folder, manifest, files)
        except OSError as error:
            raise GradwatchError(
                f"Could not prune {str(folder)!r} ({error.strerror}); check who owns it."
            ) from None
        for file in files:
            with contextlib.suppress(OSError):  # what stays is not read: the manifest says so
                (folder / file.file).unlink()


def _without(folder: Path, manifest: Manifest, files: Sequence[SealedFile]) -> None:
    numbers = [last for _, last, _, _ in manifest.journals] + [f.number for f in manifest.files]
    raw, entry = events_file(max(numbers) + 1, [removal(files)])
    target = folder / entry.file
    target.parent.mkdir(exist_ok=True)
    write_beside(target, raw)
    place_beside(target)
    sync_folder(target.parent)
    names = {file.file for file in files}
    left = [file for file in manifest.files if file.file not in names]
    manifest = replace(manifest, files=(*left, entry))
    write_beside(folder / manifests.NAME, manifests.encode(manifest))
    place_beside(folder / manifests.NAME)
    sync_folder(folder)


def _manifest(folder: Path) -> Manifest | None:
    """The sound manifest of this folder, if it has one."""
    try:
        return manifests.decode((folder / manifests.NAME).read_bytes())
    except (OSError, BadPayload):
        return None
