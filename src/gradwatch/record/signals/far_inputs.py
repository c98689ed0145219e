"""Size and finiteness of inputs on accelerators, as numbers that come later."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.far.arithmetic import cleaned, wide
from gradwatch.record.signals.far import spread

SAMPLE = 16_384
MOST = 256
"""Inputs of one step that are looked at; more come only where hundreds of batches make a step."""


class FarInputs:
    """Three numbers per input, in tensors of ours: non-finite elements, largest magnitude, norm."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._parts: list[Tensor] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def look(self, tensor: Tensor) -> None:
        if len(self._counts) == MOST:
            return
        sample = spread(tensor, SAMPLE)
        kind = wide(sample.device)
        clean = cleaned(sample)
        self._counts.append(sample.numel())
        self._parts += [
            (clean != sample).sum(),
            torch.linalg.vector_norm(clean, float("inf")),
            torch.linalg.vector_norm(clean, 2, dtype=kind),
        ]

    def take(self) -> tuple[list[int], list[Tensor]]:
        """How many elements of each input were looked at, and the numbers; then forget them."""
        found = self._counts, self._parts
        self._counts, self._parts = [], []
        return found


def records(
    counts: Sequence[int], arrived: Sequence[NDArray[np.float64]]
) -> list[tuple[int, float, float, float]]:
    """Of each input: elements, non-finite ones, norm and largest magnitude of the others."""
    numbers = [float(part[0]) for part in arrived]
    bad, tops, norms = numbers[::3], numbers[1::3], numbers[2::3]
    return list(zip(counts, bad, norms, tops, strict=True))
