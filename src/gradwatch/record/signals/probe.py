"""Every step: which module gives the first NaN or Inf, and the mode of the norm layers."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwatch.record.instrument import Departure, Found, Reading
from gradwatch.record.signals.far import is_far
from gradwatch.record.signals.far_probe import FarProbe, Looks
from gradwatch.record.signals.hooks import Hooks, Stage
from gradwatch.record.signals.modules import Layer, first_floating, layers, subject
from gradwatch.record.signals.reading import nonfinite, readable
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


class Probe:
    """Looks at up to 4,096 elements of each output; at all, and at the input, after a hit.

    On an accelerator it looks at 4,096 of the output and of the input, and what was found comes
    later: that there was something, not how much.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Collection[str] = (),
        stage: Stage | None = None,
    ) -> None:
        self._model = ref(model)
        self._names = names
        self._hooks = Hooks("non-finite probes", stage or Stage())
        self._layers: list[Layer] = []
        self._norms: list[Layer] = []
        self._hits: dict[int, tuple[int, int]] = {}
        self._settled: dict[int, tuple[int, int]] = {}
        """Hits of forwards whose backward has run: they belong to the step that comes or fails."""
        self._far = FarProbe()
        self._departures: list[Departure] = []
        self._modes: dict[str, bool] = {}
        self._events: list[Event] = []
        self._full = False
        self._changed = False

    @property
    def spent(self) -> float:
        return self._hooks.spent

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._hooks.spent = seconds

    def attach(self) -> None:
        """Find the layers; the hooks come with `arm`."""
        model = self._model()
        if model is None:
            return
        found = layers(model, self._names)
        self._layers = [one for one in found if not isinstance(one.module, _HARMLESS)]
        self._norms = [one for one in found if "Norm" in one.kind]
        self._modes = {one.name: one.module.training for one in self._norms if one.module}

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Put the hooks up where the coming step is to be probed, take them down where not."""
        self._hooks.step = step
        self._full = any(family in due for family in _RECORDED_WITH)
        if Family.PROBE not in due:
            self._hooks.clear()
        elif not self._hooks and not self._hooks.closed:
            for index, layer in enumerate(self._layers):
                if (module := layer.module) is not None and not layer.hidden:
                    self._hooks.after_plain(module, partial(self._look, index))

    def _look(self, index: int, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        tensor = output if isinstance(output, torch.Tensor) else first_floating(output)
        if tensor is None:
            return
        if not readable(tensor):
            if is_far(tensor):
                self._far.look(index, len(self._layers), tensor, first_floating(args))
            return
        after_hit = bool(self._hits)
        found = nonfinite(tensor, whole=after_hit)
        if found:
            given = first_floating(args)
            bad = nonfinite(given, whole=True) if given is not None and readable(given) else 0
            self._hits[index] = (nonfinite(tensor, whole=True), bad)

    def collect(self, step: int) -> Iterator[Reading]:
        """Rows of the layers with something to say; of all of them on recorded steps."""
        self._read_modes(step)
        everything = self._full or self._changed
        self.backward()
        if not (everything or self._settled or self._far.seen):
            return
        self._changed = False
        yield from self._told(everything)

    def backward(self) -> None:
        """A backward has run: what is seen from now on may belong to another step."""
        if self._hits:
            self._settled = {**self._hits, **self._settled}
            self._hits = {}

    def skipped(self, step: int) -> Iterator[Reading]:
        """Rows of a step that a scaler left out, told when the forward of the next has run."""
        if self._settled or self._far.seen:
            yield from self._told(everything=False)

    def _told(self, everything: bool) -> Iterator[Reading]:
        hits, self._settled = self._settled, {}
        far = self._far.take()
        if self._hooks.failure is not None:
            return
        if far.seen:
            self._depart(far, everything)
        wanted = range(len(self._layers)) if everything else sorted(hits)
        near = [index for index in wanted if index not in far.seen]
        if near:
            modes = {index: self._training(index) for index in near}
            yield self._rows(near, hits, modes, State.MEASURED)

    def _depart(self, far: Looks, everything: bool) -> None:
        modes = {index: self._training(index) for index in far.seen}

        def finish(arrived: list[NDArray[np.float64]]) -> Found:
            hits = far.hits(arrived)
            wanted = sorted(far.seen if everything else hits)
            return Found([self._rows(wanted, hits, modes, State.SAMPLED)] if wanted else [])

        self._departures.append(Departure(far.slots, finish))

    def departures(self, step: int) -> list[Departure]:
        """What the layers on accelerators have shown."""
        sent, self._departures = self._departures, []
        return sent

    def _training(self, index: int) -> float:
        module = self._layers[index].module
        return np.nan if module is None else float(module.training)

    def _rows(
        self,
        wanted: Iterable[int],
        found: dict[int, tuple[int, int]],
        modes: dict[int, float],
        state: State,
    ) -> Reading:
        wanted = list(wanted)
        rows = np.zeros(len(wanted), row_dtype(Family.PROBE))
        subjects = []
        for row, index in zip(rows, wanted, strict=True):
            layer = self._layers[index]
            row["probe_nonfinite"], row["probe_input_nonfinite"] = found.get(index, (0, 0))
            row["probe_training"] = modes[index]
            subjects.append(
                subject(layer.name, layer.kind, self._hooks.stage.order.get(layer.name))
            )
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
                self._changed = True

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        found, self._events = [*self._events, *self._hooks.events()], []
        return found

    def detach(self) -> None:
        self._hooks.remove()
        self._hits.clear()
        self._settled.clear()
        self._far.clear()
        self._departures.clear()
