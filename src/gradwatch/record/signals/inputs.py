"""Every step: size and finiteness of what the model is fed."""

import math
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwatch.record.instrument import Reading
from gradwatch.record.signals.hooks import Hooks, Stage
from gradwatch.record.signals.modules import root_is_compiled, tensors
from gradwatch.record.signals.reading import readable, sampled_moments
from gradwatch.run import Event
from gradwatch.stats import Family

_READ = ["count", "nan", "pos_inf", "neg_inf", "norm", "abs_max"]


class Inputs:
    """RMS, largest magnitude and non-finite elements of the float inputs of the model.

    Of a tensor with more than 16,384 elements four stretches of 4,096 are read.
    """

    def __init__(self, model: nn.Module, stage: Stage | None = None) -> None:
        self._model = ref(model)
        self._hooks = Hooks("inputs", stage or Stage())
        self._clear()

    @property
    def spent(self) -> float:
        return self._hooks.spent

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._hooks.spent = seconds

    def _clear(self) -> None:
        self._seen = False
        self._squares = self._largest = 0.0
        self._finite = self._bad = 0

    def attach(self) -> None:
        """Nothing is hooked before a step of which anything is recorded."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._clear()
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
            if tensor.is_floating_point() and readable(tensor) and tensor.numel():
                self._add(sampled_moments(tensor))

    def _add(self, records: NDArray[np.void]) -> None:
        self._seen = True
        # As tuples: between a user's data and his model numpy's sums of four numbers are dear.
        for count, nan, above, below, norm, largest in records[_READ].tolist():
            bad = nan + above + below
            self._bad += bad
            if finite := count - bad:
                self._finite += finite
                self._squares += norm * norm
                self._largest = max(self._largest, largest)

    def collect(self, step: int) -> Iterator[Reading]:
        return iter(())

    def scalars(self, step: int) -> dict[str, float]:
        """Nothing where no forward with gradients was seen."""
        if not self._seen or self._hooks.failure is not None:
            return {}
        rms = math.sqrt(self._squares / self._finite) if self._finite else math.nan
        return {
            "input_rms": rms,
            "input_abs_max": self._largest if self._finite else math.nan,
            "input_nonfinite": float(self._bad),
        }

    def events(self) -> list[Event]:
        return self._hooks.events()

    def detach(self) -> None:
        self._hooks.remove()
