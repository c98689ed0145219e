"""The manifest of a writer's folder: which sealed files there are, and how each must look.

It is replaced as a whole, after the files it names are in place. What it does not name is not
there for a reader, and what it names and is missing, shorter or changed is damage.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.jsonio import parsed, unspelled
from gradwatch.store.format import FORMAT, BadPayload, to_json

NAME = "manifest.json"
BYTES_LIMIT = 256 << 20
"""More than the manifest of 10^6 files; a larger one was made up."""
STEPS_LIMIT = 1 << 27
"""Numbers that the stretches of one file may stand for."""
_STRETCHES_LIMIT = 1 << 12
_FAR = 1 << 62
_CHECK = b'"crc32": "'

Stretch = tuple[int, int, int]
"""First number, distance, how many: (10, 2, 3) is 10, 12, 14."""
Stretches = tuple[Stretch, ...]


class Checksums(Sequence[int]):
    """Like a tuple of 32-bit numbers, in their bytes: a long run has millions of them."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw) // 4

    def __getitem__(self, at: Any) -> Any:
        return struct.unpack(f">{len(self)}I", self._raw)[at]

    def __eq__(self, other: object) -> bool:
        return bool(self[:] == (other[:] if isinstance(other, Checksums) else other))

    def __hash__(self) -> int:
        return hash(self[:])


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One sealed file: its path within the writer's folder, and what is in it."""

    file: str
    bytes: int
    rows: int
    steps: Stretches
    """The distinct steps it has rows of, ascending."""
    footer: int
    """Bytes at its end that describe the columns, with length and magic; 0 if it is no Parquet."""
    checksums: Sequence[int]
    """CRC-32 of the footer and of each column's bytes; of the whole where it is no Parquet."""

    @property
    def kind(self) -> str:
        """`rows`, `sketches`, `histograms`, `rollups`, `scalars`, `events`; or the file's name."""
        return self.file.partition("/")[0]

    @property
    def group(self) -> str:
        """The family (`grad`), of rollups with the rows of a bucket (`grad-10`); "" without one."""
        parts = self.file.split("/")
        return parts[1] if len(parts) == 3 else ""

    @property
    def number(self) -> int:
        """That of the journal it was sealed from; of a rollup of several the last one's."""
        digits = self.file.rpartition("/")[2].partition(".")[0]
        return int(digits) if digits.isdigit() else 0

    @property
    def first_step(self) -> int:
        """0 where the file has no steps."""
        return self.steps[0][0] if self.steps else 0

    @property
    def last_step(self) -> int:
        """0 where the file has no steps."""
        first, distance, count = self.steps[-1] if self.steps else (0, 0, 1)
        return first + distance * (count - 1)

    def line(self) -> str:
        """As it stands in the manifest, one line per file."""
        return json.dumps(
            {
                "file": self.file,
                "bytes": self.bytes,
                "rows": self.rows,
                "first_step": self.first_step,
                "last_step": self.last_step,
                "steps": self.steps,
                "footer": self.footer,
                "checksums": "".join(f"{checksum:08x}" for checksum in self.checksums),
            }
        )


@dataclass(frozen=True)
class Manifest:
    """What one writer has sealed so far."""

    rank: int = 0
    attempt: int = 0
    closed: bool = False
    """Whether the writer ended in good order and everything it wrote is sealed."""
    journals: tuple[tuple[int, int, int, int], ...] = ()
    """Sealed journals: first and last number of each stretch, first and last record in it."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The statistics of a row by family."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The writer's notes, later ones over earlier ones."""
    files: tuple[SealedFile, ...] = ()

    @cached_property
    def named(self) -> frozenset[SealedFile]:
        """The files, to ask whether one is among them."""
        return frozenset(self.files)

    def sealed(self, journal: int) -> bool:
        """Whether the content of this journal is in sealed files."""
        return any(first <= journal <= last for first, last, _, _ in self.journals)


