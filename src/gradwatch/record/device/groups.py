"""Tensors of the same size on one device, put together so that one operation serves them all.

A launch costs a device as much as some ten thousand elements, and most tensors of a network are
smaller than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.guard import log
from gradwatch.record.tensors import KERNEL_DTYPES, local, rows_lie_whole
from gradwatch.stats import State

LIMIT = 1 << 22
"""Elements worked on at once: the memory this takes, some 100 MB, is the training's."""

_Made = TypeVar("_Made")
unsupported: set[tuple[str, str]] = set()
"""Type of device, and what it has no operation or no room for."""


@dataclass(frozen=True)
class ShapeGroup:
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


def same_shape_groups(
    tensors: Sequence[Tensor | None], apart: NDArray[np.int64] | None = None
) -> list[ShapeGroup]:
    """All tensors that are there, by device, type and size; `apart` parts them further."""
    members: dict[tuple[int, int, object], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            rows = tensor.shape[0] if tensor.dim() > 1 else 0
            mark = 0 if apart is None else int(apart[index])
            key = tensor.numel(), rows, (tensor.device, tensor.dtype, mark)
            members.setdefault(key, []).append(index)
    groups = []
    for (size, rows, _), indices in members.items():
        at_once = max(1, LIMIT // size)
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            matrix = together([tensor for i in some if (tensor := tensors[i]) is not None])
            groups.append(ShapeGroup(tuple(some), matrix, rows))
    return groups


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


def readable(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], NDArray[np.uint8]]:
    """The pieces torch can compute with, and why others are left out."""
    states = np.zeros(len(tensors), np.uint8)
    kept: list[Tensor | None] = []
    for index, tensor in enumerate(tensors):
        piece = None if tensor is None else local(tensor).detach()
        if piece is not None and piece.is_complex() and piece.layout is torch.strided:
            piece = torch.view_as_real(piece.resolve_conj())
        if piece is None:
            states[index] = State.NO_GRADIENT
        elif piece.is_meta or piece.layout is not torch.strided or piece.dtype not in KERNEL_DTYPES:
            states[index], piece = State.UNSUPPORTED, None
        kept.append(piece if piece is not None and piece.numel() else None)
    return kept, states


def supported(what: str, device: torch.device, make: Callable[[], _Made]) -> _Made | None:
    """What `make` gives; None where the device has no such operation, or no memory left for it.

    What a device cannot do is left out from then on, and said once; the rest is recorded.
    """
    key = device.type, what
    if key in unsupported:
        return None
    try:
        return make()
    except (RuntimeError, TypeError) as error:  # MPS has no float64 and says so by a TypeError
        unsupported.add(key)
        log.warning("gradwatch: %s are not recorded on %s: %s", what, device.type, error)
        return None
