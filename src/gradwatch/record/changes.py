"""What a step did to the weights, and Adam's ratio: one pass over memory where both are due."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.copies import Pair
from gradwatch.record.measuring import Measured
from gradwatch.record.optimizers import Divisors, divisors
from gradwatch.record.rows import blank, empty_rows
from gradwatch.record.tracks import Gathered, aligned, gather, only
from gradwatch.record.ward import Ward
from gradwatch.stats import Family, State


def changes(ward: Ward, *, update: bool, adam: bool) -> list[Measured]:
    """The families asked for, as far as there is something to say."""
    parameters, gradients = ward.parameters(), ward.gradients()
    pair = ward.copies.compare(parameters, gradients) if update else None
    divided = divisors(ward) if adam else None
    if divided is not None and not any(second is not None for second in divided.seconds):
        divided = None
    if pair is None:
        return [] if divided is None else _adam_alone(divided, gradients)
    if divided is None or pair.sampled:
        records, _ = kernel.step(pair.before, pair.after, pair.gradients)
        pair.enlarge(records, parameters)
        found = [_update(records, pair.states)]
        return found if divided is None else found + _adam_alone(divided, gradients)
    return _both(pair, divided, parameters)


def _both(pair: Pair, divided: Divisors, parameters: Sequence[Tensor | None]) -> list[Measured]:
    second = gather(
        [
            None if p is None else aligned(v, p)
            for p, v in zip(parameters, divided.seconds, strict=True)
        ]
    )
    states = _states(divided, pair.held, second)
    gone = (pair.gradients.counts == 0) & (states == State.MEASURED)
    states[gone & (second.batch.counts > 0)] = State.NOT_SAMPLED  # swapped during the step
    fits = states == State.MEASURED
    records, ratios = kernel.step(
        pair.before,
        pair.after,
        pair.gradients,
        only(second.batch, fits),
        correction=np.where(fits, divided.correction, 1.0),
        eps=divided.epsilon,
    )
    return [_update(records, pair.states), *_adam(ratios, states)]


def _adam_alone(divided: Divisors, gradients: Sequence[Tensor | None]) -> list[Measured]:
    held = gather(
        [g if v is None else aligned(g, v) for g, v in zip(gradients, divided.seconds, strict=True)]
    )
    second = gather(divided.seconds)
    states = _states(divided, held, second)
    fits = states == State.MEASURED
    _, ratios = kernel.step(
        None,
        None,
        only(held.batch, fits),
        only(second.batch, fits),
        correction=np.where(fits, divided.correction, 1.0),
        eps=divided.epsilon,
    )
    return _adam(ratios, states)


def _states(divided: Divisors, gradients: Gathered, seconds: Gathered) -> NDArray[np.uint8]:
    states = gradients.states.copy()
    unfit = (
        (seconds.states != State.MEASURED)
        | (gradients.batch.counts != seconds.batch.counts)
        | ~np.isfinite(divided.correction)
    )
    states[unfit & (states == State.MEASURED)] = State.UNSUPPORTED
    return states


def _update(records: NDArray[np.void], states: NDArray[np.uint8]) -> Measured:
    rows = empty_rows(Family.UPDATE, len(records))
    rows["update_norm"] = records["update_norm"]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows["update_ratio"] = records["update_norm"] / records["before_norm"]
        rows["update_lost_fraction"] = records["lost"] / records["with_gradient"]
    rows["update_ratio"][~np.isfinite(rows["update_ratio"])] = np.nan
    return Measured(Family.UPDATE, blank(Family.UPDATE, rows, states), states)


def _adam(ratios: NDArray[np.void], states: NDArray[np.uint8]) -> list[Measured]:
    """One family, or none where no tensor had a second moment."""
    if not (states == State.MEASURED).any():
        return []
    rows = empty_rows(Family.OPTIM, len(states))
    rows["optim_ratio_rms"] = ratios["ratio_rms"]
    rows["optim_eps_fraction"] = ratios["eps_fraction"]
    return [Measured(Family.OPTIM, blank(Family.OPTIM, rows, states), states)]
