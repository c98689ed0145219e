"""Every step: which module gives the first NaN or Inf, and the mode of the norm layers."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.record.device.transfer import wide
from gradwatch.record.rows import PendingRows, Reading, ReadyRows
from gradwatch.record.signals.hooks import HookedSignal, ModelContext, WatchedLayer, layers
from gradwatch.record.signals.tensors import (
    PROBED,
    device_readable,
    first_floating,
    nonfinite,
    readable,
    spread,
)
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family, State, row_dtype

_HARMLESS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)
"""Modules that give finite numbers for finite numbers: they can pass a NaN on, not make one."""
_RECORDED_WITH = (Family.ACT, Family.WEIGHT)
"""On the steps of these families every probed layer gets a row, eventful or not."""
_INFINITY = float("inf")

Hits = dict[int, tuple[int, int]]
"""Layers by index: non-finite elements of their output, and of their first input."""


class Probe(HookedSignal):
    """Looks at up to 4,096 elements of each output; at all, and at the input, after a hit.

    On an accelerator it looks at 4,096 of the output and of the input, and what was found comes
    later: that there was something, not how much.
    """

    what = "non-finite probes"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._layers: list[WatchedLayer] = []
        self._norms: list[WatchedLayer] = []
        self._hits: Hits = {}
        self._settled: Hits = {}
        """Hits of forwards whose backward has run: they belong to the step that comes or fails."""
        self._device = DeviceProbe()
        self._modes: dict[str, bool] = {}
        self._all_due = False
        self._modes_changed = False

    def attach(self) -> None:
        """Find the layers; the hooks come with `arm`."""
        model = self._model()
        if model is None:
            return
        all_layers = layers(model, self.context.watched)
        self._layers = [layer for layer in all_layers if not isinstance(layer.module, _HARMLESS)]
        self._norms = [layer for layer in all_layers if "Norm" in layer.kind]
        self._modes = {layer.name: layer.module.training for layer in self._norms if layer.module}

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Put the hooks up where the coming step is to be probed, take them down where not."""
        self._step = step
        self._all_due = any(family in due for family in _RECORDED_WITH)
        if Family.PROBE not in due:
            self._unhook()
        elif not self._handles and not self._may_not_hook:
            for index, layer in enumerate(self._layers):
                if (module := layer.module) is not None and not layer.hidden:
                    self._hook_after_lightly(module, partial(self._look, index))

    def _look(self, index: int, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        tensor = output if isinstance(output, Tensor) else first_floating(output)
        if tensor is None:
            return
        if not readable(tensor):
            if device_readable(tensor):
                self._device.look(index, len(self._layers), tensor, first_floating(args))
            return
        after_hit = bool(self._hits)
        if nonfinite(tensor, whole=after_hit):
            given = first_floating(args)
            bad = nonfinite(given, whole=True) if given is not None and readable(given) else 0
            self._hits[index] = (nonfinite(tensor, whole=True), bad)

    def backward(self) -> None:
        """What is seen from now on may belong to another step."""
        if self._hits:
            self._settled = {**self._hits, **self._settled}
            self._hits = {}

    def collect(self, step: int) -> Iterator[Reading]:
        """Rows of the layers with something to say; of all of them on recorded steps."""
        self._read_modes(step)
        everything = self._all_due or self._modes_changed
        self.backward()
        if not (everything or self._settled or self._device.seen):
            return
        self._modes_changed = False
        yield from self._readings(everything)

    def skipped(self, step: int) -> Iterator[Reading]:
        """Rows of a step that a scaler left out, told when the forward of the next has run."""
        if self._settled or self._device.seen:
            yield from self._readings(everything=False)

    def _readings(self, everything: bool) -> Iterator[Reading]:
        hits, self._settled = self._settled, {}
        looks = self._device.take()
        if self.failure is not None:
            return
        if looks.seen:
            self._send_off(looks, everything)
        wanted = range(len(self._layers)) if everything else sorted(hits)
        on_cpu = [index for index in wanted if index not in looks.seen]
        if on_cpu:
            modes = {index: self._training(index) for index in on_cpu}
            yield self._rows(on_cpu, hits, modes, State.MEASURED)

    def _send_off(self, looks: "DeviceLooks", everything: bool) -> None:
        # The modes of this step: a model may be in evaluation when the numbers arrive.
        modes = {index: self._training(index) for index in looks.seen}

        def finish(arrived: list[NDArray[np.float64]]) -> ReadyRows:
            hits = looks.hits(arrived)
            wanted = sorted(looks.seen if everything else hits)
            rows = [self._rows(wanted, hits, modes, State.SAMPLED)] if wanted else []
            return ReadyRows(rows)

        self._pending.append(PendingRows(looks.slots, finish))

    def _training(self, index: int) -> float:
        module = self._layers[index].module
        return np.nan if module is None else float(module.training)

    def _rows(
        self, wanted: Sequence[int], hits: Hits, modes: dict[int, float], state: State
    ) -> Reading:
        rows = np.zeros(len(wanted), row_dtype(Family.PROBE))
        subjects = []
        for row, index in zip(rows, wanted, strict=True):
            layer = self._layers[index]
            row["probe_nonfinite"], row["probe_input_nonfinite"] = hits.get(index, (0, 0))
            row["probe_training"] = modes[index]
            subjects.append(self.context.subject(layer.name, layer.kind))
        return Family.PROBE, subjects, rows, np.full(len(wanted), state, np.uint8)

    def _read_modes(self, step: int) -> None:
        changed: dict[str, bool] = {}
        for layer in self._norms:
            module = layer.module
            if module is not None and module.training is not self._modes[layer.name]:
                changed[layer.name] = self._modes[layer.name] = module.training
        for training in (True, False):
            names = [name for name, mode in changed.items() if mode is training]
            if names:
                mode = "training" if training else "evaluation"
                text = (
                    f"{len(names)} norm layers went to {mode} mode, first {names[0] or 'the model'}"
                )
                data = {"layers": names, "training": training}
                self._events.append(Event(step, EventKind.MODE_CHANGED, text, names[0], data))
                self._modes_changed = True

    def detach(self) -> None:
        """Take the hooks off and forget the hits."""
        super().detach()
        self._hits.clear()
        self._settled.clear()
        self._device = DeviceProbe()


# -- on an accelerator ---------------------------------------------------------------------------

DeviceSeen = dict[int, tuple[torch.device, bool]]
"""Layers that were looked at: on which device, and whether their input was too."""


class DeviceLooks(NamedTuple):
    """What was looked at in one step."""

    seen: DeviceSeen
    devices: list[torch.device]
    slots: list[Tensor]
    """Of each device."""

    def hits(self, arrived: Sequence[NDArray[np.float64]]) -> Hits:
        """Layers whose output was not finite: 1, and 1 where their input was not either."""
        bad = [~np.isfinite(part) for part in arrived]
        hits = {}
        for index, (device, input_seen) in self.seen.items():
            slots = bad[self.devices.index(device)]
            if slots[2 * index]:
                hits[index] = 1, int(input_seen and slots[2 * index + 1])
        return hits


class DeviceProbe:
    """Two slots per layer and device: its output, its first input.

    The largest magnitude of a sample is one operation, overflows for no finite number, and is NaN
    or infinite exactly where an element of the sample is. It goes into a slot of ours; the slots of
    a step are sent when the optimizer steps.
    """

    def __init__(self) -> None:
        self._slots: dict[torch.device, tuple[Tensor, Sequence[Tensor]]] = {}
        self.seen: DeviceSeen = {}

    def look(self, index: int, layers: int, output: Tensor, given: Tensor | None) -> None:
        """Layer `index` of `layers` has given this output for this input."""
        device = output.device
        if device not in self._slots:
            room = torch.zeros(2 * layers, dtype=wide(device), device=device)
            self._slots[device] = room, room.unbind(0)
        slots = self._slots[device][1]
        before = self.seen.get(index)
        _mark(output, slots[2 * index], again=before is not None)
        input_seen = before is not None and before[1]
        if given is not None and given.device == device and device_readable(given):
            _mark(given, slots[2 * index + 1], again=input_seen)
            input_seen = True
        self.seen[index] = device, input_seen

    def take(self) -> DeviceLooks:
        """What was seen since the last time."""
        seen, self.seen = self.seen, {}
        devices = list(dict.fromkeys(device for device, _ in seen.values()))
        return DeviceLooks(seen, devices, [self._slots[device][0] for device in devices])


def _mark(tensor: Tensor, slot: Tensor, *, again: bool) -> None:
    sample = spread(tensor, PROBED)
    if again:  # a layer called twice: what the first call gave must not be lost
        top = torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype)
        torch.maximum(slot, top, out=slot)
    else:
        torch.linalg.vector_norm(sample, _INFINITY, dtype=slot.dtype, out=slot)
