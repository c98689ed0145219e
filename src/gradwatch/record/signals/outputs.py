"""What the model gives for a batch: how far its rows differ, which classes it predicts.

And its targets. Nobody hands us those: they are read from the output's gradient on the first steps.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.rows import Reading
from gradwatch.record.signals.hooks import HookedSignal, ModelContext, root_is_compiled
from gradwatch.record.signals.loss_kind import last_operation
from gradwatch.record.signals.tensors import moments, readable, tensors_in
from gradwatch.stats import Family

_ROWS, _COLUMNS = 64, 64
"""Of the output that are compared."""
_FEWEST, _CELLS = 16, 1 << 14
"""Rows in which predictions are looked for, or more while they have no more than so many cells."""
_PLACES = 16
"""Places of a picture in which they are."""
_LABELLED = 1024
"""Rows in which the classes of targets are."""
_SAMPLED = 4096
"""Elements from which targets are read."""
_STEPS = 3
_LARGEST = 1 << 22
"""Elements of an output that may be copied where its memory has gaps."""
RANGES = {
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
}
"""Last operations of a model that bound what it can give."""

Floats = NDArray[np.float64]


class Outputs(HookedSignal):
    """On the steps of updates: scalars of the output; after the first steps, notes on the targets.

    The first forward pass with gradients of a step counts. Outputs on devices are not looked at.
    """

    what = "outputs"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._left = _STEPS
        self._scalars: dict[str, float] = {}
        self._targets: list[list[float | None]] = []
        self._labels: list[int] = []
        self._operation = ""
        """The model's last, where that bounds what it gives."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Listen to the model's output where the coming step looks at updates."""
        self._unhook()
        self._step, self._scalars = step, {}
        model = self._model()
        if not {Family.UPDATE, Family.ACT} & due or model is None or self._may_not_hook:
            return
        if not root_is_compiled(model):
            self._hook_after(model, self._look)

    def _look(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._scalars or not torch.is_grad_enabled():
            return
        tensor = next((t for t in tensors_in(output) if t.is_floating_point() and t.ndim), None)
        if tensor is None or not readable(tensor) or not tensor.numel():
            return
        if not tensor.is_contiguous() and tensor.numel() > _LARGEST:
            return
        operation = last_operation(tensor.grad_fn)
        plain = tensor.detach()
        self._scalars = {**_spread(plain), **_predictions(plain, operation == "Sigmoid")}
        if self._left > 0 and tensor.grad_fn is not None:
            self._left -= 1
            self._operation = operation if operation in RANGES else ""
            given = _sample(plain)
            tensor.grad_fn.register_prehook(
                partial(self._keep, tensor.output_nr, self._step, given, operation)
            )

    def _keep(
        self,
        place: int,
        step: int,
        given: Floats,
        operation: str,
        gradients: Sequence[Tensor | None],
    ) -> None:
        # Autograd calls this, not a hook of ours: nothing else would catch what it raises.
        try:
            gradient = gradients[place]
            if gradient is not None and readable(gradient) and step == self._step:
                plain = gradient.detach()
                self._targets += _targets(step, given, plain, RANGES.get(operation))
                self._labels += _labels(plain)
        except Exception as error:
            self.fail(error)

    def collect(self, step: int) -> Iterable[Reading]:
        """No rows; but after the first steps a note on the targets."""
        if self._left == 0:
            self._left = -1
            activation = {"output_activation": self._operation} if self._operation else {}
            self.info = {"targets": self._targets} | activation | _shares(self._labels)
        return ()

    def scalars(self, step: int) -> dict[str, float]:
        """Nothing where no output of a forward with gradients could be read."""
        scalars, self._scalars = self._scalars, {}
        return {} if self.failure is not None else scalars


@np.errstate(all="ignore")
def _spread(output: Tensor) -> dict[str, float]:
    """RMS of the output, and how far rows of a batch differ, relative to it; if it is finite."""
    table = output if len(output) > 1 or output.ndim < 3 else output[0]
    flat = table.reshape(len(table), -1)
    rows, columns = -(-flat.shape[0] // _ROWS), -(-flat.shape[1] // _COLUMNS)
    seen = flat[::rows, ::columns].to(torch.float64).numpy()
    # Sums and products only: numpy's own mean and variance take longer than all the rest.
    total, sums = float(np.vdot(seen, seen)) / seen.size, seen.sum(axis=0)
    shared = float(np.vdot(sums, sums)) / (len(seen) * seen.size)
    if not math.isfinite(total):
        return {}
    scalars = {"output_rms": math.sqrt(total)}
    if len(seen) > 1:
        scalars["output_spread"] = math.sqrt(max(total - shared, 0.0) / total) if total else 0.0
    return scalars


def _rows_of_classes(output: Tensor, most: int) -> Tensor:
    """[row, class], at most so many rows; one column where there is one number for each row."""
    if output.ndim < 2:
        return output[:: -(-len(output) // most), None]
    if output.ndim > 3:  # classes come second, places behind them
        few = output.flatten(2)[..., :: -(-output[0, 0].numel() // _PLACES)]
        output = few.movedim(1, -1)
    table = output.reshape(-1, output.shape[-1])
    return table[:: -(-len(table) // most)]


def _predictions(output: Tensor, probabilities: bool) -> dict[str, float]:
    """The class that is predicted most, its share, and how many are predicted at all."""
    width = 1 if output.ndim < 2 else output.shape[1 if output.ndim > 3 else -1]
    table = _rows_of_classes(output, min(_ROWS, max(_FEWEST, _CELLS // width)))
    if len(table) < 2:
        return {}
    if width == 1:
        predicted = (table[:, 0] > (0.5 if probabilities else 0.0)).tolist()
    else:
        predicted = table.argmax(dim=1).tolist()
    counts = Counter(predicted)
    most, times = counts.most_common(1)[0]
    return {
        "predicted_class": float(most),
        "predicted_share": times / len(predicted),
        "predicted_classes": float(len(counts)),
    }


# -- targets ---------------------------------------------------------------------------------------


def _sample(tensor: Tensor) -> Floats:
    """At most 4,096 evenly spread elements, in the order of the dimensions."""
    flat = tensor.reshape(-1)
    seen: Floats = flat[:: -(-len(flat) // _SAMPLED)].to(torch.float64).numpy().copy()
    return seen


def _targets(
    step: int, given: Floats, gradient: Tensor, bounds: tuple[float, float] | None
) -> Iterator[list[float | None]]:
    """What the targets are if the loss is a squared error: for each usual scale of it a line.

    With a loss of c · Σ(output − target)² the gradient is 2c · (output − target): the scale gives
    the targets, and the loss itself, by which whoever knows it can tell which scale is right.

    A line is step, loss, then of the targets RMS, least, largest, and the share that is out of the
    output's range (None where it has none).
    """
    norm, seen, size = float(moments(gradient)["norm"][0]), _sample(gradient), gradient.numel()
    if not (0.0 < norm < math.inf and np.isfinite(given).all() and np.isfinite(seen).all()):
        return
    for scale in dict.fromkeys((1 / size, 1.0, 1 / len(gradient), 0.5 / size, 0.5)):
        targets = given - seen / (2 * scale)
        rms = math.sqrt(np.mean(targets**2))
        outside = None
        if bounds is not None:
            slack = 1e-3 * max(1.0, float(np.abs(given).max()))
            outside = float(np.mean((targets < bounds[0] - slack) | (targets > bounds[1] + slack)))
        loss = norm * norm / (4 * scale)
        yield [step, loss, rms, float(targets.min()), float(targets.max()), outside]


def _labels(gradient: Tensor) -> list[int]:
    """The classes of the targets: only for its own class does a cross-entropy ask for more."""
    table = _rows_of_classes(gradient, _LABELLED)
    negative = (table < 0).numpy()
    if table.shape[1] == 1:
        return [int(wanted) for wanted in negative[:, 0]]
    negative = negative[(table != 0).any(dim=1).numpy()]  # ignored rows have no gradient
    if not len(negative) or (negative.sum(axis=1) != 1).any():
        return []
    return [int(place) for place in negative.argmax(axis=1)]


def _shares(labels: Sequence[int]) -> dict[str, Any]:
    """How many targets were seen, and the share of the class that most of them have."""
    if not labels:
        return {}
    counts = np.bincount(labels)
    return {
        "target_classes": {
            "seen": len(labels),
            "most": int(counts.argmax()),
            "share": float(counts.max() / len(labels)),
            "classes": int((counts > 0).sum()),
        }
    }