def encode(manifest: Manifest, lines: Sequence[str] | None = None) -> bytes:
    """JSON with a checksum of everything before it as its last member.

    A writer of thousands of files keeps their lines and hands them in: making them anew at each
    seal would hold the interpreter for too long.
    """
    head = {
        "format": FORMAT,
        "rank": manifest.rank,
        "attempt": manifest.attempt,
        "closed": manifest.closed,
        "journals": manifest.journals,
        "columns": dict(manifest.columns),
        "info": dict(manifest.info),
    }
    files = [file.line() for file in manifest.files] if lines is None else lines
    body = to_json(head)[:-1] + b', "files": [\n' + ",\n".join(files).encode("ascii")
    raw = body + b"\n],\n"
    return raw + _CHECK + b'%08x"}\n' % zlib.crc32(raw)


def decode(raw: bytes) -> Manifest:
    """The manifest of these bytes; BadPayload where they are cut, changed or make no sense."""
    body, check, tail = raw.rpartition(_CHECK)
    if not check or tail != b'%08x"}\n' % zlib.crc32(body):
        raise BadPayload("its checksum does not hold")
    if len(raw) > BYTES_LIMIT:
        raise BadPayload("longer than any manifest is")
    try:
        data = parsed(raw)
        if len(data["journals"]) > _STRETCHES_LIMIT:
            raise ValueError("more stretches of journals than any writer leaves")
        return Manifest(
            _whole(data["rank"]),
            _whole(data["attempt"]),
            data["closed"] is True,
            tuple(_four(item) for item in data["journals"]),
            {
                str(family): [str(name) for name in names]
                for family, names in data["columns"].items()
            },
            unspelled(dict(data["info"])),
            tuple(_file(item) for item in data["files"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadPayload(f"{type(error).__name__}: {error}") from None


def _file(data: Mapping[str, Any]) -> SealedFile:
    raw = bytes.fromhex(data["checksums"])
    file, steps = str(data["file"]), stretches(data["steps"])
    parts = file.split("/")
    if len(parts) > 3 or any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise ValueError(f"a file outside of its folder: {file[:80]!r}")
    rows = _whole(data["rows"])
    # A short file of made-up steps would have tables of any size made for it.
    if sum(count for _, _, count in steps) > rows * (1000 if parts[0] == "rollups" else 1):
        raise ValueError(f"more steps than rows: {file[:80]!r}")
    return SealedFile(
        file,
        _whole(data["bytes"]),
        rows,
        steps,
        _whole(data["footer"]),
        Checksums(raw[: len(raw) // 4 * 4]),
    )


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"expected a number of at least 0, got {str(value)[:40]}")
    return value


def _four(item: Any) -> tuple[int, int, int, int]:
    first, last, first_record, last_record = (_whole(number) for number in item)
    return first, last, first_record, last_record


# -- numbers that mostly follow each other ---------------------------------------------------------


def as_stretches(values: NDArray[Any]) -> Stretches:
    """Numbers in their order as stretches of equal distance: a few for the steps of a family."""
    numbers = np.asarray(values, np.int64)
    if not len(numbers):
        return ()
    gaps = np.diff(numbers)
    # A stretch may end where the distance changes; the gap behind its last number is nobody's.
    turns = [*(np.flatnonzero(np.diff(gaps)) + 1).tolist(), len(gaps)]
    out: list[Stretch] = []
    at = turn = 0
    while at < len(numbers):
        while turn < len(turns) and turns[turn] <= at:
            turn += 1
        end = turns[turn] if turn < len(turns) else at
        distance = int(gaps[at]) if at < len(gaps) else 0
        out.append((int(numbers[at]), distance, end - at + 1))
        at = end + 1
    return tuple(out)


def stretches(data: Any) -> Stretches:
    """Stretches as a file states them; ValueError where they are none or stand for too much."""
    out: list[Stretch] = []
    total = 0
    for first, distance, count in data:
        if not type(first) is type(distance) is type(count) is int or count < 1:
            raise ValueError(f"expected [first, distance, count], got {str(first)[:40]}, …")
        if not (-_FAR < first < _FAR and -_FAR < first + distance * count < _FAR):
            raise ValueError("a number that does not fit 63 bits")
        total += count
        out.append((first, distance, count))
    if total > STEPS_LIMIT:
        raise ValueError(f"{total} numbers, more than any file has")
    return tuple(out)


def numbers_of(given: Stretches) -> NDArray[np.int64]:
    """The numbers that stretches stand for."""
    parts = [first + distance * np.arange(count) for first, distance, count in given]
    return np.concatenate([*parts, np.empty(0, np.int64)])
