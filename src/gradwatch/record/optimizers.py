"""What an optimizer's own state tells: second moments, learning rates."""

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


def adam_state(ward: Ward) -> Measured | None:
    """g/(√v̂+ε) after the step, with the v the step used; None for optimizers without one.

    Adam, AdamW, NAdam and RAdam keep `exp_avg_sq`; with amsgrad the step divides by its maximum.
    """
    optimizer = ward.optimizer
    if optimizer is None or not any("betas" in group for group in optimizer.param_groups):
        return None
    groups = _groups(optimizer)
    seconds: list[Tensor | None] = []
    grads: list[Tensor | None] = []
    correction, epsilon = np.ones(len(ward.tracks)), np.zeros(len(ward.tracks))
    for index, parameter in enumerate(ward.parameters()):
        state = {} if parameter is None else optimizer.state.get(parameter, {})
        group = groups.get(id(parameter), {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if parameter is None or not isinstance(second, Tensor) or "betas" not in group:
            seconds.append(None)
            grads.append(None)
            continue
        seconds.append(second)
        grads.append(aligned(parameter.grad, second))
        decay = number(group["betas"][1]) ** number(state.get("step"))
        correction[index] = 1.0 - decay if decay < 1.0 else np.nan
        epsilon[index] = number(group.get("eps", 0.0))
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
