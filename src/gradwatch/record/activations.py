"""On full steps: moments of every layer's output, and what activation functions made of it.

Of each layer the calls of one micro-batch count: the first that a backward comes through. The
others are of the same kind, and the probe looks for what is not finite in them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
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
from gradwatch.stats import Family, Stat, State, row_dtype

_COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf")


@dataclass(slots=True, eq=False)
class LayerCall:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: Layer
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    in_backward: bool
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
        self._walker = AutogradWalker(owners, passed=self._read_function)
        self._calls: list[LayerCall] = []
        """Those of this micro-batch."""
        self._counted: dict[Layer, list[LayerCall]] = {}
        """Those that count, of the micro-batches before."""
        self._readings: list[tuple[str, Stat, Reading]] = []
        self.backward_ran = False

    def look(self, layer: Layer, given: Any, output: Any) -> None:
        """A layer has run."""
        # The first forward after a backward begins a micro-batch. Within a backward only
        # checkpoints call layers, which belong to the micro-batch before.
        in_backward = torch._C._current_graph_task_id() != -1
        if self.backward_ran and not in_backward:
            self.backward_ran = False
            self.counted()
        tensor = first_floating(output)
        if not torch.is_grad_enabled() or tensor is None or layer in self._counted:
            return
        nodes = nodes_of(tensors_in(output))
        call = LayerCall(layer, bool(nodes), in_backward)
        if readable(tensor):
            call.record = moments(tensor)
        elif device_readable(tensor):
            call.sample, call.size = spread(tensor, SAMPLE).clone(), tensor.numel()
        self._find_functions(call, nodes_of(tensors_in(given)), nodes)
        self._calls.append(call)
        for node in nodes:
            # The graph may outlive the step: what we hang on it holds no tensor of the user's.
            node.register_prehook(call.reach)

    def _find_functions(self, call: LayerCall, inputs: list[Node], outputs: list[Node]) -> None:
        """Activation functions between the layers before and this one, and this one if it is."""
        self._readings = call.readings
        fed_by = self._walker.sources(inputs)
        if call.layer.composite:
            self._walker.sources(outputs)
        for node in outputs:
            if not self._walker.has_seen(node):
                self._read_function(node, fed_by)
        self._walker.mark(outputs, call.layer.name)

    def _read_function(self, node: Node, sources: Sources) -> None:
        if sources and (found := functions.read(node)) is not None:
            self._readings.append((sources[0], *found))

    def counted(self) -> list[LayerCall]:
        """Calls a backward came through; those before them that need no gradient count with them.

        A forward without a backward, such as a validation with gradients on, counts not at all.
        What a checkpoint runs again counts only where its first run was not seen.
        """
        calls, self._calls = self._calls, []
        kept: list[LayerCall] = []
        following = False
        for call in reversed(calls):
            following = call.reached if call.tracked else following
            if following:
                kept.append(call)
        first_runs = {call.layer for call in kept if not call.in_backward}
        for call in reversed(kept):
            if not call.in_backward or call.layer not in first_runs:
                self._counted.setdefault(call.layer, []).append(call)
        return [call for calls in self._counted.values() for call in calls]


def rows_of(
    calls: Sequence[LayerCall], numbers: Sequence[NDArray[np.float64]]
) -> tuple[list[Layer], NDArray[np.void], list[State]]:
    """Layers, rows, states: calls of a layer are merged, functions averaged by their elements.

    `numbers` are the samples of those on devices.
    """
    parts: dict[Layer, list[bytes]] = {call.layer: [] for call in calls}
    states: dict[Layer, State] = {}
    functions_of: dict[tuple[str, Stat], list[Reading]] = defaultdict(list)
    coming = iter(numbers)
    for call in calls:
        states[call.layer], record = State.MEASURED, call.record
        if call.sample is not None:
            sample = next(coming)
            states[call.layer] = State.MEASURED if len(sample) == call.size else State.SAMPLED
            record = measure_arrays([sample])
            for name in _COUNTS:
                record[name] = record[name] * call.size // len(sample)
        if record is None:
            states[call.layer] = State.UNSUPPORTED
        else:
            # As bytes: numpy joins structured arrays field by field.
            parts[call.layer].append(record.tobytes())
        for name, stat, reading in call.readings:
            functions_of[name, stat].append(reading)
    records = b"".join(map(_joined, parts.values()))
    rows = _act_rows(np.frombuffer(records, MOMENTS))
    places = {layer.name: place for place, layer in enumerate(parts)}
    for (name, stat), several in functions_of.items():
        if name in places:
            values, weights = zip(*several, strict=True)
            rows[str(stat)][places[name]] = np.average(values, weights=weights)
    return list(parts), rows, list(states.values())


def _joined(records: Sequence[bytes]) -> bytes:
    """One record for all calls of a layer; an empty one where none could be read."""
    if len(records) == 1:
        return records[0]
    joined: bytes = merge(np.frombuffer(b"".join(records), MOMENTS)).tobytes()
    return joined


def _act_rows(records: NDArray[np.void]) -> NDArray[np.void]:
    """Rows of outputs from their records; nothing is known of activation functions."""
    rows = np.zeros(len(records), row_dtype(Family.ACT))
    for name in ("count", "mean", "std", "abs_max"):
        rows[f"act_{name}"] = records[name]
    with np.errstate(invalid="ignore"):
        rows["act_zero_fraction"] = records["zeros"] / records["count"]
    rows["act_nonfinite"] = records["nan"] + records["pos_inf"] + records["neg_inf"]
    for stat in (Stat.ACT_GATE_ZERO_FRACTION, Stat.ACT_FLAT_FRACTION, Stat.ACT_ENTROPY):
        rows[str(stat)] = nan
    return rows
