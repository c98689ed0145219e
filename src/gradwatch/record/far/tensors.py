"""Tensors on accelerators as torch can compute with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.placement import local
from gradwatch.record.tracks import KINDS
from gradwatch.stats import State


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
        elif piece.is_meta or piece.layout is not torch.strided or piece.dtype not in KINDS:
            states[index], piece = State.UNSUPPORTED, None
        kept.append(piece if piece is not None and piece.numel() else None)
    return kept, states


def one_number(value: Any, default: float, like: Tensor) -> Tensor:
    """One number as a tensor on the device of `like`, without asking what it is."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)[:1].to(like.device, non_blocking=True)
    return torch.full((1,), float(default if value is None else value), device=like.device)
