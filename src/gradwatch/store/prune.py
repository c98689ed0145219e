"""Pruning finished runs: the oldest full rows go, the manifest says so, rollups stay."""

import contextlib
from dataclasses import replace
from pathlib import Path

from gradwatch.store import manifest as manifests
from gradwatch.store.format import BadPayload
from gradwatch.store.journal import place_beside, sync_folder, write_beside
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.retention import FULL_ROWS, Retention, due, removal
from gradwatch.store.runs import writer_folders
from gradwatch.store.sealer import events_file


def prune(run: Path, keep: Retention, *, delete: bool = False) -> list[str]:
    """The files of a run that `keep` leaves no room for, by path within it; with `delete` they go.

    Only folders whose writer ended in good order are looked at: the others may be growing. Each
    has its equal part of the bytes.
    """
    folders = [folder.path for folder in writer_folders(run)]
    if keep.bytes is not None:
        keep = replace(keep, bytes=keep.bytes // max(1, len(folders)))
    gone: list[str] = []
    for folder in folders:
        manifest = _finished(folder)
        if manifest:
            files = _due(folder, manifest, keep)
            if files and delete:
                _remove(folder, manifest, files)
            gone += [f"{folder.name}/{file.file}" for file in files]
    return gone


def _finished(folder: Path) -> Manifest | None:
    with contextlib.suppress(OSError, BadPayload):
        manifest = manifests.decode((folder / manifests.NAME).read_bytes())
        return manifest if manifest.closed else None
    return None


def _due(folder: Path, manifest: Manifest, keep: Retention) -> list[SealedFile]:
    rows: dict[int, list[SealedFile]] = {}
    for file in manifest.files:
        if file.kind in FULL_ROWS:
            rows.setdefault(file.number, []).append(file)
    return due(folder, rows, sum(file.bytes for file in manifest.files), keep)


def _remove(folder: Path, manifest: Manifest, gone: list[SealedFile]) -> None:
    """First the event, then the manifest without the files, then they go."""
    number = 1 + max(file.number for file in manifest.files)
    raw, entry = events_file(number, [removal(gone)])
    (folder / entry.file).parent.mkdir(exist_ok=True)
    _replace(folder / entry.file, raw)
    kept = (file for file in manifest.files if file not in gone)
    _replace(folder / manifests.NAME, manifests.encode(replace(manifest, files=(*kept, entry))))
    for file in gone:
        (folder / file.file).unlink(missing_ok=True)


def _replace(path: Path, data: memoryview | bytes) -> None:
    write_beside(path, data)
    place_beside(path)
    sync_folder(path.parent)
