"""The tensors of a small checkpoint as arrays, for analyses that need the elements themselves."""

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.access import Reading, close_all
from gradwatch.checkpoints.blocks import blocks
from gradwatch.checkpoints.elements import as_floats
from gradwatch.checkpoints.index import Index, Tensor
from gradwatch.checkpoints.limits import ALONE_BYTES


def arrays_of(index: Index) -> dict[str, NDArray[np.floating]] | None:
    """By name; None for checkpoints that are too large to be held, or lie in pieces."""
    if index.reach > ALONE_BYTES or any(len(tensor.pieces) != 1 for tensor in index.tensors):
        return None
    try:
        return {tensor.name: _array(index, tensor) for tensor in index.tensors}
    finally:
        close_all()


def _array(index: Index, tensor: Tensor) -> NDArray[np.floating]:
    (piece,) = tensor.pieces
    file = index.files[piece.file]
    found = [
        np.array(as_floats(block.bits, tensor.element))
        for block in blocks(Reading(), file, piece, tensor.element, 0, piece.lines)
    ]
    flat = np.concatenate(found) if found else np.empty(0, np.float32)
    return flat.reshape(tensor.shape)
