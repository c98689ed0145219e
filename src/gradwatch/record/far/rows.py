"""Rows of tensors on accelerators: which are zero, which have lately been, how far they differ."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel.plain import spread_rows
from gradwatch.record.far.alike import Alike
from gradwatch.record.far.arithmetic import wide
from gradwatch.record.row_memory import WINDOW

_INFINITY = float("inf")


def touched(group: Alike) -> Tensor:
    """[tensor, row]: whether a row has an element that is not zero."""
    lines = group.matrix.view(len(group.indices), group.rows, -1)
    sizes: Tensor = torch.linalg.vector_norm(lines, _INFINITY, dim=2)
    return sizes != 0


def spread(group: Alike) -> Tensor:
    """[2, tensor]: largest distance of some rows from row 0, and largest norm among them all."""
    device, kind = group.matrix.device, wide(group.matrix.device)
    lines = group.matrix.view(len(group.indices), group.rows, -1)
    rows = lines.index_select(1, _chosen(group.rows, device)).to(kind)
    # In units of the largest element: no square leaves the range of the type.
    unit = torch.linalg.vector_norm(rows, _INFINITY, dim=(1, 2), keepdim=True)
    rows = rows / unit.clamp_min(torch.finfo(kind).tiny)
    away = torch.linalg.vector_norm(rows - rows[:, :1], 2, dim=2)
    return torch.stack([away.amax(1), torch.linalg.vector_norm(rows, 2, dim=2).amax(1)])


def spread_of(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """What `spread` has found, as the kernel gives it: 0 where all rows are zero."""
    distance, size = numbers.reshape(2, -1)
    with np.errstate(all="ignore"):
        return np.where(size == 0, 0.0, distance / size)


@lru_cache(maxsize=256)
def _chosen(rows: int, device: torch.device) -> Tensor:
    return torch.tensor([0, *spread_rows(rows)]).to(device, non_blocking=True)


class FarRows:
    """The memory of rows on devices: for every row, when its gradient was last other than zero.

    Four bytes per row. The rows of all tensors of a device lie one after another, so that a step
    costs a few operations and not a few per tensor.
    """

    def __init__(self, rows: Mapping[int, tuple[torch.device, int]]) -> None:
        self.rows = dict(rows)
        """Of each tensor that has rows: its device and how many."""
        self._now = 0
        self._last: dict[torch.device, Tensor] = {}
        self._ends: dict[torch.device, Tensor] = {}
        for device in dict.fromkeys(device for device, _ in rows.values()):
            sizes = [count for place, count in rows.values() if place == device]
            self._last[device] = torch.full(
                (sum(sizes),), -WINDOW, dtype=torch.int32, device=device
            )
            self._ends[device] = (torch.tensor(sizes).cumsum(0) - 1).to(device, non_blocking=True)

    def remember(self, marks: Mapping[int, Tensor], void: Tensor | None) -> list[Tensor]:
        """Take in the touched rows of this step; three running sums over tensors per device.

        Where `void` is a number other than 0 the step does not count: its gradients overflowed.
        """
        found = []
        for device, last in self._last.items():
            flat = torch.cat(
                [
                    marks[index].reshape(-1)
                    if index in marks
                    else torch.zeros(count, dtype=torch.bool, device=device)
                    for index, (place, count) in self.rows.items()
                    if place == device
                ]
            )
            if void is not None:
                flat = flat & (void.to(device) == 0)
            last.masked_fill_(flat, self._now)
            states = (flat, last > self._now - WINDOW, last >= 0)
            ends = self._ends[device]
            found += [state.cumsum(0, dtype=torch.int32).index_select(0, ends) for state in states]
        self._now += 1
        return found

    def counts(
        self, arrived: Sequence[NDArray[np.float64]]
    ) -> dict[int, tuple[float, float, float]]:
        """Of each tensor: rows that are zero, that were all along the window, that always were."""
        found = {}
        for turn, device in enumerate(self._last):
            indices = [index for index, (place, _) in self.rows.items() if place == device]
            sums = np.diff(np.stack(arrived[3 * turn : 3 * turn + 3]), axis=1, prepend=0.0)
            for index, column in zip(indices, sums.T, strict=True):
                zero, dead, untouched = (self.rows[index][1] - column).tolist()
                found[index] = zero, dead, untouched
        return found


def zero_rows(group: Alike) -> Tensor:
    """[tensor]: rows that are all zero."""
    return touched(group).logical_not_().sum(1)
