"""Rows of matrices on a device: which were touched, and how far apart they are.

Rows do not end where chunks do: tensors of one shape are looked at together, large ones alone.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel.plain import SPREAD_ROWS, spread_rows
from gradwatch.record.device.engine import Wanted
from gradwatch.record.device.slabs import flat
from gradwatch.record.device.torch_plan import supported
from gradwatch.record.device.transfer import Load, sent_to, wide
from gradwatch.record.rows import Parts
from gradwatch.stats.rows import WINDOW

_INFINITY = float("inf")
STACKED = 1 << 19
"""Tensors of more elements are not copied to have their rows looked at together."""


def by_shape(
    tensors: Sequence[Tensor | None], most: int, rows: int | None = None
) -> list[list[int]]:
    """Indices of matrices of one size and type that have at most so many elements (in `rows`)."""
    alike: dict[tuple[int, int, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None and tensor.dim() > 1:
            alike.setdefault((tensor.shape[0], tensor.numel(), tensor.dtype), []).append(index)
    groups = []
    for (many, size, _), indices in alike.items():
        at_once = max(1, most // (size if rows is None else rows * size // many))
        groups += [indices[i : i + at_once] for i in range(0, len(indices), at_once)]
    return groups


def touched_rows(tensors: Sequence[Tensor | None]) -> dict[int, Tensor]:
    """[row] of each matrix: its largest magnitude, which is not 0 where the row was touched."""
    sizes: dict[int, Tensor] = {}
    for group in by_shape(tensors, 8 * STACKED):
        lines = [_lines(tensor) for index in group if (tensor := tensors[index]) is not None]
        if lines[0].numel() > STACKED or len(lines) == 1:
            found = [torch.linalg.vector_norm(line, _INFINITY, dim=1) for line in lines]
        else:
            found = list(torch.linalg.vector_norm(torch.stack(lines), _INFINITY, dim=2).unbind(0))
        sizes |= dict(zip(group, found, strict=True))
    return sizes


def _lines(tensor: Tensor) -> Tensor:
    return flat(tensor).view(tensor.shape[0], -1)


def _rows_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.dim() < 2 else tensor.shape[0]


def spread(matrices: Sequence[Tensor]) -> Tensor:
    """[2, matrix]: largest distance of some rows from row 0, and largest norm among them all."""
    device, kind = matrices[0].device, wide(matrices[0].device)
    chosen = _chosen_rows(matrices[0].shape[0], device)
    rows = torch.stack([_lines(one).index_select(0, chosen) for one in matrices]).to(kind)
    # In units of the largest element: no square leaves the range of the type.
    unit = torch.linalg.vector_norm(rows, _INFINITY, dim=(1, 2), keepdim=True)
    rows = rows / unit.clamp_min(torch.finfo(kind).tiny)
    away = torch.linalg.vector_norm(rows - rows[:, :1], 2, dim=2)
    return torch.stack([away.amax(1), torch.linalg.vector_norm(rows, 2, dim=2).amax(1)])


@lru_cache(maxsize=256)
def _chosen_rows(rows: int, device: torch.device) -> Tensor:
    return sent_to(device, np.array([0, *spread_rows(rows)]))


@lru_cache(maxsize=64)
def there(numbers: bytes, device: torch.device) -> Tensor:
    """Whole numbers that seldom change, kept on a device."""
    return sent_to(device, np.frombuffer(numbers, np.int64).copy())


def send_rows(
    load: Load, tensors: Sequence[Tensor | None], wanted: Wanted, device: torch.device
) -> Callable[[Parts], NDArray[np.uint64]]:
    """[3, tensor]: rows that are zero, that were all along the window, that always were."""
    times, own = wanted.rows, [_rows_of(tensor) for tensor in tensors]
    rows = np.array(own, np.int64) if times is None else times.rows
    counts = np.zeros((3, len(rows)), np.uint64)
    filled = np.flatnonzero(rows)
    if not len(filled):
        return lambda _: counts
    marks = touched_rows([t if rows[i] == own[i] else None for i, t in enumerate(tensors)])
    touched = _joined(marks, rows, filled, device)
    states = [touched]
    if times is not None:
        if wanted.void is not None:  # whether it overflowed is known to the device alone
            touched = touched & (wanted.void == 0)
        times.last.masked_fill_(touched, times.now)
        states = [touched, times.last > times.now - WINDOW, times.last >= 0]
        times.now += 1
    ends = there((rows[filled].cumsum() - 1).tobytes(), device)
    running = torch.stack(states).cumsum(1, dtype=torch.int32).index_select(1, ends)
    place = load.add(running)

    kinds = len(states)

    def finish(arrived: Parts) -> NDArray[np.uint64]:
        sums = arrived[place][0].reshape(kinds, -1)
        counts[:kinds, filled] = rows[filled] - np.diff(sums, axis=1, prepend=0.0)
        return counts

    return finish


def _joined(
    marks: dict[int, Tensor],
    rows: NDArray[np.int64],
    filled: NDArray[np.int64],
    device: torch.device,
) -> Tensor:
    there = [marks.get(int(index)) for index in filled]
    present = [one for one in there if one is not None]
    if len({one.dtype for one in present}) > 1:  # joined as they are they are copied singly
        present = [one != 0 for one in present]
    kind = present[0].dtype if present else torch.bool
    nothing = torch.zeros(int(rows.max()), dtype=kind, device=device)
    touched = iter(present)
    parts = [
        nothing[: int(rows[index])] if one is None else next(touched)
        for index, one in zip(filled, there, strict=True)
    ]
    return torch.cat(parts) != 0


def send_spreads(
    load: Load, tensors: Sequence[Tensor | None], device: torch.device
) -> Callable[[Parts], NDArray[np.float32]]:
    """[tensor]: as `kernel.row_spread` has it."""
    taken: list[tuple[list[int], slice]] = []
    for group in by_shape(tensors, STACKED, SPREAD_ROWS + 1):
        matrices = [tensor for i in group if (tensor := tensors[i]) is not None]
        if matrices[0].shape[0] > 1:
            made = supported("spreads of rows", device, partial(spread, matrices))
            if made is not None:
                taken.append((group, load.add(made)))

    total = len(tensors)

    def finish(arrived: Parts) -> NDArray[np.float32]:
        spreads = np.full(total, np.nan, np.float32)
        for group, place in taken:
            distance, size = arrived[place][0].reshape(2, -1)
            with np.errstate(all="ignore"):
                spreads[group] = np.where(size == 0, 0.0, distance / size)
        return spreads

    return finish
