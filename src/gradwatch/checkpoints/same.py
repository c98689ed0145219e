"""Whether two tensors hold the same bytes, looked at piece by piece."""

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
