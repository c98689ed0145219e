"""Every step: size and finiteness of what the model is fed, and the mode it is evaluated in."""

import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.device.engine import joined_output
from gradwatch.record.device.launches import MOST_LAUNCHES
from gradwatch.record.device.torch_engine import output_sums
from gradwatch.record.parameters import networks_of
from gradwatch.record.rows import PendingRows, Reading, ReadyRows
from gradwatch.record.signals.hooks import (
    HookedSignal,
    ModelContext,
    layers,
    root_is_compiled,
)
from gradwatch.record.signals.modes import TrainingMode
from gradwatch.record.signals.tensors import (
    OUTPUT_LAUNCHES,
    device_readable,
    fingerprint,
    readable,
    sampled_moments,
    spread,
    stored,
    tensors_in,
)
from gradwatch.stats import Family

_READ = ["count", "nan", "pos_inf", "neg_inf", "norm", "abs_max"]
_DEVICE_SAMPLE = 16_384
_NOTHING: int | None = 0


class InputTotals:
    """All inputs of a step, and the calls of the model without gradients before it."""

    def __init__(self) -> None:
        self.evaluations = self.evaluations_in_training = 0
        self.fingerprint: int | None = 0
        """Of all batches that were fed, in order; None where one cannot be read."""
        self._batches: set[int] = set()
        self._seen = False
        self._squares = self._largest = 0.0
        self._finite = self._bad = 0.0

    def fed(self, batch: int | None) -> None:
        """The fingerprint of a batch; fed several times within a step (LBFGS) it counts once."""
        if batch is None or self.fingerprint is None:
            self.fingerprint = None
        elif batch not in self._batches:
            self._batches.add(batch)
            self.fingerprint = zlib.crc32(batch.to_bytes(4, "little"), self.fingerprint)

    def add(self, count: float, bad: float, norm: float, largest: float) -> None:
        """A tensor or a stretch of one: the norm and the largest magnitude of its finite part."""
        self._seen = True
        self._bad += bad
        if finite := count - bad:
            self._finite += finite
            self._squares += norm * norm
            self._largest = max(self._largest, largest)

    def scalars(self) -> dict[str, float]:
        """RMS, largest magnitude and non-finite count of float inputs; what was not seen is not."""
        scalars: dict[str, float] = {}
        if self._seen:
            rms = math.sqrt(self._squares / self._finite) if self._finite else math.nan
            scalars = {
                "input_rms": rms,
                "input_abs_max": self._largest if self._finite else math.nan,
                "input_nonfinite": self._bad,
            }
        if self.fingerprint:
            scalars["batch_fingerprint"] = self.fingerprint
        if self.evaluations:
            scalars["evaluations"] = self.evaluations
            scalars["evaluations_in_training"] = self.evaluations_in_training
        return scalars


