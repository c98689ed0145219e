"""Every step: which module gives the first NaN or Inf, and the mode of norm and dropout layers."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwatch.record.device.launches import LaunchLimit, LaunchSpan, LaunchTimes
from gradwatch.record.device.transfer import wide
from gradwatch.record.rows import Parts, PendingRows, Reading, ReadyRows
from gradwatch.record.signals.hooks import (
    HookedSignal,
    ModelContext,
    WatchedLayer,
    layers,
    repeated_blocks,
)
from gradwatch.record.signals.modes import trainable_dropouts
from gradwatch.record.signals.tensors import (
    PROBED,
    device_readable,
    first_floating,
    nonfinite,
    readable,
    spread,
    stored,
    tensors_in,
)
from gradwatch.run import Event, EventKind, block_of
from gradwatch.stats import Family, State, row_dtype

_HARMLESS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.Tanh, nn.Sigmoid),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Modules that give finite numbers for finite numbers: they can pass a NaN on, not make one."""
_RECORDED_WITH = (Family.ACT, Family.WEIGHT)
"""On the steps of these families every probed layer gets a row, eventful or not."""
_CLOSELY = 16
"""Recorded steps with a look at every layer on a device after something was not finite."""

_RESCAN = 8
_UNREAD = -1
Hits = dict[int, tuple[int, int]]
"""Layers by index: non-finite elements of their output, and of their first input if it was read.

In the order of their calls.
"""


