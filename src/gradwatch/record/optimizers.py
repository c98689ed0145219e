"""What an optimizer's own state tells: second moments, learning rates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

import gradwatch.kernel as kernel
from gradwatch.record.measuring import Measured
from gradwatch.record.reading import number
from gradwatch.record.rows import blank, empty_rows
from gradwatch.record.tracks import aligned, gather, only
from gradwatch.record.ward import Ward
from gradwatch.stats import Family, State


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
    beta: float
    epsilon: float


def second_moments(ward: Ward) -> list[SecondMoment]:
    """Of every parameter that has one and got a gradient; none for other optimizers.

    Adam, AdamW, NAdam and RAdam keep `exp_avg_sq`; with amsgrad the step divides by its maximum.
    """
    optimizer = ward.optimizer
    if optimizer is None or not any("betas" in group for group in optimizer.param_groups):
        return []
    groups = _groups(optimizer)
    found = []
    for index, parameter in enumerate(ward.parameters()):
        if parameter is None or parameter.grad is None:
            continue
        state, group = optimizer.state.get(parameter, {}), groups.get(id(parameter), {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if isinstance(second, Tensor) and "betas" in group:
            beta, epsilon = number(group["betas"][1]), number(group.get("eps", 0.0))
            step = state.get("step")
            found.append(SecondMoment(index, parameter.grad, second, step, beta, epsilon))
    return found


def adam_state(ward: Ward) -> Measured | None:
    """g/(√v̂+ε) after the step, with the v the step used; None for optimizers without one."""
    count = len(ward.tracks)
    seconds: list[Tensor | None] = [None] * count
    grads: list[Tensor | None] = [None] * count
    correction, epsilon = np.ones(count), np.zeros(count)
    for one in second_moments(ward):
        seconds[one.index] = one.second
        grads[one.index] = aligned(one.gradient, one.second)
        decay = one.beta ** number(one.step)
        correction[one.index] = 1.0 - decay if decay < 1.0 else np.nan
        epsilon[one.index] = one.epsilon
    return _ratios(grads, seconds, correction, epsilon)


def _ratios(
    grads: list[Tensor | None],
    seconds: list[Tensor | None],
    correction: NDArray[np.float64],
    epsilon: NDArray[np.float64],
) -> Measured | None:
    held, moments = gather(grads), gather(seconds)
    states = held.states.copy()
    no_second = moments.states != State.MEASURED
    states[no_second & (states == State.MEASURED)] = State.UNSUPPORTED
    unfit = (held.batch.counts != moments.batch.counts) | ~np.isfinite(correction)
    states[unfit & (states == State.MEASURED)] = State.UNSUPPORTED
    fits = states == State.MEASURED
    if not fits.any():
        return None
    correction = np.where(np.isfinite(correction), correction, 1.0)
    records = kernel.adam(
        only(held.batch, fits), only(moments.batch, fits), correction=correction, eps=epsilon
    )
    rows = empty_rows(Family.OPTIM, len(states))
    rows["optim_ratio_rms"] = records["ratio_rms"]
    rows["optim_eps_fraction"] = records["eps_fraction"]
    return Measured(Family.OPTIM, blank(Family.OPTIM, rows, states), states)


def _groups(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}