class Inputs(HookedSignal):
    """RMS, largest magnitude and non-finite elements of the float inputs of the model.

    Of a tensor with more than 16,384 elements four stretches of 4,096 are read; on an accelerator
    16,384 evenly spread ones, and the numbers come later. All micro-batches of a step are looked
    at, since nothing else shows that a batch was bad; on an accelerator as long as launches last.
    Of sparse inputs the stored values are.

    A fingerprint of the bits of all inputs, whole numbers as well, tells whether two batches are
    the same; nothing of the data is kept. There is none of what lies on a device.

    Of several networks each one's are, but for what another of them has made. Programs may call
    another method of the model than its forward, or feed it with objects of their own. Then what
    counts is the input of the first layer with weights that is called.
    """

    what = "inputs"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._totals = InputTotals()
        self._device_counts: list[int] = []
        """Elements looked at of each input on an accelerator."""
        self._device_parts: list[Tensor] = []
        """What the engine says of each."""
        self._fed = False
        """Whether the model itself was ever fed with tensors that can be read."""
        self._first: ref[nn.Module] | None = None
        """The layer whose input counts where the model's own does not."""
        self._in_training_mode = TrainingMode()

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Listen to the model's inputs on steps on which something is recorded."""
        self._totals = InputTotals()
        self._device_counts, self._device_parts = [], []
        self._step = step
        model = self._model()
        if not due:
            self._unhook()
            return
        networks = networks_of(model) if model is not None else []
        known = self._fed or self._first is not None
        if known and len(self._handles) > len(networks) + 1 - self._fed:
            self._unhook()  # by now fewer will do
        if model is None or self._handles or self._may_not_hook:
            return
        if any(root_is_compiled(network) for network in networks):
            return
        for network in networks:
            self._hook_before(network, self._look)
        if not self._fed:
            for module in (
                _with_weights(model, self.context) if self._first is None else (self._first(),)
            ):
                if module is not None:
                    self._hook_before(module, self._look_at_layer)

    def _look(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module is not self._model():  # one of several: what another of them made is no data
            args, kwargs = _without_graph(args), _without_graph(kwargs)
        if not torch.is_grad_enabled():
            self._evaluated(module)
        elif self._read((args, kwargs)):
            self._fed = True

    def _look_at_layer(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._fed:
            return
        if self._first is None and torch.is_grad_enabled():
            self._first = ref(module)
        if self._first is None or self._first() is not module:
            return
        if torch.is_grad_enabled():
            self._read((args, kwargs))
        elif (model := self._model()) is not None:
            self._evaluated(model)

    def _evaluated(self, model: nn.Module) -> None:
        self._totals.evaluations += 1
        self._totals.evaluations_in_training += self._in_training_mode(model)

    def _read(self, given: Any) -> bool:
        """Take in the float tensors; whether there were tensors of any kind that can be read."""
        seen, batch = False, _NOTHING
        for tensor in tensors_in(given):
            values = stored(tensor)
            batch = batch if batch is None else fingerprint(tensor, batch)
            if not tensor.is_floating_point():
                seen = True
            elif readable(values):
                seen = True
                self._add(values)
            elif device_readable(values):
                seen = True
                self._add_on_device(values)
        if batch != _NOTHING:
            self._totals.fed(batch)
        return seen

    def _add(self, tensor: Tensor) -> None:
        if tensor.numel():
            # As tuples: between a user's data and his model numpy's sums of four numbers are dear.
            for count, nan, above, below, norm, top in sampled_moments(tensor)[_READ].tolist():
                self._totals.add(count, nan + above + below, norm, top)

    def _add_on_device(self, tensor: Tensor) -> None:
        if len(self._device_counts) * OUTPUT_LAUNCHES >= MOST_LAUNCHES:
            return
        spans = self.launch_times.begin([tensor.device])
        sample = spread(tensor, _DEVICE_SAMPLE)
        self._device_counts.append(sample.numel())
        self._device_parts.append(output_sums(sample))
        self.launch_times.end(self._step, spans)

    def collect(self, step: int) -> Iterable[Reading]:
        """No rows; but inputs on accelerators are sent off, with those on the CPU if any."""
        if not self._device_parts or self.failure is not None:
            return ()
        totals, self._totals = self._totals, InputTotals()
        counts, self._device_counts = self._device_counts, []
        parts, self._device_parts = self._device_parts, []

        def finish(arrived: list[NDArray[np.float64]]) -> ReadyRows:
            for count, numbers in zip(counts, arrived, strict=True):
                _, bad, top, _, squares = joined_output(numbers).tolist()
                totals.add(count, bad, math.sqrt(squares), top)
            return ReadyRows(scalars=totals.scalars())

        self._pending.append(PendingRows(parts, finish))
        return ()

    def scalars(self, step: int) -> dict[str, float]:
        """Nothing where no forward with gradients was seen, or where the numbers come later."""
        totals, self._totals = self._totals, InputTotals()
        return {} if self.failure is not None else totals.scalars()


def _without_graph(given: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(given) if tensor.grad_fn is None]


def _with_weights(model: nn.Module, context: ModelContext) -> Iterator[nn.Module]:
    """The layers any of which may be the first to be called."""
    for layer in layers(model, context.watched):
        module = None if layer.hidden else layer.module
        if module is not None and next(module.parameters(), None) is not None:
            yield module
