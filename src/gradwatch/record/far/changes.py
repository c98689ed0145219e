"""What a step did to weights on accelerators, sent off, and the rows it becomes."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.far import steps
from gradwatch.record.far.alike import Alike
from gradwatch.record.far.transfer import Load, Parts
from gradwatch.record.measuring import Measured
from gradwatch.record.optimizers import SecondMoment
from gradwatch.record.rows import empty_rows
from gradwatch.stats import Family, State

_UPDATE = ("update_norm", "update_ratio", "update_lost_fraction")
_OPTIM = ("optim_ratio_rms", "optim_eps_fraction")


def update(
    load: Load,
    before: Sequence[Alike],
    parameters: Sequence[Tensor | None],
    states: NDArray[np.uint8],
    pulls: Sequence[Tensor | None],
) -> Callable[[Parts], Measured]:
    """What has changed at the coordinates picked before; `pulls` are the gradients."""
    groups: list[tuple[slice, list[int], NDArray[np.float64], int]] = []
    compared = np.zeros(len(parameters), bool)
    for old in steps.fitting(before, parameters):
        indices = list(old.indices)
        sizes = [p.numel() for index in indices if (p := parameters[index]) is not None]
        place = load.add(steps.change(old, parameters, pulls))
        groups.append((place, indices, np.array(sizes, float), old.matrix.shape[1]))
        compared[indices] = True
    empty = (states == State.MEASURED) & np.array([p is None for p in parameters], bool)
    gone = ~compared & ~empty
    states[gone] = np.maximum(states[gone], State.NOT_SAMPLED)

    def finish(arrived: Parts) -> Measured:
        rows = empty_rows(Family.UPDATE, len(states))
        rows["update_norm"][empty] = 0.0
        for place, indices, sizes, seen in groups:
            found = steps.changes_of(arrived[place][0], sizes, seen)
            for name, column in zip(_UPDATE, found.T, strict=True):
                rows[name][indices] = column
            states[np.array(indices)[sizes > seen]] = State.SAMPLED
        return Measured(Family.UPDATE, rows, states)

    return finish


def adam(load: Load, moments: Sequence[SecondMoment], total: int) -> Callable[[Parts], Measured]:
    """The ratio of every parameter that has a second moment."""
    groups = [
        (load.add(*steps.adam(group)), list(group.indices), group.gradients.shape[1])
        for group in steps.divided(moments)
    ]

    def finish(arrived: Parts) -> Measured:
        rows = empty_rows(Family.OPTIM, total)
        states = np.full(total, State.NO_GRADIENT, np.uint8)
        for place, indices, size in groups:
            found = steps.ratios_of(size, arrived[place])
            for name, column in zip(_OPTIM, found.T, strict=True):
                rows[name][indices] = column
            states[indices] = State.MEASURED
        return Measured(Family.OPTIM, rows, states)

    return finish
