"""A piece of a tensor, cut into blocks that are the same whoever reads them and however."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.access import Access, inflated
from gradwatch.checkpoints.elements import Element
from gradwatch.checkpoints.index import FileId, Piece
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.errors import GradwatchError


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines, or a part of one line, as flat contiguous elements."""

    first_line: int
    lines: int
    first_column: int
    bits: NDArray[np.generic]


def blocks(
    access: Access, file: FileId, piece: Piece, element: Element, first: int, last: int
) -> Iterator[Block]:
    """The lines `first` to `last` (excluded) of the piece."""
    if not piece.count:
        return
    if piece.packed:
        yield from _inflated(file, piece, element)
    elif piece.contiguous:
        yield from _contiguous(access, file, piece, element, first, last)
    else:
        yield from _strided(access, file, piece, element, first, last)


def _cuts(piece: Piece, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """(first line, lines, first column, columns) of every block."""
    if piece.line > BLOCK:
        for line in range(first, last):
            for column in range(0, piece.line, BLOCK):
                yield line, 1, column, min(BLOCK, piece.line - column)
        return
    step = max(1, BLOCK // piece.line)
    for line in range(first, last, step):
        yield line, min(step, last - line), 0, piece.line


def _contiguous(
    access: Access, file: FileId, piece: Piece, element: Element, first: int, last: int
) -> Iterator[Block]:
    for line, lines, column, columns in _cuts(piece, first, last):
        offset = piece.offset + (line * piece.line + column) * element.size
        raw = access.view(file, offset, lines * columns * element.size)
        yield Block(line, lines, column, typed(raw, element))


def _strided(
    access: Access, file: FileId, piece: Piece, element: Element, first: int, last: int
) -> Iterator[Block]:
    """Views such as a transposed weight: gathered into row order block by block."""
    if piece.line > BLOCK:
        raise GradwatchError(
            f"{file.path} stores a tensor of shape {list(piece.shape)} in an order that cannot be "
            "read in pieces. Save it again after .contiguous()."
        )
    raw = typed(access.view(file, piece.offset, piece.extent * element.size), element)
    strides = tuple(stride * element.size for stride in piece.strides)
    whole = np.lib.stride_tricks.as_strided(raw, piece.shape, strides, writeable=False)
    for line, lines, column, _ in _cuts(piece, first, last):
        rows = whole[line : line + lines] if piece.shape else whole
        yield Block(line, lines, column, np.ascontiguousarray(rows).reshape(-1))


def _inflated(file: FileId, piece: Piece, element: Element) -> Iterator[Block]:
    cuts = list(_cuts(piece, 0, piece.lines))
    sizes = [lines * columns * element.size for _, lines, _, columns in cuts]
    for (line, lines, column, _), raw in zip(cuts, inflated(file, piece, sizes), strict=True):
        yield Block(line, lines, column, typed(raw, element))


def typed(raw: NDArray[np.uint8], element: Element) -> NDArray[np.generic]:
    """Bytes as elements; copied where they do not begin at a multiple of the element's size."""
    if raw.ctypes.data % element.size:
        raw = raw.copy()
    return raw.view(element.stored)
