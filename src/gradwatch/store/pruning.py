"""Retention after the fact: the oldest full rows of a finished run go; rollups always stay."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradwatch.errors import GradwatchError
from gradwatch.store import manifest as manifests
from gradwatch.store.format import BadPayload
from gradwatch.store.journal import sync_folder
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.places import Place
from gradwatch.store.retention import FULL_ROWS, Retention, due, removal
from gradwatch.store.runs import SEALED, writer_folders
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
        there = Place.of(folder).files()  # nothing beyond a link
        for file in manifest.files:
            if file.kind in FULL_ROWS and file.file in there and SEALED.fullmatch(file.file):
                rows.setdefault(file.number, []).append(file)
        total = sum(file.bytes for file in manifest.files)
        age = {number: _age(folder / files[0].file) for number, files in rows.items()}
        if files := due(rows, total, keep, age.__getitem__):
            gone[folder] = files
    return gone


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def prune(gone: Mapping[Path, Sequence[SealedFile]]) -> None:
    """Remove what `prunable` found: an event says so, then no manifest names it, then it goes."""
    for folder, files in gone.items():
        manifest = _manifest(folder)
        if manifest is None:
            raise GradwatchError(
                f"{str(folder)!r} was changed meanwhile; nothing of it was removed."
            )
        _without(folder, manifest, files)
        for file in files:
            with contextlib.suppress(OSError):  # what stays is not read: the manifest says so
                (folder / file.file).unlink()


def _without(folder: Path, manifest: Manifest, files: Sequence[SealedFile]) -> None:
    numbers = [last for _, last, _, _ in manifest.journals] + [f.number for f in manifest.files]
    raw, entry = events_file(max(numbers) + 1, [removal(files)])
    place = Place.of(folder)
    place.put(entry.file, bytes(raw))
    sync_folder((folder / entry.file).parent)
    names = {file.file for file in files}
    left = [file for file in manifest.files if file.file not in names]
    manifest = replace(manifest, files=(*left, entry))
    place.put(manifests.NAME, manifests.encode(manifest))
    sync_folder(folder)


def _manifest(folder: Path) -> Manifest | None:
    """The sound manifest of this folder, if it has one."""
    file = Place.of(folder).open(manifests.NAME)
    try:
        return (
            manifests.decode(file.read(min(file.size, manifests.BYTES_LIMIT), 0)) if file else None
        )
    except BadPayload:
        return None
