"""What the model is fed and what it gives: scale, repeated batches, spread, predictions, targets.

All is read when the model has run. The targets nobody hands us: like the kind of a loss of which
only a number is logged, they are read from the output's gradient, on the first steps.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradwatch.record import looking
from gradwatch.record.layers import drops
from gradwatch.record.loss import Floats, guess, last_operation
from gradwatch.record.recorder import Found, Late, Recorder
from gradwatch.record.schedule import StepPlan
from gradwatch.record.tensors import KERNEL_DTYPES, as_array, spread
from gradwatch.record.transfer import Transfer
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family

LOOKS = 3
"""Steps whose output's gradient is looked at; as many without an input are told of."""
_SAMPLED, _SENT = 4096, 16
"""Elements of a tensor that are looked at, and tensors on devices that are in a step."""
_READ = {*KERNEL_DTYPES, torch.int64, torch.int32, torch.uint8, torch.bool}
"""Types of which batches are compared."""
_LEAST_SEEN = 64
"""Elements other than zero in a sample that tell one batch from another."""
_LARGEST = 1 << 22
"""Elements of an output that may be copied where its memory has gaps."""
RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
RANGES |= {"Relu": (0.0, math.inf), "Softplus": (0.0, math.inf)}
"""Last operations of a model that bound what it can give."""
_UNFED = "inputs are not recorded: no call of the model's own forward with tensors was seen"


@dataclass
class _Seen:
    """What was seen of a step: all its micro-batches, and the evaluations before it."""

    step: int
    with_output: bool = False
    """Whether the output is to be looked at."""
    evaluations: Counter[str] = field(default_factory=Counter)
    batches: dict[int | None, None] = field(default_factory=dict)
    """Fingerprints in order, None for none; one that is fed several times (LBFGS) counts once."""
    finite: int = 0
    """Elements of float inputs; then those that are not finite, and what the finite ones are."""
    bad: int = 0
    squares: float = 0.0
    top: float = 0.0
    sent: list[Tensor] = field(default_factory=list)
    """Samples of those that lie on devices."""
    output: dict[str, float] = field(default_factory=dict)

    def add(self, sample: NDArray[Any]) -> None:
        """Elements of a float input."""
        values = sample.astype(np.float64)
        if not math.isfinite(values.sum()):
            values = values[np.isfinite(values)]
        self.finite += len(values)
        self.bad += len(sample) - len(values)
        self.squares += float(np.vdot(values, values))
        self.top = max(self.top, float(np.abs(values).max(initial=0.0)))

    def scalars(self) -> dict[str, float]:
        """The step's numbers, by name; of what was not seen there are none."""
        scalars = {**self.evaluations, **self.output}
        if self.finite or self.bad:
            scalars["input_rms"] = (
                math.sqrt(self.squares / self.finite) if self.finite else math.nan
            )
            scalars["input_abs_max"] = self.top if self.finite else math.nan
            scalars["input_nonfinite"] = self.bad
        if self.batches and None not in self.batches:
            scalars["batch_fingerprint"] = zlib.crc32(repr(list(self.batches)).encode())
        return scalars

    def arrived(self, samples: list[Floats]) -> Found:
        """The samples have come over from their devices."""
        for sample in samples:
            self.add(sample)
        return Found(self.step, scalars=self.scalars())


def fed_modules(model: nn.Module) -> list[nn.Module]:
    """Whose inputs are the data: the model, or the parts of one that has no forward of its own.

    Such are several networks watched as one, a `ModuleDict`, or an agent that has methods only.
    """
    if type(model).forward is not nn.Module.forward or "forward" in vars(model):
        return [model]
    return [module for part in model.children() for module in fed_modules(part)]


