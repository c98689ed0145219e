"""Copies of a run, finished or growing, to wherever a `Place` can be; repeated, only news go.

Sealed files go first, then the manifest that names them, then the journals in their order, and last
what the new manifest no longer names is removed: whoever reads the copy meanwhile finds it whole.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store import manifest as manifests
from gradwatch.store.chunks import ahead
from gradwatch.store.format import BadPayload, from_json
from gradwatch.store.journal import journal_number
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.parquet import FILE_LIMIT, RandomAccess
from gradwatch.store.places import Place
from gradwatch.store.runs import writer_folders
from gradwatch.text import plain

LOOKS = 50
"""How often to begin again where a growing run seals what was just going to be copied."""
REPLACED = ("subjects.parquet", "graph.json")
"""Sealed files of which a newer one takes the place; all others never change."""
PARTS = tuple(f"{file}.part" for file in REPLACED)
_SEALED = re.compile(
    r"((rows|sketches|histograms|rollups)/[^/]+|scalars|events)/[0-9]+\.parquet"
    r"|subjects\.parquet|graph\.json"
)


@dataclass
class Copied:
    """What a copy took."""

    files: int = 0
    bytes: int = 0
    lost: int = 0
    """Files that the manifest names and that are not in the run: it is damaged."""


def copy_run(
    source: Place,
    target: Place,
    *,
    force: bool = False,
    tick: Callable[[float], None] = lambda share: None,
) -> Copied:
    """Make `target` a copy of the run; what is in it already stays unless it changed.

    Other writers' folders in `target` are left alone: several machines may copy their parts of one
    run to one place. With `force`, the parts need not have the same `run.json`.
    """
    folders = writer_folders(source)
    if not folders:
        raise GradwatchError(
            f"Expected a run folder at {str(source)!r}, found none. `gradwatch runs` lists them."
        )
    document = _bytes(source, "run.json")
    _refuse(source, target, document, force)
    done = Copied()
    for number, folder in enumerate(folders, start=1):
        _FolderCopy(folder.path, target / folder.path.name, done).run()
        tick(number / len(folders))
    if document is not None and document != _bytes(target, "run.json"):
        target.put("run.json", document)
        done.files, done.bytes = done.files + 1, done.bytes + len(document)
    return done


def _refuse(source: Place, target: Place, document: bytes | None, force: bool) -> None:
    """Say what is in the way before anything is written."""
    here, there = Path(source.resolve()), Path(target.resolve())
    if here == there or here in there.parents:
        raise GradwatchError(
            f"Expected a place outside of the run, got {str(target)!r}.", Exit.USAGE
        )
    found = _bytes(target, "run.json")
    if found is None:
        if len(target.folders()) > len(writer_folders(target)):
            raise GradwatchError(
                f"Expected an empty or new folder, or a copy of this run, at {str(target)!r}, "
                f"found other folders. Name one for this run: {str(target / source.name)!r}.",
                Exit.USAGE,
            )
    elif not force and _id(found) != _id(document):
        raise GradwatchError(
            f"Expected a copy of this run at {str(target)!r}, found another run. Name another "
            "place, or add --force if both are parts of one run.",
            Exit.USAGE,
        )


class _FolderCopy:
    """One writer's folder and its copy."""

    def __init__(self, source: Place, target: Place, done: Copied) -> None:
        self.source, self.target, self.done = source, target, done
        self.there = target.files()
        self.raw = _bytes(target, manifests.NAME) if manifests.NAME in self.there else None

    def run(self) -> None:
        """Copy, beginning again where something was sealed meanwhile that was still to come."""
        for _ in range(LOOKS):
            # Listed before the manifest is read: what is sealed in between is named by that.
            found = self.source.files()
            raw = _bytes(self.source, manifests.NAME)
            manifest = _decoded(raw)
            # Without a sound manifest readers take what they find; so does the copy.
            sealed = {file: size for file, size in found.items() if _SEALED.fullmatch(file)}
            if manifest is not None:
                sealed = {entry.file: entry.bytes for entry in manifest.files}
            lost = self._put_sealed(sealed, raw, manifest)
            if lost is not None and self._put_journals(found, manifest):
                self._remove(manifest)
                self.done.lost += lost
                return
        raise GradwatchError(
            f"Expected to copy {str(self.source)!r}, which changes faster than that. Try again."
        )

    def _put_sealed(
        self, sealed: Mapping[str, int], raw: bytes | None, manifest: Manifest | None
    ) -> int | None:
        """Put the sealed files there, then their manifest; how many are lost.

        None where the manifest was replaced meanwhile: what it named may have been removed since.
        """
        missing = [
            file
            for file, size in sealed.items()
            if file not in REPLACED and self.there.get(file) != size
        ]
        lost = 0
        for file, size in zip(missing, ahead(self._send, missing), strict=True):
            if size is None:
                lost += 1
            else:
                self._count(file, size)
        newer: dict[str, bytes] = {}
        for file in REPLACED:
            if file not in sealed or (
                raw == self.raw
                and self.there.get(file) == sealed[file]
                and f"{file}.part" not in self.there
            ):
                continue
            data = self._fitting(file, manifest)
            if data is None:
                lost += 1
            elif file not in self.there:
                self._put(file, data)
            elif data != _bytes(self.target, file):
                newer[file] = data
                self._put(f"{file}.part", data)  # until the manifest that fits it is there
        if not self._still(raw):
            return None
        if raw is not None and raw != self.raw:
            self._put(manifests.NAME, raw)
            self.raw = raw
        for file, data in newer.items():
            self._put(file, data)
        return lost

    def _still(self, raw: bytes | None) -> bool:
        """Whether the source's manifest is the one that was read."""
        return raw == _bytes(self.source, manifests.NAME)

    def _send(self, file: str) -> int | None:
        """Copy a file; its bytes, or None where the source has none."""
        data = _bytes(self.source, file)
        if data is None:
            return None
        self.target.put(file, data)
        return len(data)

    def _fitting(self, file: str, manifest: Manifest | None) -> bytes | None:
        """The file, or the one beside that is going to replace it and fits the manifest already."""
        data = _bytes(self.source, file)
        for entry in manifest.files if manifest is not None else ():
            if entry.file == file and not _fits(data, entry):
                beside = _bytes(self.source, f"{file}.part")
                return beside if _fits(beside, entry) else data
        return data

    def _put_journals(self, found: Iterable[str], manifest: Manifest | None) -> bool:
        """Whether all of them could be put there, one after another: none may be left out."""
        numbers = {number: file for file in found if (number := journal_number(file)) is not None}
        for number, file in sorted(numbers.items()):
            if manifest is not None and manifest.sealed(number):
                continue
            handle = self.source.open(file)
            if handle is None:  # it was sealed meanwhile
                return False
            # Records are only ever appended: a journal of the same length is the same one.
            if handle.size != self.there.get(file):
                self._put(file, _whole(handle, file))
        return True

    def _remove(self, manifest: Manifest | None) -> None:
        """Away with journals that were sealed, and with what the source no longer keeps."""
        named = {entry.file for entry in manifest.files} if manifest else set(self.there)
        for file in self.there:
            journal = journal_number(file)
            if (
                (_SEALED.fullmatch(file) and file not in named)
                or (journal is not None and manifest is not None and manifest.sealed(journal))
                or file in PARTS
            ):
                self.target.remove(file)

    def _put(self, file: str, data: bytes) -> None:
        self.target.put(file, data)
        self._count(file, len(data))

    def _count(self, file: str, size: int) -> None:
        self.there[file] = size
        self.done.files += 1
        self.done.bytes += size


def _bytes(place: Place, file: str) -> bytes | None:
    handle = place.open(file)
    return None if handle is None else _whole(handle, file)


def _whole(handle: RandomAccess, file: str) -> bytes:
    """A sparse file may say that it is longer than any memory."""
    if handle.size > FILE_LIMIT:
        raise GradwatchError(
            f"Expected files of at most {FILE_LIMIT:,} bytes in a run, but {plain(file)} has "
            f"{handle.size:,}. The run is damaged or was made up; nothing more was copied."
        )
    return handle.read(handle.size, 0)


def _fits(data: bytes | None, entry: SealedFile) -> bool:
    """Whether these bytes are the ones a manifest speaks of, as far as their end can tell."""
    end = data[-entry.footer :] if data is not None else b""  # of a file without footer, all of it
    return data is not None and len(data) == entry.bytes and zlib.crc32(end) in entry.checksums[:1]


def _decoded(raw: bytes | None) -> Manifest | None:
    try:
        return None if raw is None else manifests.decode(raw)
    except BadPayload:
        return None


def _id(document: bytes | None) -> object:
    """The run's id; None where nothing sound says it."""
    try:
        content = from_json(document or b"")
    except BadPayload:
        return None
    return content.get("id") if isinstance(content, dict) else None
