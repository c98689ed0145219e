"""On full steps: moments of every layer's output, and what activation functions made of it.

Of each layer the calls of one micro-batch count: the first that a backward comes through. The
others are of the same kind, and the probe looks for what is not finite in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS, merge
from gradwatch.record import functions
from gradwatch.record.device import output_sums
from gradwatch.record.functions import WeightedStat
from gradwatch.record.graph import AutogradWalker, Node, Sources, nodes_of
from gradwatch.record.layers import Layer
from gradwatch.record.looking import device_readable, first_floating, moments, readable, tensors_in
from gradwatch.record.tensors import spread
from gradwatch.stats import Family, Stat, State, row_dtype

_DEVICE_MOST = 1 << 20
"""Elements of an output on a device that are looked at."""
_FUNCTION_STATS = (Stat.ACT_GATE_ZERO_FRACTION, Stat.ACT_FLAT_FRACTION, Stat.ACT_ENTROPY)
"""Statistics that are missing where no activation function was met."""


@dataclass(slots=True)
class LayerCall:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: Layer
    batch: int
    """The micro-batch it was made in."""
    in_backward: bool
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    size: int
    """Elements of its output."""
    record: NDArray[np.void] | None = None
    """The kernel's record of the output; None where it cannot be read, or is not here yet."""
    sums: Tensor | None = None
    """Of an output on a device what `output_sums` gives, and of how many elements."""
    seen: int = 0
    functions: list[tuple[str, WeightedStat]] = field(default_factory=list)
    """The layers that feed the activation functions met on the way here, and what those did."""
    reached: bool = False

    def settles(self, batch: int) -> bool:
        """Whether the layer's calls in this micro-batch need no look."""
        return self.batch < batch and (self.reached or not self.tracked)

    def reach(self, gradients: Any) -> None:
        """Called by autograd when a gradient comes to the output: the call took part."""
        self.reached = True

    def late(self) -> list[Tensor]:
        """The numbers of this call that are on a device."""
        values = [self.sums, *(stat.value for _, stat in self.functions)]
        return [value for value in values if isinstance(value, Tensor)]


class Activations:
    """Is told of the layers' calls on one step."""

    def __init__(self, owners: Mapping[int, str]) -> None:
        self._walker = AutogradWalker(owners, passed=self._read_function)
        self._calls: list[LayerCall] = []
        self._calls_of: dict[str, list[LayerCall]] = {}
        self._functions: list[tuple[str, WeightedStat]] = []
        self._batch = 0
        self.backward_ran = False

    def look(self, layer: Layer, given: Any, output: Any) -> None:
        """A layer has run."""
        # The first forward after a backward begins a micro-batch. Within a backward only
        # checkpoints call layers, which belong to the micro-batch before.
        in_backward = torch._C._current_graph_task_id() != -1
        if self.backward_ran and not in_backward:
            self.backward_ran = False
            self._batch += 1
        before = self._calls_of.setdefault(layer.name, [])
        tensor = first_floating(output)
        if not torch.is_grad_enabled() or tensor is None:
            return
        if any(call.settles(self._batch) for call in before):
            return
        nodes, size = nodes_of(tensors_in(output)), tensor.numel()
        call = LayerCall(layer, self._batch, in_backward, bool(nodes), size)
        if readable(tensor):
            call.record = moments(tensor)
        elif device_readable(tensor):
            sample = spread(tensor, _DEVICE_MOST)
            call.sums, call.seen = output_sums(sample), sample.numel()
        self._find_functions(call, nodes_of(tensors_in(given)), nodes)
        self._calls.append(call)
        before.append(call)
        for node in nodes:
            # The graph may outlive the step: what we hang on it holds no tensor of the user's.
            node.register_prehook(call.reach)

    def _find_functions(self, call: LayerCall, inputs: list[Node], outputs: list[Node]) -> None:
        """Activation functions between the layers before and this one, and this one if it is."""
        self._functions = call.functions
        fed_by = self._walker.sources(inputs)
        if call.layer.composite:
            self._walker.sources(outputs)
        for node in outputs:
            if self._walker.has_seen(node):
                continue
            if call.record is not None and fed_by and functions.is_relu(node):
                share = float(call.record["zeros"][0]) / max(call.size, 1)
                stat = WeightedStat(Stat.ACT_GATE_ZERO_FRACTION, share, float(call.size))
                self._functions.append((fed_by[0], stat))
            else:
                self._read_function(node, fed_by)
        self._walker.mark(outputs, call.layer.name)

    def _read_function(self, node: Node, sources: Sources) -> None:
        if sources and (stat := functions.read(node)) is not None:
            self._functions.append((sources[0], stat))

    def counted(self) -> list[LayerCall]:
        """Calls a backward came through; those before them that need no gradient count with them.

        A forward without a backward, such as a validation with gradients on, counts not at all.
        What a checkpoint runs again counts only where its first run was not seen.
        """
        kept: list[LayerCall] = []
        following = False
        for call in reversed(self._calls):
            following = call.reached if call.tracked else following
            if following:
                kept.append(call)
        kept.reverse()
        in_forward = {call.layer for call in kept if not call.in_backward}
        return [call for call in kept if not (call.in_backward and call.layer in in_forward)]