class Batches:
    """Looks at the calls of the model, or of several networks.

    RMS, largest magnitude and non-finite elements are of at most 4,096 evenly spread elements of
    each float input, in all micro-batches of a step, since nothing else shows that a batch was
    bad; of sparse inputs the stored values count. A fingerprint of all inputs tells whether two
    batches are the same; nothing of the data is kept. There is none of what lies on a device.

    Of the output the first forward pass with gradients of a step counts. Outputs of several
    networks and those on devices are not looked at.
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self._model = ref(model)  # weak: watching keeps no model alive
        self._recorder = recorder
        self.loss_guess: Mapping[str, Any] = {}
        """The kind of loss, given after the first steps: if it is logged its graph knows better."""
        self._guess: Mapping[str, Any] = {}
        self._info: dict[str, Any] = {"targets": []}
        self._labels: list[int] = []
        self._seen = _Seen(0)
        self._looks = LOOKS
        """How many gradients of an output are still to be looked at."""
        self._unfed = LOOKS
        """Recorded steps without an input until that is told; below 0 it never is."""

    def wants(self, plan: StepPlan) -> bool:
        """The previous step has ended: whether the calls of the coming one are to be looked at."""
        with_output = self._looks > 0 or not plan.due.isdisjoint((Family.UPDATE, Family.ACT))
        self._seen = _Seen(plan.step, with_output)
        return bool(plan.due)

    def look(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The model has run, or one of several networks."""
        if not torch.is_grad_enabled():
            wrong = _in_training_mode(module)
            self._seen.evaluations.update(evaluations=1, evaluations_in_training=wrong)
            return
        whole = module is self._model()
        given = [tensor for tensor in looking.tensors_in((args, kwargs)) if not tensor.is_nested]
        # What another network has made is no data.
        self._read([tensor for tensor in given if whole or tensor.grad_fn is None])
        # A checkpoint computes an output once more, within the backward pass.
        if whole and self._seen.with_output and torch._C._current_graph_task_id() == -1:
            self._look_at(output)

    def collect(self, found: Found) -> None:
        """The step's numbers into `found`; after the first steps a note on the targets."""
        seen, self._seen = self._seen, _Seen(found.step)
        if seen.sent:
            found.late.append(Late(Transfer(seen.sent), seen.arrived))
        else:
            found.scalars |= seen.scalars()
        self._unfed -= 1
        if self._unfed == 0:
            self._recorder.event(Event(found.step, EventKind.NOT_RECORDED, _UNFED))
        if not self._looks:
            self._looks = -1
            self.loss_guess = self._guess
            if self._labels:
                shares = _most(self._labels, "most", "share", "classes")
                self._info["target_classes"] = {"seen": len(self._labels), **shares}
            self._recorder.note(self._info)

    def _read(self, given: Sequence[Tensor]) -> None:
        """Take the inputs of a call in."""
        batch: int | None = 0
        for tensor in given:
            values = looking.stored(tensor)
            sample = _sample(values)
            whole = sample if values is tensor else None
            batch = None if batch is None or whole is None else fingerprint(tensor, whole, batch)
            if sample is not None and values.is_floating_point():
                self._seen.add(sample)
            elif looking.device_readable(values) and len(self._seen.sent) < _SENT:
                # A copy: its memory may be filled with the next batch before the step's end.
                self._seen.sent.append(spread(values, _SAMPLED).clone())
        if given:
            self._unfed = -1
            self._seen.batches[batch] = None

    def _look_at(self, output: Any) -> None:
        """The first output of a step; on the first steps its gradient as well."""
        seen = self._seen
        floats = (t for t in looking.tensors_in(output) if t.is_floating_point() and t.ndim)
        tensor = next(floats, None)
        if seen.output or tensor is None or not looking.readable(tensor) or not tensor.numel():
            return
        if tensor.numel() > _LARGEST and not tensor.is_contiguous():
            return
        plain, place, operation = tensor.detach(), tensor.output_nr, last_operation(tensor.grad_fn)
        seen.output = _spread(plain) | _predictions(plain, probabilities=operation == "Sigmoid")
        if self._looks <= 0 or tensor.grad_fn is None:
            return
        self._looks -= 1
        if bounds := RANGES.get(operation):
            self._info["output_activation"] = operation
        given, rows = _floats(spread(plain.reshape(-1), _SAMPLED)), _floats(_rows(plain))

        def take(gradients: Sequence[Tensor | None]) -> None:
            try:
                gradient = gradients[place]
                if gradient is not None and looking.readable(gradient) and seen is self._seen:
                    gradient = gradient.detach()
                    self._info["targets"] += _targets(seen.step, given, gradient, bounds)
                    self._labels += _labels(gradient)
                    self._guess = self._guess or guess(rows, _floats(_rows(gradient)))
            except Exception as error:  # Autograd calls this: it must not reach the training.
                text = f"the targets are not recorded: {error!r}"
                self._recorder.event(Event(seen.step, EventKind.NOT_RECORDED, text))

        tensor.grad_fn.register_prehook(take)


