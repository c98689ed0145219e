"""Tensors of the same size on one device, put together so that one operation serves them all.

A launch costs a device as much as some ten thousand elements, and most tensors of a network are
smaller than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.tracks import rows_lie_whole

LIMIT = 1 << 22
"""Elements worked on at once: the memory this takes, some 100 MB, is the training's."""


@dataclass(frozen=True)
class Alike:
    """One tensor per line of the matrix; a large one is alone in it, and the matrix a view."""

    indices: tuple[int, ...]
    matrix: Tensor
    rows: int
    """Of each tensor (dimension 0); 0 where it has only one dimension."""

    @property
    def pieces(self) -> list[Tensor]:
        """Stretches of all lines that are not too large to work on."""
        return pieces(self.matrix)


def pieces(matrix: Tensor, share: int = 1) -> list[Tensor]:
    """The columns of a matrix in stretches of at most LIMIT elements, or a share of that."""
    width = max(1, LIMIT // share // matrix.shape[0])
    if matrix.shape[1] <= width:
        return [matrix]
    return [matrix[:, start : start + width] for start in range(0, matrix.shape[1], width)]


def alike(tensors: Sequence[Tensor | None], apart: NDArray[np.int64] | None = None) -> list[Alike]:
    """All tensors that are there, by device, type and size; `apart` parts them further."""
    members: dict[tuple[int, int, object], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            rows = tensor.shape[0] if tensor.dim() > 1 else 0
            mark = 0 if apart is None else int(apart[index])
            key = tensor.numel(), rows, (tensor.device, tensor.dtype, mark)
            members.setdefault(key, []).append(index)
    found = []
    for (size, rows, _), indices in members.items():
        at_once = max(1, LIMIT // size)
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            matrix = together([tensor for i in some if (tensor := tensors[i]) is not None])
            found.append(Alike(tuple(some), matrix, rows))
    return found


def together(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one size as the lines of a matrix; a single one is not copied."""
    lines = [flat(tensor) for tensor in tensors]
    return lines[0][None] if len(lines) == 1 else torch.stack(lines)


def flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory where its rows lie whole in it, as the kernel reads."""
    tensor = tensor.detach()
    if rows_lie_whole(tuple(tensor.shape), tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return tensor.reshape(-1)
