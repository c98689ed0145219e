"""On full steps: moments of every layer's output, and what activation functions made of it.

All calls count that a backward comes through; in reentrant checkpoints the first of each layer.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS, measure_arrays, merge
from gradwatch.record import functions
from gradwatch.record.device import SAMPLE
from gradwatch.record.functions import Reading
from gradwatch.record.graph import AutogradWalker, Node, Sources, nodes_of
from gradwatch.record.layers import Layer
from gradwatch.record.looking import device_readable, first_floating, moments, readable, tensors_in
from gradwatch.record.tensors import spread
from gradwatch.record.transfer import Parts
from gradwatch.stats import Family, Stat, State
from gradwatch.stats.rows import empty_rows

LayerRows = tuple[list[Layer], NDArray[np.void], list[State]]
"""Layers, a row of each, and a state."""
_COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf")


@dataclass(slots=True, eq=False)
class LayerCall:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: Layer
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    record: NDArray[np.void] | None = None
    """The kernel's record of the output; None where it cannot be read, or is not here yet."""
    sample: Tensor | None = None
    """Of an output on a device some elements; they are measured when they have come over."""
    size: int = 0
    readings: list[tuple[str, Stat, Reading]] = field(default_factory=list)
    """The layers that feed the activation functions met on the way here, and what those did."""
    reached: bool = False

    def reach(self, gradients: Any) -> None:
        """Called by autograd when a gradient comes to the output: the call took part."""
        self.reached = True


class Activations:
    """Is told of the layers' calls on one step."""

    def __init__(self, owners: Mapping[int, str]) -> None:
        self._walker = AutogradWalker(owners, lambda _, inside: inside[-1:], self._read_function)
        self._calls: list[LayerCall] = []
        self._called: set[Layer] = set()
        self._readings: list[tuple[str, Stat, Reading]] = []

    def look(self, layer: Layer, given: Any, output: Any) -> None:
        """A layer has run."""
        tensor = first_floating(output)
        if not torch.is_grad_enabled() or tensor is None:
            return
        # Within a backward only checkpoints call layers: most of them for the second time.
        if layer in self._called and torch._C._current_graph_task_id() != -1:
            return
        self._called.add(layer)
        nodes = nodes_of(tensors_in(output))
        call = LayerCall(layer, bool(nodes))
        self._calls.append(call)
        if readable(tensor):
            call.record = moments(tensor)
        elif device_readable(tensor):
            call.sample, call.size = spread(tensor, SAMPLE).clone(), tensor.numel()
        # Activation functions between the layers before and this one, and this one if it is.
        self._readings = call.readings
        fed_by = self._walker.sources(nodes_of(tensors_in(given)))
        if layer.composite:
            self._walker.sources(nodes)
        for node in nodes:
            if not self._walker.has_seen(node):
                self._read_function(node, fed_by)
            # The graph may outlive the step: what we hang on it holds no tensor of the user's.
            node.register_prehook(call.reach)
        self._walker.mark(nodes, layer.name)

    def _read_function(self, node: Node, sources: Sources) -> Sources:
        if sources and (found := functions.read(node)) is not None:
            self._readings.append((sources[0], *found))
        return sources

    def counted(self) -> list[LayerCall]:
        """Calls a backward came through; those before them that need no gradient count with them.

        A forward without a backward, such as a validation with gradients on, counts not at all.
        """
        kept: list[LayerCall] = []
        following = False
        for call in reversed(self._calls):
            following = call.reached if call.tracked else following
            if following:
                kept.append(call)
        return kept[::-1]


def rows_of(calls: Sequence[LayerCall], numbers: Parts) -> LayerRows:
    """Calls of a layer are merged, functions averaged; `numbers` are the samples of devices."""
    parts: dict[Layer, list[bytes]] = {call.layer: [] for call in calls}
    states = dict.fromkeys(parts, State.UNSUPPORTED)
    functions_of: dict[tuple[str, Stat], list[Reading]] = defaultdict(list)
    coming = iter(numbers)
    for call in calls:
        record, complete = call.record, True
        if call.sample is not None:
            sample = next(coming)
            record, complete = measure_arrays([sample]), len(sample) == call.size
            for name in _COUNTS:
                record[name] = record[name] * call.size // len(sample)
        if record is not None:
            # As bytes: numpy joins structured arrays field by field.
            parts[call.layer].append(record.tobytes())
            states[call.layer] = State.MEASURED if complete else State.SAMPLED
        for name, stat, reading in call.readings:
            functions_of[name, stat].append(reading)
    rows = empty_rows(Family.ACT, len(parts))
    for row, records in zip(rows, parts.values(), strict=True):
        several = np.frombuffer(b"".join(records), MOMENTS)
        whole = several[0] if len(several) == 1 else merge(several)
        for name in ("count", "mean", "std", "abs_max"):
            row[f"act_{name}"] = whole[name]
        row["act_zero_fraction"] = whole["zeros"] / max(whole["count"], 1)
        row["act_nonfinite"] = whole["nan"] + whole["pos_inf"] + whole["neg_inf"]
    places = {layer.name: place for place, layer in enumerate(parts)}
    for (name, stat), readings in functions_of.items():
        if name in places:
            values, weights = zip(*readings, strict=True)
            rows[str(stat)][places[name]] = np.average(values, weights=weights)
    return list(parts), rows, list(states.values())