class Probe(HookedSignal):
    """Looks at up to 4,096 elements of each output; at all, and at the input, after a hit.

    On an accelerator it looks at 4,096 of the output and of the input, and what was found comes
    later: that there was something, not how much. A look is a launch there, so it looks at less:

    - at the first micro-batch of a step that comes through a layer. A NaN of a later one shows in
      the loss and the gradients. On the CPU a look is cheap, and all micro-batches are looked at;
    - between the steps on which everything is recorded, at the repeated blocks of the model and the
      layers outside of them, once a step has shown which blocks are called as modules.

    Once an output was not finite, all layers are looked at for some steps: the row of the block
    says it at once, those of its layers follow. Once a gradient or the loss was not, all
    micro-batches are too.
    """

    what = "non-finite probes"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._layers: list[WatchedLayer] = []
        """The layers, and behind them the blocks."""
        self._count = 0
        """How many of them are layers."""
        self._norms: list[WatchedLayer] = []
        self._hooked: Sequence[int] = ()
        self._surveyed = False
        """Whether it is known which blocks are called."""
        self._hits: Hits = {}
        self._settled: Hits = {}
        """Hits of forwards whose backward has run: they belong to the step that comes or fails."""
        self._device = DeviceProbe()
        self._modes: dict[str, bool] = {}
        self._dropouts: list[WatchedLayer] = []
        self._mode_rows = 0
        self._all_due = False
        self._modes_changed = False
        self._closely = 0
        """Recorded steps still to come on which all layers on devices are looked at."""
        self._in_all_batches = 0
        """And those on which all micro-batches are."""
        self._by_blocks: tuple[int, list[int]] = 0, []
        """What to look at instead of all layers; and how much was known when it was made out."""
        self._scalars: dict[str, float] = {}

    def attach(self) -> None:
        """Find the layers; the hooks come with `arm`."""
        model = self._model()
        if model is None:
            return
        all_layers = layers(model, self.context.watched)
        probed = [layer for layer in all_layers if not isinstance(layer.module, _HARMLESS)]
        self._layers, self._count = probed + repeated_blocks(model, probed), len(probed)
        self._norms = [layer for layer in all_layers if "Norm" in layer.kind]
        self._modes = {layer.name: layer.module.training for layer in self._norms if layer.module}

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Put the hooks up where the coming step is to be probed, take them down where not."""
        self._step = step
        self._all_due = any(family in due for family in _RECORDED_WITH)
        if Family.PROBE not in due:
            self._unhook()
            return
        if self._device.layers or not self._hooked:
            self._device.begin(step, self.launch_times)
        wanted = self._wanted()
        if self._may_not_hook or (self._handles and wanted == self._hooked):
            return
        self._unhook()
        self._hooked = wanted
        for index in wanted:
            layer = self._layers[index]
            if (module := layer.module) is not None and not layer.hidden:
                self._hook_after_lightly(module, partial(self._look, index))

    def _wanted(self) -> Sequence[int]:
        """What is looked at on the coming step: on devices blocks instead of layers if possible."""
        if not self._device.layers:
            return range(self._count)
        if self._closely or self._all_due or not self._surveyed:
            return range(len(self._layers))  # blocks only to see whether they are called
        device = self._device
        known = len(device.layers) + len(device.blocks)
        if self._by_blocks[0] != known:
            blocks = {self._layers[index].name for index in device.blocks}
            covered = {i for i in device.layers if block_of(self._layers[i].name) in blocks}
            rest = [index for index in range(self._count) if index not in covered]
            self._by_blocks = known, rest + sorted(device.blocks)
        return self._by_blocks[1]

    def _look(self, index: int, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            self.context.micro_batch()  # maybe the first run of a checkpoint
            return
        tensor = output if isinstance(output, Tensor) else first_floating(output)
        if tensor is None:
            return
        if not readable(tensor):
            if device_readable(tensor):
                self._look_on_device(index, tensor, args)
            return
        after_hit = bool(self._hits)
        if nonfinite(tensor, whole=after_hit):
            self._hits[index] = (nonfinite(tensor, whole=True), _bad_inputs(args))

    def _look_on_device(self, index: int, output: Tensor, args: Any) -> None:
        if index >= self._count:
            self._device.blocks.add(index)
            if len(self._hooked) == len(self._layers):
                return  # its layers are looked at
        else:
            self._device.layers.add(index)
        batch = None if self._in_all_batches else self.context.micro_batch()
        self._device.look(index, output, first_floating(args), batch)

    def backward(self) -> None:
        """What is seen from now on may belong to another step."""
        super().backward()
        if self._hits:
            self._settled = {**self._hits, **self._settled}
            self._hits = {}

    def alarm(self) -> None:
        """Look at everything for a while."""
        self._closely = self._in_all_batches = _CLOSELY

    def collect(self, step: int) -> Iterator[Reading]:
        """Rows of the layers with something to say; of all of them on recorded steps."""
        if self._device.seen:
            self._closely = max(self._closely - 1, 0)
            self._in_all_batches = max(self._in_all_batches - 1, 0)
            self._surveyed |= len(self._hooked) == len(self._layers)
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
        seen, parts, hits_of = self._device.take()
        if self.failure is not None:
            return
        if seen:
            finish = self._finisher(seen, hits_of, everything)
            self._pending.append(PendingRows(parts, finish))
        wanted = range(self._count) if everything else sorted(hits)
        self._scalars = _unread(hits)
        unseen = [index for index in wanted if index not in seen]
        # Came too late in this step, or lie in blocks that were looked at instead.
        late = self._device.limit.refused | self._device.layers.difference(self._hooked)
        if everything and (model := self._model()) is not None:
            yield from self._dropout_modes(model)
        for state, indices in (
            (State.MEASURED, [index for index in unseen if index not in late]),
            (State.NOT_SAMPLED, [index for index in unseen if index in late]),
        ):
            if indices:
                modes = {index: self._training(index) for index in indices}
                yield self._rows(indices, hits, modes, state)

    def _finisher(
        self, seen: set[int], hits_of: Callable[[Parts], Hits], everything: bool
    ) -> Callable[[Parts], ReadyRows]:
        # The modes of this step: a model may be in evaluation when the numbers arrive.
        modes = {index: self._training(index) for index in seen}

        def finish(arrived: Parts) -> ReadyRows:
            hits = hits_of(arrived)
            if hits:
                self._closely = _CLOSELY
            wanted = sorted(hits.keys() | {i for i in seen if everything and i < self._count})
            rows = [self._rows(wanted, hits, modes, State.SAMPLED)] if wanted else []
            return ReadyRows(rows, _unread(hits))

        return finish

    def scalars(self, step: int) -> dict[str, float]:
        """Whether the first layer with NaN or Inf was fed with something that cannot be read."""
        scalars, self._scalars = self._scalars, {}
        return scalars

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
            bad, bad_inputs = hits.get(index, (0, 0))
            row["probe_nonfinite"], row["probe_input_nonfinite"] = bad, max(bad_inputs, 0)
            row["probe_training"] = modes[index]
            subjects.append(self.context.subject(layer.name, layer.kind))
        return Family.PROBE, subjects, rows, np.full(len(wanted), state, np.uint8)

    def _dropout_modes(self, model: nn.Module) -> Iterator[Reading]:
        """Dropout layers, which have no row otherwise, and their mode."""
        if self._mode_rows % _RESCAN == 0:  # parts may have been frozen or set free meanwhile
            self._dropouts = list(trainable_dropouts(model))
        self._mode_rows += 1
        found = [(layer, layer.module) for layer in self._dropouts]
        if not found:
            return
        rows = np.zeros(len(found), row_dtype(Family.PROBE))
        rows["probe_training"] = [module is not None and module.training for _, module in found]
        subjects = [self.context.subject(layer.name, layer.kind) for layer, _ in found]
        yield Family.PROBE, subjects, rows, np.full(len(found), State.MEASURED, np.uint8)

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


def _bad_inputs(args: Any) -> int:
    """Non-finite elements of a layer's first input; whole numbers are always finite."""
    given = first_floating(args)
    if given is None:
        return 0 if next(tensors_in(args), None) is not None else _UNREAD
    values = stored(given)
    return nonfinite(values, whole=True) if readable(values) else _UNREAD


