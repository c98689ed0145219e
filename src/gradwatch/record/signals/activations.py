"""On recorded steps: moments of every layer's output, and what activation functions made of it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwatch.kernel import MOMENTS, merge
from gradwatch.record.device.engine import joined_output
from gradwatch.record.device.launches import LaunchLimit, LaunchSpan
from gradwatch.record.rows import Parts, PendingRows, Reading, ReadyRows
from gradwatch.record.signals import activation_functions
from gradwatch.record.signals.activation_functions import WeightedStat, zero_share
from gradwatch.record.signals.autograd import AutogradWalker, Node, Sources, nodes_of
from gradwatch.record.signals.hooks import HookedSignal, ModelContext, WatchedLayer, layers, owners
from gradwatch.record.signals.tensors import (
    OUTPUT_LAUNCHES,
    device_readable,
    first_floating,
    look_at_output,
    moments,
    readable,
    tensors_in,
)
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family, Stat, State, row_dtype

_PATIENCE = 3
_RESCAN = 4
DEVICE_MOST = 1 << 22
"""Elements of an output on an accelerator that are looked at: more would take memory that the
training may need."""
_OF_ONE = 4
"""Launches that an activation function takes at most."""
_OF_FUNCTIONS = 2 * _OF_ONE
_FUNCTION_STATS = (Stat.ACT_GATE_ZERO_FRACTION, Stat.ACT_FLAT_FRACTION, Stat.ACT_ENTROPY)
"""Statistics that are missing where no activation function was met."""


class DeviceSums(NamedTuple):
    """An output on an accelerator: its elements, those that were seen, and sums not here yet."""

    size: int
    seen: int
    numbers: Tensor
    """Zeros, non-finite elements, and of the others the largest magnitude, sum, sum of squares; in
    one or more lines."""


@dataclass
class LayerCall:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: str
    output: NDArray[np.void] | DeviceSums | None
    """The kernel's record of it; None where it cannot be read."""
    functions: list[tuple[str, WeightedStat]]
    """The layers that feed the activation functions met on the way here, and what those did."""
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    in_backward: bool
    batch: int = 0
    """The micro-batch it was made in."""
    reached: bool = False
    sampled: bool = False
    """Whether only some elements of its output were looked at."""

    def settles(self, batch: int) -> bool:
        """Whether the layer's calls in this micro-batch need no look."""
        return self.batch < batch and (self.reached or not self.tracked)

    def reach(self, gradients: Any) -> None:
        """Called by autograd when a gradient comes to the output: the call took part."""
        self.reached = True


