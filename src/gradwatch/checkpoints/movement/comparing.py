"""What moved between two tensors of the same shape, in one pass over both."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.access import Access
from gradwatch.checkpoints.blocks import Block, blocks
from gradwatch.checkpoints.elements import Element, as_floats
from gradwatch.checkpoints.index import FileId, Index, Piece, Tensor
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.errors import GradwatchError


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two tensors."""

    file: FileId
    piece: Piece
    element: Element


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair to compare: small enough to travel."""

    number: int
    before: Side
    after: Side

    @property
    def bytes(self) -> int:
        return self.before.piece.count * (self.before.element.size + self.after.element.size)

    @property
    def files(self) -> frozenset[FileId]:
        return frozenset((self.before.file, self.after.file))


@dataclass(slots=True)
class Sums:
    """What was added up; elements that are not finite on either side are left out and counted."""

    count: int = 0
    bad: int = 0
    changed: int = 0
    flipped: int = 0
    zeros_before: int = 0
    zeros_after: int = 0
    before: float = 0.0
    after: float = 0.0
    product: float = 0.0
    difference: float = 0.0

    def add(self, x: NDArray[np.floating], y: NDArray[np.floating]) -> None:
        """One stretch of both."""
        self.count += x.size
        self.changed += int(np.count_nonzero((x != y) & ~(np.isnan(x) & np.isnan(y))))
        self.zeros_before += int(np.count_nonzero(x == 0))
        self.zeros_after += int(np.count_nonzero(y == 0))
        self.flipped += int(np.count_nonzero(np.sign(x) * np.sign(y) < 0))
        a, b = x.astype(np.float64), y.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            self.bad += int(np.count_nonzero(~finite))
            a, b = a[finite], b[finite]
        self.before += float(np.vdot(a, a))
        self.after += float(np.vdot(b, b))
        self.product += float(np.vdot(a, b))
        moved = b - a
        self.difference += float(np.vdot(moved, moved))

    def __iadd__(self, other: "Sums") -> "Sums":
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def relative_change(self) -> float:
        if self.before > 0:
            return math.sqrt(self.difference / self.before)
        return math.inf if self.difference > 0 else 0.0

    @property
    def cosine(self) -> float:
        size = math.sqrt(self.before) * math.sqrt(self.after)
        return max(-1.0, min(1.0, self.product / size)) if size > 0 else math.nan


def side(index: Index, tensor: Tensor, piece: Piece) -> Side:
    return Side(index.files[piece.file], piece, tensor.element)


def aligned(first: Tensor, second: Tensor) -> list[tuple[Piece, Piece]] | None:
    """The pieces of two tensors of one shape, side by side; cut along rows where they differ."""
    if len(first.pieces) == len(second.pieces) == 1:
        return [(first.pieces[0], second.pieces[0])]
    boxes = {(piece.start, piece.shape): piece for piece in second.pieces}
    if {(piece.start, piece.shape) for piece in first.pieces} == set(boxes):
        return [(piece, boxes[piece.start, piece.shape]) for piece in first.pieces]
    if not all(_rowwise(t, piece) for t in (first, second) for piece in t.pieces):
        return None
    edges = sorted(
        {
            edge
            for piece in (*first.pieces, *second.pieces)
            for edge in (piece.start[0], piece.start[0] + piece.lines)
        }
    )
    return [(_rows(first, begin, end), _rows(second, begin, end)) for begin, end in pairwise(edges)]


def _rowwise(tensor: Tensor, piece: Piece) -> bool:
    whole = bool(piece.shape) and piece.shape[1:] == tensor.shape[1:] and piece.lines > 0
    return whole and piece.contiguous and not piece.packed


def _rows(tensor: Tensor, begin: int, end: int) -> Piece:
    """Some rows as a piece of their own; the pieces cover the tensor, so one has them all."""
    for piece in tensor.pieces:
        first = piece.start[0]
        if first <= begin and end <= first + piece.lines:
            skipped = (begin - first) * piece.line * tensor.element.size
            return replace(
                piece,
                offset=piece.offset + skipped,
                shape=(end - begin, *piece.shape[1:]),
                start=(begin, *piece.start[1:]),
            )
    raise GradwatchError(f"The parts of {tensor.name[:80]!r} do not cover it.")


def compare(task: Comparison, first: Access, second: Access) -> Sums:
    """One pass over both; the two accesses must not share a buffer."""
    sums = Sums()
    for a, b in zip(_blocks(task.before, first), _blocks(task.after, second), strict=True):
        x, y = as_floats(a.bits, task.before.element), as_floats(b.bits, task.after.element)
        for begin in range(0, x.size, BLOCK // 4):
            sums.add(x[begin : begin + BLOCK // 4], y[begin : begin + BLOCK // 4])
    return sums


def _blocks(side: Side, access: Access) -> Iterator[Block]:
    return blocks(access, side.file, side.piece, side.element, 0, side.piece.lines)