def _unread(hits: Hits) -> dict[str, float]:
    first = next(iter(hits.values()), (0, 0))
    return {"probe_input_unread": 1.0} if first[1] == _UNREAD else {}


# -- on an accelerator ---------------------------------------------------------------------------

LookKey = tuple[int, bool]
"""A layer, and whether it was its input that was looked at."""


class DeviceProbe:
    """Looks at layers on accelerators: which, how often, and the numbers that are not here yet.

    The largest magnitude of a sample is one operation, overflows for no finite number, and is NaN
    or infinite exactly where an element of the sample is.
    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        """Layers that were looked at since the last `take`."""
        self.layers: set[int] = set()
        """Layers that have ever been met on a device, by index."""
        self.blocks: set[int] = set()
        """Blocks that have been, and so are called as modules."""
        self.limit: LaunchLimit[int] = LaunchLimit()
        self._tops: dict[torch.device, list[tuple[LookKey, Tensor]]] = {}
        self._batches: dict[int, int] = {}
        """The micro-batch in which each was looked at on this step."""
        self._unread: set[int] = set()
        """Layers seen whose input cannot be looked at."""
        self._step, self._times = 0, LaunchTimes()
        self._spans: dict[torch.device, list[LaunchSpan]] = {}

    def begin(self, step: int, times: LaunchTimes) -> None:
        """Looks now belong to this step."""
        self._step, self._times = step, times
        self._batches.clear()
        self._spans.clear()
        self.limit.begin()

    def look(self, index: int, output: Tensor, given: Tensor | None, batch: int | None) -> None:
        """Layer `index` has given this output for this input.

        It counts in the first micro-batch of a step in which it does, or always without a number.
        """
        if batch is not None and self._batches.setdefault(index, batch) != batch:
            return
        if not self.limit.allows(index, 2):
            return
        device = output.device
        first = device not in self._spans
        if first:
            self._spans[device] = self._times.begin([device])
        tops = [((index, False), _top(output))]
        if given is not None:
            values = stored(given)
            if values.device == device and device_readable(values):
                tops.append(((index, True), _top(values)))
            else:
                self._unread.add(index)
        self._tops.setdefault(device, []).extend(tops)
        self.seen.add(index)
        if first:
            self._times.end(self._step, self._spans[device])
        else:  # all looks are of one size: one is timed and stands for the others
            for span in self._spans[device]:
                span.times += 1

    def take(self) -> tuple[set[int], list[Tensor], Callable[[Parts], Hits]]:
        """What was seen since the last time: layers, numbers on their way, what they will mean."""
        seen, self.seen = self.seen, set()
        unread, self._unread = self._unread, set()
        tops, self._tops = self._tops, {}
        keys = [[key for key, _ in found] for found in tops.values()]

        def hits(arrived: Parts) -> Hits:
            bad = {
                key
                for on_one, part in zip(keys, arrived, strict=True)
                for key, finite in zip(on_one, np.isfinite(part), strict=True)
                if not finite
            }
            return {
                i: (1, _UNREAD if i in unread else int((i, True) in bad))
                for i, of_input in sorted(bad)
                if not of_input
            }

        return seen, [torch.stack([top for _, top in found]) for found in tops.values()], hits


def _top(tensor: Tensor) -> Tensor:
    sample, kind = spread(tensor, PROBED), wide(tensor.device)
    top: Tensor = torch.linalg.vector_norm(sample, float("inf"), dtype=kind)
    return top
