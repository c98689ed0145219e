"""What a step did to weights on accelerators: changes at fixed coordinates, and Adam's ratio."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.device.groups import ShapeGroup, pieces, same_shape_groups, together
from gradwatch.record.device.statistics import BITS, at_least_single, cleaned, wide
from gradwatch.record.device.transfer import Load
from gradwatch.record.optimizers import SecondMoment
from gradwatch.record.rows import FamilyRows, Parts, empty_rows
from gradwatch.record.snapshot import SAMPLE, pick
from gradwatch.record.tensors import KERNEL_DTYPES, aligned, local, number, on_accelerator
from gradwatch.stats import Family, State

_UPDATE = ("update_norm", "update_ratio", "update_lost_fraction")
_OPTIM = ("optim_ratio_rms", "optim_eps_fraction")


def update(
    load: Load,
    before: Sequence[ShapeGroup],
    parameters: Sequence[Tensor | None],
    states: NDArray[np.uint8],
    pulls: Sequence[Tensor | None],
) -> Callable[[Parts], FamilyRows]:
    """What has changed at the coordinates picked before; `pulls` are the gradients."""
    groups: list[tuple[slice, list[int], NDArray[np.float64], int]] = []
    compared = np.zeros(len(parameters), bool)
    for old in fitting(before, parameters):
        indices = list(old.indices)
        sizes = [p.numel() for index in indices if (p := parameters[index]) is not None]
        place = load.add(change(old, parameters, pulls))
        groups.append((place, indices, np.array(sizes, float), old.matrix.shape[1]))
        compared[indices] = True
    empty = (states == State.MEASURED) & np.array([p is None for p in parameters], bool)
    gone = ~compared & ~empty
    states[gone] = np.maximum(states[gone], State.NOT_SAMPLED)

    def finish(arrived: Parts) -> FamilyRows:
        rows = empty_rows(Family.UPDATE, len(states))
        rows["update_norm"][empty] = 0.0
        for place, indices, sizes, seen in groups:
            columns = changes_of(arrived[place][0], sizes, seen)
            for name, column in zip(_UPDATE, columns.T, strict=True):
                rows[name][indices] = column
            states[np.array(indices)[sizes > seen]] = State.SAMPLED
        return FamilyRows(Family.UPDATE, rows, states)

    return finish


def adam(load: Load, moments: Sequence[SecondMoment], total: int) -> Callable[[Parts], FamilyRows]:
    """The ratio of every parameter that has a second moment."""
    gradients: list[Tensor | None] = [None] * total
    by_index = {moment.index: moment for moment in moments}
    labels: dict[tuple[Any, ...], int] = {}
    apart = np.zeros(total, np.int64)
    for index, moment in by_index.items():
        gradient = local(moment.gradient).detach()
        if gradient.layout is not torch.strided or gradient.dtype not in KERNEL_DTYPES:
            continue
        if gradient.numel() and not gradient.is_meta:
            gradients[index] = gradient
            # A count that lives on the device stays there; others are numbers already.
            count = None if on_accelerator(moment.step) else number(moment.step)
            key = count, moment.beta, moment.epsilon, moment.second.dtype
            apart[index] = labels.setdefault(key, len(labels))
    groups = []
    for group in same_shape_groups(gradients, apart):
        parts = adam_ratio(group, [by_index[i] for i in group.indices], gradients)
        groups.append((load.add(*parts), list(group.indices), group.matrix.shape[1]))

    def finish(arrived: Parts) -> FamilyRows:
        rows = empty_rows(Family.OPTIM, total)
        states = np.full(total, State.NO_GRADIENT, np.uint8)
        for place, indices, size in groups:
            columns = ratios_of(size, arrived[place])
            for name, column in zip(_OPTIM, columns.T, strict=True):
                rows[name][indices] = column
            states[indices] = State.MEASURED
        return FamilyRows(Family.OPTIM, rows, states)

    return finish


def picked(tensors: Sequence[Tensor | None]) -> list[ShapeGroup]:
    """The fixed coordinates of the tensors, copied."""
    groups = same_shape_groups([None if tensor is None else _pick(tensor) for tensor in tensors])
    # A tensor that is alone in its group is not copied by being put there.
    return [
        group if len(group.indices) > 1 else ShapeGroup(group.indices, group.matrix.clone(), 0)
        for group in groups
    ]


def _pick(tensor: Tensor) -> Tensor:
    """In the order of indices, which is the same for a weight and its gradient."""
    return pick(tensor.detach()).reshape(-1)


def fitting(before: Sequence[ShapeGroup], parameters: Sequence[Tensor | None]) -> list[ShapeGroup]:
    """What was picked, without tensors that have gone or become others since."""
    groups = []
    for old in before:
        fits = [
            index < len(parameters)
            and (now := parameters[index]) is not None
            and now.device == old.matrix.device
            and now.dtype is old.matrix.dtype
            and min(now.numel(), SAMPLE) == old.matrix.shape[1]
            for index in old.indices
        ]
        if all(fits):
            groups.append(old)
        elif any(fits):
            lines = [line for line, fit in enumerate(fits) if fit]
            indices = tuple(old.indices[line] for line in lines)
            groups.append(ShapeGroup(indices, torch.stack([old.matrix[line] for line in lines]), 0))
    return groups


def change(
    old: ShapeGroup, parameters: Sequence[Tensor | None], pulls: Sequence[Tensor | None]
) -> Tensor:
    """[4, tensor]: norm of the change and of the weight, coordinates pulled at, and lost ones."""
    kind = wide(old.matrix.device)
    new = together([_pick(p) for i in old.indices if (p := parameters[i]) is not None])
    nothing = new.new_zeros(new.shape[1])
    pulled = together([nothing if (g := pulls[i]) is None else _pick(g) for i in old.indices])
    moved = pulled != 0
    away = new.to(kind) - old.matrix.to(kind)
    return torch.stack(
        [
            torch.linalg.vector_norm(cleaned(away), 2, dim=1),
            torch.linalg.vector_norm(cleaned(old.matrix), 2, dim=1, dtype=kind),
            moved.sum(1, dtype=kind),
            (moved & (_bits(new) == _bits(old.matrix))).sum(1, dtype=kind),
        ]
    )


def _bits(matrix: Tensor) -> Tensor:
    """To compare NaN with NaN, and to tell −0 from 0."""
    return matrix.view(BITS[matrix.itemsize])


def changes_of(
    numbers: NDArray[np.float64], sizes: NDArray[np.float64], seen: int
) -> NDArray[np.float64]:
    """[tensor, 3]: norm of the change (of the whole, as estimated), its ratio, the lost share."""
    moved_by, weight, moved, lost = numbers.reshape(4, -1)
    with np.errstate(all="ignore"):
        ratio = np.where(weight > 0, moved_by / weight, np.nan)
        return np.stack([moved_by * np.sqrt(sizes / seen), ratio, lost / moved], axis=1)


def adam_ratio(
    group: ShapeGroup, moments: Sequence[SecondMoment], gradients: Sequence[Tensor | None]
) -> list[Tensor]:
    """Of each piece [3, tensor]: norm of the finite g/(√v̂+ε), how many are not, √v̂ below ε.

    `moments` are those of the tensors of the group, whose steps were all corrected alike.
    """
    kind, first = wide(group.matrix.device), moments[0]
    correction: float | Tensor
    if on_accelerator(first.step):
        counts = torch.stack([moment.step.detach().reshape(1) for moment in moments])
        correction = 1 - torch.pow(first.beta, counts)
    else:
        correction = 1.0 - first.beta ** number(first.step)
    pairs = [(moment.second.detach(), gradients[moment.index]) for moment in moments]
    seconds = [aligned(second, g) for second, g in pairs if g is not None]
    matrix = together([second for second in seconds if second is not None])
    sums = []
    for g, v in zip(group.pieces, pieces(matrix), strict=True):
        root = (at_least_single(v) / correction).sqrt_()
        small = (root < first.epsilon).sum(1, dtype=kind)
        ratio = at_least_single(g) / root.add_(first.epsilon)
        finite = cleaned(ratio)
        norm = torch.linalg.vector_norm(finite, 2, dim=1, dtype=kind)
        sums.append(torch.stack([norm, (finite != ratio).sum(1, dtype=kind), small]))
    return sums


def ratios_of(size: int, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[tensor, 2]: RMS of the ratio, share of coordinates with √v̂ < ε."""
    norms, bad, small = np.stack([piece.reshape(3, -1) for piece in parts], axis=1)
    with np.errstate(all="ignore"):
        rms = np.sqrt((norms**2).sum(0) / (size - bad.sum(0)))
    return np.stack([rms, small.sum(0) / size], axis=1)
