"""What is read from an optimizer's own state: second moments, learning rates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import empty_rows
from gradwatch.record.tensors import number
from gradwatch.stats import Family


def learning_rates(optimizer: Optimizer) -> NDArray[np.void]:
    """One row per group."""
    rows = empty_rows(Family.GROUP, len(optimizer.param_groups))
    rows["lr"] = [number(group.get("lr")) for group in optimizer.param_groups]
    return rows


@dataclass(frozen=True)
class SecondMoment:
    """What one parameter's step divided by, and the gradient it used."""

    index: int
    gradient: Tensor
    second: Tensor
    step: Any
    """How many steps were made: a number, or a tensor, which may be on a device (capturable)."""
    beta: float
    epsilon: float


def second_moments(tracked: TrackedOptimizer) -> list[SecondMoment]:
    """Of every parameter that has one and got a gradient; none for other optimizers.

    Adam, AdamW, NAdam and RAdam keep `exp_avg_sq`; with amsgrad the step divides by its maximum.
    """
    optimizer = tracked.optimizer
    if optimizer is None or not any("betas" in group for group in optimizer.param_groups):
        return []
    groups = _groups(optimizer)
    moments = []
    for index, parameter in enumerate(tracked.tensors()):
        if parameter is None or parameter.grad is None:
            continue
        state, group = optimizer.state.get(parameter, {}), groups.get(id(parameter), {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if isinstance(second, Tensor) and "betas" in group:
            beta, epsilon = number(group["betas"][1]), number(group.get("eps", 0.0))
            step = state.get("step")
            moments.append(SecondMoment(index, parameter.grad, second, step, beta, epsilon))
    return moments


@dataclass(frozen=True)
class Divisors:
    """Of every parameter of an optimizer: what Adam's step divided by, None where nothing is."""

    seconds: list[Tensor | None]
    correction: NDArray[np.float64]
    """v̂ = v / correction; NaN where the count of steps makes no sense."""
    epsilon: NDArray[np.float64]


def divisors(tracked: TrackedOptimizer) -> Divisors:
    """The second moments as the kernel wants them."""
    count = len(tracked.parameters)
    divided = Divisors([None] * count, np.ones(count), np.zeros(count))
    for moment in second_moments(tracked):
        divided.seconds[moment.index] = moment.second
        decay = moment.beta ** number(moment.step)
        divided.correction[moment.index] = 1.0 - decay if decay < 1.0 else np.nan
        divided.epsilon[moment.index] = moment.epsilon
    return divided


def _groups(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}