def _in_training_mode(model: nn.Module) -> bool:
    """Whether it was left in training mode and has layers that act otherwise then.

    Where only single layers are in training mode, somebody wanted it (Monte-Carlo dropout).
    """
    return model.training and any(
        layer.training and (isinstance(layer, _BatchNorm) or drops(layer))
        for layer in model.modules()
    )


# -- inputs --------------------------------------------------------------------------------------


def _sample(tensor: Tensor) -> NDArray[Any] | None:
    """Evenly spread elements; None where the memory is not ours to read."""
    plain = type(tensor) in looking.PLAIN and tensor.layout is torch.strided and tensor.is_cpu
    return as_array(spread(tensor, _SAMPLED)) if plain and tensor.dtype in _READ else None


def fingerprint(tensor: Tensor, sample: NDArray[Any], before: int = 0) -> int | None:
    """32 bits of shape, type and sample of a tensor, chained to those before.

    None where next to nothing was seen of it but zeros: two batches of words, one-hot, look alike
    then.
    """
    if len(sample) < tensor.numel() and np.count_nonzero(sample) < _LEAST_SEEN:
        return None
    kind = zlib.crc32(f"{tuple(tensor.shape)}{tensor.dtype}".encode(), before)
    return zlib.crc32(sample.tobytes(), kind)


# -- outputs -------------------------------------------------------------------------------------

_ROWS, _COLUMNS, _PLACES, _MANY = 64, 64, 16, 256
"""Rows, columns and places of a picture that are looked at; classes of which fewer rows will do."""


@np.errstate(all="ignore")
def _spread(output: Tensor) -> dict[str, float]:
    """RMS of the output, and how far rows of a batch differ, relative to it; if it is finite."""
    table = output if len(output) > 1 or output.ndim < 3 else output[0]
    flat = table.reshape(len(table), -1)
    rows, columns = -(-flat.shape[0] // _ROWS), -(-flat.shape[1] // _COLUMNS)
    seen = _floats(flat[::rows, ::columns])
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


def _predictions(output: Tensor, *, probabilities: bool) -> dict[str, float]:
    """The class that is predicted most, its share, and how many are predicted at all."""
    table = _rows_of_classes(output, _ROWS)
    table = table[:: 1 if table.shape[1] < _MANY else 4]
    if len(table) < 2:
        return {}
    if table.shape[1] == 1:
        predicted = (table[:, 0] > (0.5 if probabilities else 0.0)).int()
    else:
        predicted = table.argmax(dim=1)
    names = ("predicted_class", "predicted_share", "predicted_classes")
    return _most(predicted.tolist(), *names)


def _most(classes: Sequence[int], *names: str) -> dict[str, float]:
    """The class that comes most, its share, and how many different ones there are."""
    counts = Counter(classes)
    most, times = counts.most_common(1)[0]
    return dict(zip(names, (most, times / len(classes), len(counts)), strict=True))


# -- targets -------------------------------------------------------------------------------------

_LABELLED, _FEW = 1024, 8
"""Rows in which the classes of targets are, and rows that tell the kind of loss."""


def _floats(tensor: Tensor) -> Floats:
    return as_array(tensor).astype(np.float64)


def _rows(tensor: Tensor) -> Tensor:
    """The first eight rows of the last dimension."""
    return tensor.reshape(-1, tensor.shape[-1])[:_FEW]


def _targets(
    step: int, given: Floats, gradient: Tensor, bounds: tuple[float, float] | None
) -> Iterator[list[float | None]]:
    """What the targets are if the loss is a squared error: for each usual scale of it a line.

    With a loss of c · Σ(output − target)² the gradient is 2c · (output − target): the scale gives
    the targets, and the loss itself, by which whoever knows it can tell which scale is right.

    A line is step, loss, then of the targets RMS, least, largest, and the share that is out of the
    output's range (None where it has none).
    """
    norm, size = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)), gradient.numel()
    seen = _floats(spread(gradient.reshape(-1), _SAMPLED))
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
    if table.shape[1] == 1:
        wanted = (table[:, 0] < 0).int()
    else:
        negative = (table < 0)[(table != 0).any(dim=1)]  # ignored rows have no gradient
        if (negative.sum(dim=1) != 1).any():
            return []
        wanted = negative.int().argmax(dim=1)
    return wanted.tolist()
