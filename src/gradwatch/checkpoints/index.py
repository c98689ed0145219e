"""What a checkpoint holds and where its bytes are, before any of them is looked at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwatch.checkpoints.elements import Element


@dataclass(frozen=True, slots=True)
class FileId:
    """A file as it was when its header was read; another size or time means it changed."""

    path: str
    size: int
    modified: int
    """Nanoseconds."""
    inode: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of one tensor: its bytes in a file, its shape, and where in the whole it begins."""

    file: int
    offset: int
    """In bytes, of the piece's first element; of the member's data where it is deflated."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    start: tuple[int, ...]
    packed: int = 0
    """Bytes of the deflated member that holds the piece; 0 where the bytes lie open."""
    skip: int = 0
    """Bytes to pass over after inflating: a `.npy` header."""
    crc: int = 0
    """Of the inflated member, header included."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements between the first and the last one, both included."""
        if not self.count:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def lines(self) -> int:
        """Rows (dimension 0); a vector has as many lines as elements, a number one."""
        return self.shape[0] if self.shape else 1

    @property
    def line(self) -> int:
        """Elements of one line."""
        return math.prod(self.shape[1:])

    @property
    def contiguous(self) -> bool:
        return self.strides == row_major(self.shape)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    element: Element
    pieces: tuple[Piece, ...]
    aliases: tuple[str, ...] = ()
    """Other names of the same bytes."""
    note: str = ""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * self.element.size


@dataclass(frozen=True, slots=True)
class Checksum:
    """Bytes of a file and the CRC-32 they must have."""

    file: int
    offset: int
    length: int
    crc: int
    name: str


@dataclass(frozen=True)
class Index:
    """A whole checkpoint: files, tensors, and what was left out and why."""

    path: str
    format: str
    files: tuple[FileId, ...]
    tensors: tuple[Tensor, ...]
    checksums: tuple[Checksum, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for tensors (or groups of them) that are not examined."""
    foreign: tuple[str, ...] = ()
    """What a pickled checkpoint refers to beside tensors; never imported, never called."""
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def reach(self) -> int:
        """Bytes that must be read, gaps inside views included."""
        return sum(
            max(piece.packed, piece.extent * tensor.element.size)
            for tensor in self.tensors
            for piece in tensor.pieces
        )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def to_dict(index: Index) -> dict[str, Any]:
    """Plain JSON: what the reading child hands to its parent."""
    return {
        "path": index.path,
        "format": index.format,
        "files": [[f.path, f.size, f.modified, f.inode] for f in index.files],
        "tensors": [
            [
                t.name,
                t.shape,
                t.element,
                [
                    [p.file, p.offset, p.shape, p.strides, p.start, p.packed, p.skip, p.crc]
                    for p in t.pieces
                ],
                t.aliases,
                t.note,
            ]
            for t in index.tensors
        ],
        "checksums": [[c.file, c.offset, c.length, c.crc, c.name] for c in index.checksums],
        "left_out": dict(index.left_out),
        "foreign": index.foreign,
        "notes": index.notes,
    }


def from_dict(data: Mapping[str, Any]) -> Index:
    """Back from `to_dict`."""
    return Index(
        data["path"],
        data["format"],
        tuple(FileId(*item) for item in data["files"]),
        tuple(
            Tensor(
                name,
                tuple(shape),
                Element(element),
                tuple(
                    Piece(p[0], p[1], tuple(p[2]), tuple(p[3]), tuple(p[4]), p[5], p[6], p[7])
                    for p in pieces
                ),
                tuple(aliases),
                note,
            )
            for name, shape, element, pieces, aliases, note in data["tensors"]
        ),
        tuple(Checksum(*item) for item in data["checksums"]),
        data["left_out"],
        tuple(data["foreign"]),
        tuple(data["notes"]),
    )
