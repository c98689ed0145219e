"""What a step did to weights on accelerators: changes at fixed coordinates, and Adam's ratio."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.device.groups import LIMIT, ShapeGroup, pieces, same_shape_groups, together
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
    groups = [
        (load.add(*adam_ratio(group)), list(group.indices), group.gradients.shape[1])
        for group in divided(moments)
    ]

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
    found = same_shape_groups([None if tensor is None else _pick(tensor) for tensor in tensors])
    # A tensor that is alone in its group is not copied by being put there.
    return [
        one if len(one.indices) > 1 else ShapeGroup(one.indices, one.matrix.clone(), 0)
        for one in found
    ]


def _pick(tensor: Tensor) -> Tensor:
    """In the order of indices, which is the same for a weight and its gradient."""
    return pick(tensor.detach()).reshape(-1)


def fitting(before: Sequence[ShapeGroup], parameters: Sequence[Tensor | None]) -> list[ShapeGroup]:
    """What was picked, without tensors that have gone or become others since."""
    found = []
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
            found.append(old)
        elif any(fits):
            lines = [line for line, fit in enumerate(fits) if fit]
            indices = tuple(old.indices[line] for line in lines)
            found.append(ShapeGroup(indices, torch.stack([old.matrix[line] for line in lines]), 0))
    return found


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


@dataclass(frozen=True)
class Divided:
    """Gradients and second moments of parameters whose steps were corrected alike."""

    indices: tuple[int, ...]
    gradients: Tensor
    seconds: Tensor
    correction: float | Tensor
    epsilon: float


def divided(moments: Sequence[SecondMoment]) -> list[Divided]:
    """Everything the Adam family keeps, in groups."""
    members: dict[tuple[Any, ...], list[SecondMoment]] = {}
    for one in moments:
        gradient, second = local(one.gradient), local(one.second)
        if gradient.layout is not torch.strided or gradient.dtype not in KERNEL_DTYPES:
            continue
        if not gradient.numel() or gradient.is_meta:
            continue
        # A count that lives on the device stays there; others are numbers already.
        count = None if on_accelerator(one.step) else number(one.step)
        mark = count, one.beta, one.epsilon
        key = (gradient.device, gradient.dtype, second.dtype, gradient.numel(), mark)
        members.setdefault(key, []).append(one)
    found = []
    for some in members.values():
        at_once = max(1, LIMIT // local(some[0].gradient).numel())
        found += [_divided(some[i : i + at_once]) for i in range(0, len(some), at_once)]
    return found


def _divided(some: Sequence[SecondMoment]) -> Divided:
    first = some[0]
    correction: float | Tensor
    if on_accelerator(first.step):
        counts = torch.stack([one.step.detach().reshape(1) for one in some])
        correction = 1 - torch.pow(first.beta, counts)
    else:
        correction = 1.0 - first.beta ** number(first.step)
    gradients = [local(one.gradient).detach() for one in some]
    seconds = [aligned(one.second.detach(), g) for one, g in zip(some, gradients, strict=True)]
    return Divided(
        tuple(one.index for one in some),
        together(gradients),
        together([second for second in seconds if second is not None]),
        correction,
        first.epsilon,
    )


def adam_ratio(group: Divided) -> list[Tensor]:
    """Of each piece [3, tensor]: norm of the finite g/(√v̂+ε), how many are not, √v̂ below ε."""
    kind = wide(group.gradients.device)
    found = []
    for g, v in zip(pieces(group.gradients), pieces(group.seconds), strict=True):
        root = (at_least_single(v) / group.correction).sqrt_()
        small = (root < group.epsilon).sum(1, dtype=kind)
        ratio = at_least_single(g) / root.add_(group.epsilon)
        finite = cleaned(ratio)
        norm = torch.linalg.vector_norm(finite, 2, dim=1, dtype=kind)
        found.append(torch.stack([norm, (finite != ratio).sum(1, dtype=kind), small]))
    return found


def ratios_of(size: int, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[tensor, 2]: RMS of the ratio, share of coordinates with √v̂ < ε."""
    norms, bad, small = np.stack([piece.reshape(3, -1) for piece in parts], axis=1)
    with np.errstate(all="ignore"):
        rms = np.sqrt((norms**2).sum(0) / (size - bad.sum(0)))
    return np.stack([rms, small.sum(0) / size], axis=1)
