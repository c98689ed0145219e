"""Every step: size and finiteness of what the model is fed."""

import math
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwatch.record.instrument import Departure, Found, Reading
from gradwatch.record.signals.far import is_far
from gradwatch.record.signals.far_inputs import FarInputs, records
from gradwatch.record.signals.hooks import Hooks, Stage
from gradwatch.record.signals.modules import root_is_compiled, tensors
from gradwatch.record.signals.reading import readable, sampled_moments
from gradwatch.run import Event
from gradwatch.stats import Family

_READ = ["count", "nan", "pos_inf", "neg_inf", "norm", "abs_max"]


class Sum:
    """All inputs of a step."""

    def __init__(self) -> None:
        self._seen = False
        self._squares = self._largest = 0.0
        self._finite = self._bad = 0.0

    def add(self, count: float, bad: float, norm: float, largest: float) -> None:
        """A tensor or a stretch of one: the norm and the largest magnitude of its finite part."""
        self._seen = True
        self._bad += bad
        if finite := count - bad:
            self._finite += finite
            self._squares += norm * norm
            self._largest = max(self._largest, largest)

    def scalars(self) -> dict[str, float]:
        if not self._seen:
            return {}
        rms = math.sqrt(self._squares / self._finite) if self._finite else math.nan
        return {
            "input_rms": rms,
            "input_abs_max": self._largest if self._finite else math.nan,
            "input_nonfinite": self._bad,
        }


class Inputs:
    """RMS, largest magnitude and non-finite elements of the float inputs of the model.

    Of a tensor with more than 16,384 elements four stretches of 4,096 are read; on an accelerator
    16,384 evenly spread ones, and the numbers come later.
    """

    def __init__(self, model: nn.Module, stage: Stage | None = None) -> None:
        self._model = ref(model)
        self._hooks = Hooks("inputs", stage or Stage())
        self._far = FarInputs()
        self._sum = Sum()

    @property
    def spent(self) -> float:
        return self._hooks.spent

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._hooks.spent = seconds

    def attach(self) -> None:
        """Nothing is hooked before a step of which anything is recorded."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._sum = Sum()
        self._far.take()
        self._hooks.step = step
        model = self._model()
        if not due:
            self._hooks.clear()
        elif model is None or self._hooks or self._hooks.closed or root_is_compiled(model):
            return
        else:
            self._hooks.before(model, self._look)

    def _look(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for tensor in tensors((args, kwargs)):
            if not tensor.is_floating_point():
                continue
            if readable(tensor):
                self._add(tensor)
            elif is_far(tensor):
                self._far.look(tensor)

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.numel():
            # As tuples: between a user's data and his model numpy's sums of four numbers are dear.
            for count, nan, above, below, norm, top in sampled_moments(tensor)[_READ].tolist():
                self._sum.add(count, nan + above + below, norm, top)

    def collect(self, step: int) -> Iterator[Reading]:
        return iter(())

    def scalars(self, step: int) -> dict[str, float]:
        """Nothing where no forward with gradients was seen, or where the numbers come later."""
        if self._hooks.failure is not None or self._far:
            return {}
        return self._sum.scalars()

    def departures(self, step: int) -> list[Departure]:
        """The inputs on accelerators, with those on the CPU if there were any."""
        counts, parts = self._far.take()
        total, self._sum = self._sum, Sum()
        if not parts or self._hooks.failure is not None:
            return []

        def finish(arrived: list[NDArray[np.float64]]) -> Found:
            for record in records(counts, arrived):
                total.add(*record)
            return Found(scalars=total.scalars())

        return [Departure(parts, finish)]

    def events(self) -> list[Event]:
        return self._hooks.events()

    def detach(self) -> None:
        self._hooks.remove()