def arrived(calls: Sequence[LayerCall], numbers: Sequence[NDArray[np.float64]]) -> None:
    """Put the numbers of `late` into the calls, in its order."""
    coming = iter(numbers)
    for call in calls:
        if call.sums is not None:
            call.record = _record_of(call.size, call.seen, next(coming).tolist())
        call.functions = [
            (layer, replace(stat, value=float(next(coming).sum()) / stat.weight))
            if isinstance(stat.value, Tensor)
            else (layer, stat)
            for layer, stat in call.functions
        ]


def rows_of(calls: Sequence[LayerCall]) -> tuple[list[Layer], NDArray[np.void], list[State]]:
    """Layers, rows, states: calls of a layer are merged, functions averaged by their elements."""
    layers = {call.layer.name: call.layer for call in calls}
    parts: dict[str, list[bytes]] = {name: [] for name in layers}
    states = dict.fromkeys(layers, State.UNSUPPORTED)
    given: dict[tuple[str, str], list[WeightedStat]] = {}
    for call in calls:
        if call.record is not None:
            parts[call.layer.name].append(call.record.tobytes())
            whole = call.sums is None or call.seen == call.size
            states[call.layer.name] = State.MEASURED if whole else State.SAMPLED
        for name, stat in call.functions:
            if name in layers:
                given.setdefault((name, str(stat.stat)), []).append(stat)
    rows = _act_rows(np.frombuffer(b"".join(map(_joined, parts.values())), MOMENTS))
    place = {name: index for index, name in enumerate(layers)}
    for (name, statistic), stats in given.items():
        weight = sum(stat.weight for stat in stats)
        total = sum(stat.value * stat.weight for stat in stats)
        rows[statistic][place[name]] = total / weight if weight else nan
    return list(layers.values()), rows, list(states.values())


def _joined(records: Sequence[bytes]) -> bytes:
    """One record for all calls of a layer; an empty one where none could be read."""
    # As bytes: numpy's concatenate compares the fields of structured arrays one by one.
    if len(records) == 1:
        return records[0]
    joined = np.zeros(1, MOMENTS)
    if records:
        joined[0] = merge(np.frombuffer(b"".join(records), MOMENTS))
    return joined.tobytes()


def _act_rows(records: NDArray[np.void]) -> NDArray[np.void]:
    """Rows of outputs from their records; nothing is known of activation functions."""
    rows = np.zeros(len(records), row_dtype(Family.ACT))
    for name in ("count", "mean", "std", "abs_max"):
        rows[f"act_{name}"] = records[name]
    with np.errstate(invalid="ignore"):
        rows["act_zero_fraction"] = records["zeros"] / records["count"]
    rows["act_nonfinite"] = records["nan"] + records["pos_inf"] + records["neg_inf"]
    for stat in _FUNCTION_STATS:
        rows[str(stat)] = nan
    return rows


def _record_of(size: int, seen: int, sums: Sequence[float]) -> NDArray[np.void]:
    """The kernel's record of an output on a device, as far as activations need one.

    Counts are raised from what was seen to the whole.
    """
    zeros, bad, largest, total, squares = sums
    record = np.zeros(1, MOMENTS)
    record["count"], record["abs_max"] = size, largest
    record["zeros"], record["nan"] = round(zeros * size / seen), round(bad * size / seen)
    if finite := seen - bad:
        mean = total / finite
        record["mean"], record["std"] = mean, sqrt(max(squares / finite - mean * mean, 0.0))
    return record
