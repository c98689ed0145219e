"""The kind of loss where only a number is logged: from rows of the output and its gradient."""

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
from gradwatch.record.signals.modules import first_floating, root_is_compiled
from gradwatch.record.signals.reading import readable
from gradwatch.run import Event
from gradwatch.stats import Family

_STEPS = 3
_ROWS = 8
_TOLERANCE = 1e-3


class LossGuess:
    """Keeps eight rows of the output on the first three steps; `loss_guess` is what they say.

    It is given only after those steps: where the loss itself is logged, its graph knows better.

    The gradient of a cross-entropy with respect to logits is softmax − target, up to a factor; with
    respect to log-probabilities it is the target alone. No other usual loss has either form.
    """

    def __init__(self, model: nn.Module, stage: Stage | None = None) -> None:
        self._model = ref(model)
        self._hooks = Hooks("output rows", stage or Stage())
        self._left = _STEPS
        self._rows: NDArray[np.float64] | None = None
        self._gradient: NDArray[np.float64] | None = None
        self._found: dict[str, Any] = {}
        self.loss_guess: dict[str, Any] = {}

    @property
    def spent(self) -> float:
        return self._hooks.spent

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._hooks.spent = seconds

    def attach(self) -> None:
        """Nothing is hooked before the first step."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._hooks.clear()
        self._hooks.step = step
        self._rows = self._gradient = None
        model = self._model()
        if self._left <= 0:
            self.loss_guess = self._found
            return
        self._left -= 1
        if model is None or self._found or self._hooks.closed:
            return
        if not root_is_compiled(model):
            self._hooks.after(model, self._look)

    def _look(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tensor = first_floating(output)
        if (
            tensor is None
            or tensor.grad_fn is None
            or tensor.ndim < 2
            or not readable(tensor)
            or torch._C._current_graph_task_id() != -1
        ):
            return
        place = tensor.output_nr
        self._rows = _few(tensor)

        def keep(gradients: Any) -> None:
            self._keep(gradients[place])

        tensor.grad_fn.register_prehook(keep)

    def _keep(self, gradient: Any) -> None:
        try:
            if self._gradient is None and isinstance(gradient, torch.Tensor) and readable(gradient):
                self._gradient = _few(gradient)
        except Exception as error:
            self._hooks.fail(error)

    def collect(self, step: int) -> Iterator[Reading]:
        if self._rows is not None and self._gradient is not None:
            self._found = guess(self._rows, self._gradient)
        self._rows = self._gradient = None
        return iter(())

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        return self._hooks.events()

    def detach(self) -> None:
        self._hooks.remove()


def _few(tensor: torch.Tensor) -> NDArray[np.float64]:
    """The first eight rows of the last dimension, in float64."""
    with torch.no_grad():
        plain = tensor.detach()
        rows = plain.reshape(-1, plain.shape[-1])[:_ROWS]
        copied: NDArray[np.float64] = rows.to(torch.float64).numpy().copy()
        return copied


def guess(rows: NDArray[np.float64], gradient: NDArray[np.float64]) -> dict[str, Any]:
    """The kind of loss behind the gradient, or nothing."""
    classes = rows.shape[-1]
    if classes < 2 or rows.shape != gradient.shape or not np.isfinite([rows, gradient]).all():
        return {}
    used = np.abs(gradient).max(axis=1) > 0  # ignored rows have no gradient
    rows, gradient = rows[used], gradient[used]
    if len(rows) < 2 or ((gradient < 0).sum(axis=1) != 1).any():
        return {}
    target = gradient.argmin(axis=1)
    others = np.ones(rows.shape, bool)
    others[np.arange(len(rows)), target] = False
    known = {"classes": classes, "chance": math.log(classes)}
    if not gradient[others].any():
        totals = np.exp(rows).sum(axis=1)
        return {"loss_kind": "nll", **known} if _equal(totals, 1.0) else {}
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    scale = -gradient[np.arange(len(rows)), target] / (
        1.0 - shares[np.arange(len(rows)), target] + 1e-300
    )
    expected = scale[:, None] * shares
    if not _equal(gradient[others], expected[others]):
        return {}
    probabilities = (rows >= 0).all() and _equal(rows.sum(axis=1), 1.0)
    fed = "probabilities" if probabilities else "logits"
    return {"loss_kind": "cross_entropy", **known, "loss_fed_with": fed}


def _equal(found: NDArray[np.float64], expected: NDArray[np.float64] | float) -> bool:
    largest = float(np.max(np.abs(expected)))
    return bool((np.abs(found - expected) <= _TOLERANCE * largest).all())
