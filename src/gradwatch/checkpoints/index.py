"""What a checkpoint holds and where its bytes are, before any of them is looked at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
class Shard:
    """A box of one tensor: where its bytes lie, its shape, and where in the tensor it begins."""

    file: int
    offset: int
    """In bytes, of the shard's first element; of the member's data where it is deflated."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    start: tuple[int, ...]
    packed: int = 0
    """Bytes of the deflated member that holds the shard; 0 where the bytes lie open."""
    skip: int = 0
    """Bytes to pass over after inflating: a `.npy` header."""
    crc: int = 0
    """Of the inflated member, header included."""

    @property
    def count(self) -> int:
        """Elements of the shard, gaps between them not counted; one that is shown often, often."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements between the first and the last one, both included."""
        if not self.count:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def rows(self) -> int:
        """Size of dimension 0; a vector has as many rows as elements, a number one."""
        return self.shape[0] if self.shape else 1

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])

    @property
    def first_row(self) -> int:
        """Which row of the tensor is the first one here."""
        return self.start[0] if self.start else 0

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie in the file in their order, without gaps."""
        return self.strides == row_major(self.shape)

    @property
    def expanded(self) -> bool:
        """Whether elements are shown several times: `x.expand(…)`, of which one row is stored."""
        return any(n > 1 and not s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def row_access(self) -> bool:
        """Whether any row can be read by itself."""
        return self.contiguous and not self.packed

    def some_rows(self, first: int, last: int, element_size: int) -> "Shard":
        """Rows `first` to `last` (excluded) as a shard of their own."""
        if (first, last) == (0, self.rows):
            return self
        return replace(
            self,
            offset=self.offset + first * self.strides[0] * element_size,
            shape=(last - first, *self.shape[1:]),
            start=(self.start[0] + first, *self.start[1:]),
        )


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    element: Element
    shards: tuple[Shard, ...]
    aliases: tuple[str, ...] = ()
    """Other names of the same bytes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its own and those of the tensors that it is tied to."""
        return self.name, *self.aliases

    @property
    def count(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of the elements in memory, whatever they take in the file."""
        return self.count * self.element.size

    @property
    def reach(self) -> int:
        """Bytes to read or to look at: gaps inside views too, and what is shown several times."""
        return sum(max(s.extent, s.count) for s in self.shards) * self.element.size

    @property
    def layer(self) -> str:
        """The module that owns it, by its name."""
        return owner_of(self.name)

    @property
    def role(self) -> str:
        """The last word of the name: weight, bias, running_mean …"""
        return self.name.rpartition(".")[2]

    def whole_rows(self, shard: Shard) -> bool:
        """Whether the shard's rows are as long as the tensor's."""
        return shard.shape[1:] == self.shape[1:]


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
    tensors: tuple[TensorEntry, ...]
    checksums: tuple[Checksum, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → reason, for tensors (or groups of them) that are not examined."""
    foreign: tuple[str, ...] = ()
    """What a pickled checkpoint refers to beside tensors; never imported, never called."""
    notes: tuple[str, ...] = ()
    oversized: tuple[str, ...] = ()
    """Those left out because they claim far more than the files hold."""

    @property
    def bytes(self) -> int:
        """Size of all tensors in memory."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def reach(self) -> int:
        """Bytes that must be read or looked at."""
        return sum(tensor.reach for tensor in self.tensors)


def owner_of(name: str) -> str:
    """The layer a tensor belongs to, by the name alone; at the top of the model, the tensor."""
    return name.rpartition(".")[0] or name


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def to_rows(item: Any) -> list[Any]:
    """The fields of any class here, for `json.dumps(index, default=to_rows)`."""
    return [getattr(item, field.name) for field in fields(item)]


def from_rows(rows: Any) -> Index:
    """An index from what its rows were after a way through JSON."""
    path, kind, files, tensors, checksums, *rest = _tuples(rows)
    return Index(
        path,
        kind,
        tuple(FileId(*row) for row in files),
        tuple(
            TensorEntry(name, shape, Element(element), tuple(Shard(*s) for s in shards), aliases)
            for name, shape, element, shards, aliases in tensors
        ),
        tuple(Checksum(*row) for row in checksums),
        *rest,
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
