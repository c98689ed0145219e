"""Whether two tensors hold the same bytes, looked at piece by piece."""

from collections.abc import Iterable, Iterator

from gradwatch.checkpoints.access import Reading, close_all
from gradwatch.checkpoints.blocks import blocks
from gradwatch.checkpoints.index import Index, Tensor


def same_bytes(index: Index, first: Tensor, second: Tensor) -> bool:
    """Bit by bit; tensors in several pieces must be cut alike to count as equal."""
    if len(first.pieces) != len(second.pieces) or first.element is not second.element:
        return False
    here, there = Reading(), Reading()
    try:
        for a, b in zip(first.pieces, second.pieces, strict=True):
            if a.shape != b.shape or a.start != b.start:
                return False
            left = blocks(here, index.files[a.file], a, first.element, 0, a.lines)
            right = blocks(there, index.files[b.file], b, second.element, 0, b.lines)
            if any(x.bits.tobytes() != y.bits.tobytes() for x, y in zip(left, right, strict=True)):
                return False
    finally:
        close_all()
    return True


def equal_rows(
    index: Index, tensor: Tensor, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Those of the pairs of rows that are equal bit by bit; none where rows do not lie open."""
    here, there = Reading(), Reading()
    try:
        for a, b in pairs:
            left, right = _row(index, tensor, a, here), _row(index, tensor, b, there)
            if left is not None and left == right:
                yield a, b
    finally:
        close_all()


def _row(index: Index, tensor: Tensor, number: int, access: Reading) -> bytes | None:
    for piece in tensor.pieces:
        inner = number - piece.start[0]
        if 0 <= inner < piece.lines and piece.contiguous and not piece.packed:
            size = piece.line * tensor.element.size
            return access.view(index.files[piece.file], piece.offset + inner * size, size).tobytes()
    return None