class Activations(HookedSignal):
    """Hooks on every layer, put up only for the steps that are recorded.

    Of each layer the calls of one micro-batch count: the first that a backward comes through. The
    others are of the same kind, and the probe looks for what is not finite in them.
    """

    what = "activations"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._calls: list[LayerCall] = []
        self._calls_of: dict[str, list[LayerCall]] = {}
        """The same calls by layer."""
        self._limit: LaunchLimit[str] = LaunchLimit()
        self._functions: list[tuple[str, WeightedStat]] = []
        self._walker = AutogradWalker({})
        self._kinds: dict[str, str] = {}
        self._layers: list[WatchedLayer] = []
        self._owners: dict[int, str] = {}
        self._scans = 0
        self._silent = 0
        self._off = False
        self._reasons_told: set[str] = set()

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Put hooks on the layers for a step on which activations are due."""
        self._unhook()
        self._forget_calls()
        self._step = step
        model = self._model()
        if Family.ACT not in due or model is None or self._off:
            return
        all_layers = self._find(model)
        eager = [layer for layer in all_layers if not layer.hidden]
        if self.context.traced or len(eager) < len(all_layers):
            self._not_recorded(step, "compiled")
            self._off = self.context.traced or not eager
        if self._off or self._may_not_hook:
            return
        self._walker = AutogradWalker(self._owners, passed=self._read_function)
        self._limit.begin()
        for layer in eager:
            if (module := layer.module) is not None:
                self._kinds[layer.name] = layer.kind
                self._hook_after(module, partial(self._look, layer.name, layer.composite))

    def _find(self, model: nn.Module) -> list[WatchedLayer]:
        """The layers, looked for anew every few recorded steps: models may grow."""
        if self._scans % _RESCAN == 0:
            self._layers, self._owners = layers(model, self.context.watched), owners(model)
        self._scans += 1
        return self._layers

    def _not_recorded(self, step: int, why: str) -> None:
        if why in self._reasons_told:
            return
        self._reasons_told.add(why)
        text = f"activations are not recorded: {why}"
        self._events.append(Event(step, EventKind.NOT_RECORDED, text, data={"why": why}))

    # -- in the forward --------------------------------------------------------------------------

    def _look(
        self, layer: str, composite: bool, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        batch = self.context.micro_batch()
        before = self._calls_of.setdefault(layer, [])
        if not torch.is_grad_enabled() or any(call.settles(batch) for call in before):
            return
        tensor = first_floating(output)
        if tensor is None:
            return
        record: NDArray[np.void] | DeviceSums | None = None
        spans: list[LaunchSpan] = []
        if readable(tensor):
            record = moments(tensor)
        elif device_readable(tensor):
            if not self._limit.allows(layer, OUTPUT_LAUNCHES + _OF_FUNCTIONS):
                return
            spans = self.launch_times.begin([tensor.device])
            record = DeviceSums(tensor.numel(), *look_at_output(tensor, DEVICE_MOST))
        inputs, outputs = nodes_of(tensors_in((args, kwargs))), nodes_of(tensors_in(output))
        functions = self._functions_before(layer, composite, inputs, outputs, record)
        if isinstance(record, DeviceSums):
            counts = sum(isinstance(stat.value, Tensor) for _, stat in functions)
            self._limit.left += _OF_FUNCTIONS - _OF_ONE * counts
        self.launch_times.end(self._step, spans)
        # Within a backward only a checkpoint calls layers: it runs its part of the forward again.
        in_backward = torch._C._current_graph_task_id() != -1
        call = LayerCall(layer, record, functions, bool(outputs), in_backward, batch)
        self._calls.append(call)
        before.append(call)
        for node in outputs:
            # The graph may outlive the step: what we hang on it holds no tensor of the user's.
            node.register_prehook(call.reach)

    def _functions_before(
        self,
        layer: str,
        composite: bool,
        inputs: list[Node],
        outputs: list[Node],
        record: NDArray[np.void] | DeviceSums | None,
    ) -> list[tuple[str, WeightedStat]]:
        """Activation functions between the layers before and this one, and this one if it is."""
        self._functions = []
        fed_by = self._walker.sources(inputs)
        if composite:
            self._walker.sources(outputs)
        for node in outputs:
            if self._walker.has_seen(node):
                continue
            if record is not None and fed_by and activation_functions.is_relu(node):
                self._functions.append((fed_by[0], _zero_share(record)))
            else:
                self._read_function(node, fed_by)
        self._walker.mark(outputs, layer)
        return self._functions

    def _read_function(self, node: Node, sources: Sources) -> None:
        if sources and (stat := activation_functions.read(node)) is not None:
            self._functions.append((sources[0], stat))

    # -- at the optimizer's step -----------------------------------------------------------------

    def collect(self, step: int) -> Iterator[Reading]:
        """Statistics of the layers that took part; of those on a device, sent for."""
        armed = bool(self._handles)
        self._unhook()
        calls = counted(self._calls)
        self._forget_calls()
        if not armed or self.failure is not None:
            return
        if not calls:
            self._silent += 1
            if self._silent == _PATIENCE:
                self._not_recorded(step, "no forward of a module was seen")
            return
        parts = _device_parts(calls)
        if not parts:
            yield self._reading(calls)
            return
        late = self._limit.refused

        def finish(arrived: Parts) -> ReadyRows:
            _fill_in(calls, arrived)
            return ReadyRows([self._reading(calls, late)])

        self._pending.append(PendingRows(parts, finish))

    def _reading(self, calls: list[LayerCall], late: Collection[str] = ()) -> Reading:
        names, rows, states = rows_of(calls, late)
        subjects = [self.context.subject(name, self._kinds.get(name, "")) for name in names]
        return Family.ACT, subjects, rows, states

    def _forget_calls(self) -> None:
        self._calls = []
        self._calls_of = {}

    def detach(self) -> None:
        """Take the hooks off and let the outputs go."""
        super().detach()
        self._forget_calls()


# -- rows ----------------------------------------------------------------------------------------


def counted(calls: list[LayerCall]) -> list[LayerCall]:
    """Calls a backward came through; those before them that need no gradient count with them.

    A forward without a backward, such as a validation with gradients on, counts not at all. What a
    checkpoint runs again in the backward counts only where its first run was not seen.
    """
    kept: list[LayerCall] = []
    following = False
    for call in reversed(calls):
        following = call.reached if call.tracked else following
        if following:
            kept.append(call)
    kept.reverse()
    in_forward = {call.layer for call in kept if not call.in_backward}
    return [call for call in kept if not (call.in_backward and call.layer in in_forward)]


def rows_of(
    calls: list[LayerCall], late: Collection[str] = ()
) -> tuple[list[str], NDArray[np.void], NDArray[np.uint8]]:
    """Layers, rows, states: calls of one layer are merged, functions averaged by their elements.

    For layers that came too `late` to be looked at there is a row that says so.
    """
    records: dict[str, list[NDArray[np.void]]] = {}
    functions: dict[tuple[str, str], list[WeightedStat]] = {}
    sampled: set[str] = set()
    for call in calls:
        parts = records.setdefault(call.layer, [])
        if isinstance(call.output, np.ndarray):
            parts.append(call.output)
        if call.sampled:
            sampled.add(call.layer)
        for layer, stat in call.functions:
            records.setdefault(layer, [])
            functions.setdefault((layer, str(stat.stat)), []).append(stat)
    unread = dict.fromkeys(late, State.NOT_SAMPLED)
    for layer in unread:
        records.setdefault(layer, [])
    rows = act_rows([_joined(parts) for parts in records.values()])
    place = {layer: index for index, layer in enumerate(records)}
    for (layer, name), stats in functions.items():
        rows[name][place[layer]] = _average(stats)
    states = [
        State.MEASURED if parts else unread.get(layer, State.UNSUPPORTED)
        for layer, parts in records.items()
    ]
    for layer in sampled:
        states[place[layer]] = State.SAMPLED
    return list(records), rows, np.array(states, np.uint8)


def _joined(parts: list[NDArray[np.void]]) -> NDArray[np.void]:
    """One record for all calls of a layer; an empty one where none could be read."""
    if len(parts) == 1:
        return parts[0]
    joined = np.zeros(1, MOMENTS)
    if parts:
        joined[0] = merge(_stacked(parts))
    return joined


def _stacked(parts: list[NDArray[np.void]]) -> NDArray[np.void]:
    """As np.concatenate, which compares the fields of structured arrays one by one."""
    return np.frombuffer(b"".join(part.tobytes() for part in parts), MOMENTS)


def act_rows(joined: list[NDArray[np.void]]) -> NDArray[np.void]:
    """Rows of outputs from their records; nothing is known of activation functions."""
    records = _stacked(joined)
    rows = np.zeros(len(records), row_dtype(Family.ACT))
    rows["act_count"] = records["count"]
    rows["act_mean"], rows["act_std"] = records["mean"], records["std"]
    rows["act_abs_max"] = records["abs_max"]
    with np.errstate(invalid="ignore"):
        rows["act_zero_fraction"] = records["zeros"] / records["count"]
    rows["act_nonfinite"] = records["nan"] + records["pos_inf"] + records["neg_inf"]
    for stat in _FUNCTION_STATS:
        rows[str(stat)] = np.nan
    return rows


def _average(stats: list[WeightedStat]) -> float:
    weight = sum(stat.weight for stat in stats)
    if not weight:
        return float("nan")
    return float(sum(stat.value * stat.weight for stat in stats)) / weight


# -- on an accelerator ---------------------------------------------------------------------------


def _zero_share(record: NDArray[np.void] | DeviceSums) -> WeightedStat:
    if isinstance(record, DeviceSums):
        return zero_share(record.numbers.reshape(-1, 5)[:, 0], float(record.seen))
    return zero_share(float(record[0]["zeros"]), float(record[0]["count"]))


def _device_parts(calls: Sequence[LayerCall]) -> list[Tensor]:
    """The numbers of these calls that are on accelerators."""
    parts: list[Tensor] = []
    for call in calls:
        if isinstance(call.output, DeviceSums):
            parts.append(call.output.numbers)
        parts += [stat.value for _, stat in call.functions if isinstance(stat.value, Tensor)]
    return parts


def _fill_in(calls: Sequence[LayerCall], arrived: Parts) -> None:
    """Put the numbers that `_device_parts` sent off into the calls, in its order."""
    numbers = iter(arrived)
    for call in calls:
        if isinstance(sums := call.output, DeviceSums):
            call.sampled = sums.seen < sums.size
            joined = joined_output(next(numbers)).tolist()
            call.output = record_of(sums.size, sums.seen, joined)
        call.functions = [
            (layer, replace(stat, value=float(next(numbers).sum()) / stat.weight))
            if isinstance(stat.value, Tensor)
            else (layer, stat)
            for layer, stat in call.functions
        ]


def record_of(size: int, seen: int, numbers: Sequence[float]) -> NDArray[np.void]:
    """The kernel's record of an output of which so much was seen, as far as activations need one.

    The numbers are those an engine gives; counts are raised to the whole.
    """
    zeros, bad, top, total, squares = numbers
    record = np.zeros(1, MOMENTS)
    for name in (
        "mean",
        "std",
        "skewness",
        "kurtosis",
        "norm",
        "abs_mean",
        "min",
        "max",
        "abs_max",
    ):
        record[name] = np.nan
    record["count"] = size
    record["zeros"], record["nan"] = round(zeros * size / seen), bad * size / seen
    if finite := seen - bad:
        mean = total / finite
        # In float64, whose sums of float32 numbers leave enough digits for the difference.
        record["std"] = sqrt(max(squares / finite - mean * mean, 0.0))
        record["mean"], record["abs_max"], record["norm"] = mean, top, sqrt(squares)
    return record
