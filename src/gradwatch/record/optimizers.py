"""What is read from optimizers and gradient scalers: second moments, learning rates, loss scale."""

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.record.clipping import UNTOUCHED, GradTransform, TransformKind
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.tensors import number
from gradwatch.stats import Family
from gradwatch.stats.rows import empty_rows


class LearningRates:
    """The rows of parameter groups, made anew where a rate has changed."""

    def __init__(self) -> None:
        self._last: list[Any] = []
        self._rows = empty_rows(Family.GROUP, 0)

    def rows(self, optimizer: Optimizer) -> NDArray[np.void]:
        """One row per group; not to be written to."""
        rates = [number(group.get("lr")) for group in optimizer.param_groups]
        if rates != self._last:
            self._last, self._rows = rates, empty_rows(Family.GROUP, len(rates))
            self._rows["lr"] = rates
        return self._rows


@dataclass(slots=True)
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
    numbers = _numbers(optimizer)
    moments = []
    for index, parameter in enumerate(tracked.tensors()):
        if parameter is None or (gradient := parameter.grad) is None:
            continue
        if (own := numbers.get(id(parameter))) is None:
            continue
        state = optimizer.state.get(parameter, {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if isinstance(second, Tensor):
            moments.append(SecondMoment(index, gradient, second, state.get("step"), *own))
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


def _numbers(optimizer: Optimizer) -> dict[int, tuple[float, float]]:
    """β₂ and ε of every parameter, by its id."""
    numbers: dict[int, tuple[float, float]] = {}
    for group in optimizer.param_groups:
        if "betas" in group:
            own = number(group["betas"][1]), number(group.get("eps", 0.0))
            numbers.update((id(parameter), own) for parameter in group["params"])
    return numbers


SMALLEST_CLIP = 2.0**-10
"""A factor below this is more likely a loss scale than a clipping."""


class LossScaling:
    """The GradScaler of the loop, given or found, and what it did to the gradients of a step."""

    def __init__(self, scaler: Any = None) -> None:
        self._ref = weakref.ref(scaler) if scaler is not None else None
        self._searches = 3
        self._searched_early = False

    @property
    def known(self) -> bool:
        """Whether there is a scaler, and it is still alive."""
        return self._ref is not None and self._ref() is not None

    def search(self, optimizer: Optimizer | None = None) -> bool:
        """Look for an enabled GradScaler in the process, when something suggests there is one.

        In the middle of a step only the scaler that steps this optimizer will do.
        """
        if not self.known and self._searches > 0:
            self._searches -= 1
            kinds = _kinds(torch.amp.GradScaler)
            for thing in gc.get_referrers(*kinds):
                # By the type alone: asking some other object anything might run its code.
                if type(thing) in kinds and thing.is_enabled() and _steps(thing, optimizer):
                    self._ref = weakref.ref(thing)
                    break
        return self.known

    def search_once(self, optimizer: Optimizer) -> None:
        """The same without a reason, for those who could not wait for one; only the first time."""
        if not self._searched_early:
            self._searched_early = True
            self.search(optimizer)

    @property
    def tensor(self) -> Any:
        """The scale where it lives, which may be an accelerator; None without a scaler."""
        return getattr(self._ref(), "_scale", None) if self._ref is not None else None

    def now(self) -> float | None:
        """The scale a backward pass runs with; None where no scaler is known."""
        return self.scale() if self.known else None

    def has_backed_off(self, since: float | None) -> bool:
        """Whether the scale was lowered since a backward that ran with this one.

        Where nobody can tell, because the scaler was not known then, it is assumed.
        """
        return since is None or not self.scale() >= since

    def scale(self) -> float:
        """The present scale; NaN where it is on an accelerator, 1 where there is no scaler."""
        scaler = self._ref() if self._ref is not None else None
        value = getattr(scaler, "_scale", None)
        if value is None:  # a scaler makes the tensor when it first scales a loss
            return number(getattr(scaler, "_init_scale", 1.0)) if scaler is not None else 1.0
        return number(value)

    def explain(self, transform: GradTransform, optimizer: Optimizer | None) -> GradTransform:
        """The transform without the loss scale: what is left of its factor is clipping."""
        if transform.kind is not TransformKind.SCALED:
            return transform
        suspicious = transform.factor < SMALLEST_CLIP or (
            transform.exact and transform.factor < 1.0
        )
        if not self.known and not (suspicious and self.search(optimizer)):
            # Without a scaler only a power of two is a scale of its own; the rest is clipping.
            return UNTOUCHED if transform.exact and transform.factor < SMALLEST_CLIP else transform
        scale = self.scale()
        if scale != scale:
            return GradTransform(TransformKind.CHANGED, exact=False)
        return transform.unscaled(scale)


def _steps(scaler: Any, optimizer: Optimizer | None) -> bool:
    states = getattr(scaler, "_per_optimizer_states", None)
    return optimizer is None or states is None or id(optimizer) in states


def _kinds(kind: type) -> list[type]:
    """The class and everything derived from it."""
    children: list[type] = kind.__subclasses__()
    return [kind, *(deeper for child in children for deeper in _kinds(child))]


def held_scale(optimizer: Optimizer | None) -> float:
    """What the gradients in memory are still multiplied by: a fused optimizer removes it itself."""
    value = getattr(optimizer, "grad_scale", None)
    return 1.0 if value is None else number(value)


def overflowed(optimizer: Optimizer | None) -> bool:
    """Whether a fused optimizer was told to leave the weights alone."""
    value = getattr(optimizer, "found_inf", None)
    return value is not None and number(value) > 0
