"""What is found out about a stretch of a tensor in one pass over its blocks."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.access import Access
from gradwatch.checkpoints.blocks import Block, blocks, typed
from gradwatch.checkpoints.elements import Element, as_floats, measurable
from gradwatch.checkpoints.index import FileId, Piece
from gradwatch.checkpoints.limits import ROWS_LOOKED_AT
from gradwatch.checkpoints.structure import Structure, StructurePart
from gradwatch.kernel import Batch, hashes, measure, merge, row_spread

LOWEST, HIGHEST = -1074, 1023
"""Exponents of float64, hence of everything."""


@dataclass(frozen=True, slots=True)
class Item:
    """Lines `first` to `last` of one piece of one tensor; small enough to travel."""

    tensor: int
    file: FileId
    element: Element
    whole_shape: tuple[int, ...]
    piece: Piece
    first: int
    last: int
    full: bool
    """Histograms, rows and columns too, not only moments."""
    marked: bool = False
    """With the 64-bit mark of its bits."""

    @property
    def bytes(self) -> int:
        return (self.last - self.first) * self.piece.line * self.element.size

    @property
    def whole_rows(self) -> bool:
        return self.piece.shape[1:] == self.whole_shape[1:]


@dataclass(slots=True)
class Part:
    """What was found in one item."""

    tensor: int
    moments: list[NDArray[np.void]] = field(default_factory=list)
    bins: NDArray[np.uint64] | None = None
    """[negative | positive, exponent + 1074]"""
    mark: int = 0
    first_row: int = 0
    touched: NDArray[np.uint8] | None = None
    structure: StructurePart | None = None
    first_bad: int | None = None
    """Flat index in the whole tensor of the first NaN or Inf."""
    spread: float = float("nan")


def measure_item(item: Item, access: Access) -> Part:
    """One pass over the item's blocks."""
    part = Part(item.tensor, first_row=item.piece.start[0] + item.first if item.piece.start else 0)
    matrix = len(item.whole_shape) >= 2
    if matrix and item.last - item.first <= ROWS_LOOKED_AT:
        part.touched = np.zeros(item.last - item.first, np.uint8)
    structure = None
    if item.full and matrix and item.element.floating and item.whole_rows:
        structure = Structure.of(item.whole_shape, item.element)
    for block in blocks(access, item.file, item.piece, item.element, item.first, item.last):
        _look(part, item, block, structure)
    if structure is not None:
        part.structure = structure.part()
    if part.moments:
        part.moments = [np.array([merge(np.concatenate(part.moments))])]
    if item.full and item.first == 0 and matrix:
        part.spread = _spread(item, access)
    return part


def _look(part: Part, item: Item, block: Block, structure: Structure | None) -> None:
    values, dtype = measurable(block.bits, item.element)
    matrix = len(item.whole_shape) >= 2
    pointers, rows = [values.ctypes.data], [block.lines if matrix else 0]
    batch = Batch.of(pointers, [values.size], [dtype], rows)
    touched = None
    if part.touched is not None:
        begin = block.first_line - item.first
        touched = [part.touched[begin : begin + block.lines]]
    if item.full:
        records, (bins,), _ = measure(batch, bins=True, touched=touched)
        if part.bins is None:
            part.bins = np.zeros((2, HIGHEST - LOWEST + 1), np.uint64)
        begin = bins.first_exponent - LOWEST
        part.bins[0, begin : begin + len(bins.negative)] += bins.negative
        part.bins[1, begin : begin + len(bins.positive)] += bins.positive
    else:
        records = measure(batch, touched=touched).records
    part.moments.append(records)
    if item.marked:
        part.mark = (part.mark + _mark(item, block, values, int(dtype))) % (1 << 64)
    bad = int(records["nan"][0] + records["pos_inf"][0] + records["neg_inf"][0])
    if bad and part.first_bad is None:
        place = int(np.flatnonzero(~np.isfinite(as_floats(block.bits, item.element)))[0])
        part.first_bad = _flat(item, block, place)
    if structure is not None and block.bits.size == block.lines * item.piece.line:
        structure.look(block, item.piece.start[0])


def _flat(item: Item, block: Block, place: int) -> int:
    """From a place in a block to the flat index in the whole tensor."""
    if not item.whole_shape:
        return 0
    inner = (block.first_line * item.piece.line) + block.first_column + place
    local = np.unravel_index(inner, item.piece.shape)
    at = tuple(int(i) + s for i, s in zip(local, item.piece.start, strict=True))
    return int(np.ravel_multi_index(at, item.whole_shape))


def _mark(item: Item, block: Block, values: NDArray[np.generic], dtype: int) -> int:
    """The mark of a block, from runs of elements that lie side by side in the whole tensor."""
    first = _flat(item, block, 0)
    if item.whole_rows:
        offsets, run = np.array([first], np.int64), values.size
    else:
        offsets, run = _runs(item, block)
    address = values.ctypes.data + np.arange(len(offsets)) * run * values.itemsize
    batch = Batch.of(address.tolist(), [run] * len(offsets), [dtype] * len(offsets))
    return int(hashes(batch, offsets).sum(dtype=np.uint64))


def _runs(item: Item, block: Block) -> tuple[NDArray[np.int64], int]:
    """Flat offsets of the runs of a block of a piece that is narrower than the tensor."""
    shape = (block.lines, *item.piece.shape[1:])
    run, depth = 1, len(shape)
    while depth and (depth == len(shape) or shape[depth] == item.whole_shape[depth]):
        depth -= 1
        run *= shape[depth]
    at = np.indices(shape[:depth]).reshape(depth, -1)
    starts = [
        (block.first_line if axis == 0 else 0) + item.piece.start[axis]
        for axis in range(len(shape))
    ]
    coordinates = [
        at[axis] + starts[axis] if axis < depth else np.full(at.shape[1], starts[axis])
        for axis in range(len(shape))
    ]
    return np.ravel_multi_index(coordinates, item.whole_shape).astype(np.int64), run


def _spread(item: Item, access: Access) -> float:
    """How far a few fixed rows lie from row 0; those rows are all the kernel would look at."""
    piece, rows = item.piece, item.piece.lines
    if piece.shape != item.whole_shape or piece.packed or not piece.contiguous or rows < 2:
        return float("nan")
    if not item.element.floating or piece.line * 17 > 1 << 24:
        return float("nan")
    others = min(16, rows - 1)
    chosen = [0, *(1 + k * (rows - 1) // others for k in range(others))]
    size = piece.line * item.element.size
    found = [
        typed(access.view(item.file, piece.offset + row * size, size), item.element).copy()
        for row in chosen
    ]
    values, dtype = measurable(np.concatenate(found), item.element)
    batch = Batch.of([values.ctypes.data], [values.size], [dtype], [len(chosen)])
    return float(row_spread(batch)[0])
