"""The forward pass: one hook for probe, activations, layer graph and the model's batches.

It is torch's global one, so that nothing is stored in the user's modules: they can be pickled,
copied, traced and scripted. It is there only on steps on which something looks. Where torch.compile
is in use, torch would warn of it and compile anew when it comes or goes: there each layer outside
of compiled parts has a hook of its own, which stays.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import gradwatch.kernel as kernel
from gradwatch.graph import Graph
from gradwatch.record import looking
from gradwatch.record.activations import Activations, LayerCall, LayerRows, rows_of
from gradwatch.record.batches import LOOKS, Batches, fed_modules
from gradwatch.record.device import top
from gradwatch.record.graph import LayerGraph
from gradwatch.record.guard import log
from gradwatch.record.layers import Layer, compiles, layers_of, owners
from gradwatch.record.looking import PROBED, readable, stride_of
from gradwatch.record.options import Record
from gradwatch.record.recorder import Found, Late, Recorder, StepRows
from gradwatch.record.schedule import StepPlan
from gradwatch.record.tensors import KERNEL_DTYPES
from gradwatch.record.transfer import Parts, Transfer
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, Kind, State, row_dtype

DISPATCH = 3.5e-6
"""Seconds that torch takes to call a hook, between the matrix products of a step: a module with
one goes a longer way. Our clock sees nothing of it, and with hundreds of layers it is the most."""
_RESCAN = 64
"""Steps after which the model is looked at anew, on a full step."""
_WITH_ALL = (Family.ACT, Family.WEIGHT)
"""On the steps of these families every probed layer gets a row, eventful or not."""
_UNREAD = -1
_WITH_KWARGS: dict[int, bool] | None = getattr(
    torch_module, "_global_forward_hooks_with_kwargs", None
)
"""Global hooks that are told of keyword arguments; before torch 2.6 there were none."""

Hits = dict[str, tuple[int, int]]
"""Layers by name: non-finite elements of their output, and of their first input if it was read.

In the order of their calls.
"""


class ForwardHook:
    """What torch calls when a module has run; it holds nothing of the training."""

    __slots__ = ("forward",)

    def __init__(self, forward: "Forward") -> None:
        self.forward = ref(forward)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled or copied with a module, it accepts anything and does nothing, without us."""
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Probe the output: one function, since between matrix products all code is cold."""
        # torch.compile takes this for true while it traces: the graph sees nothing of us.
        if torch.compiler.is_dynamo_compiling() or (forward := self.forward()) is None:
            return
        start = perf_counter()
        try:
            layer = forward.table.get(id(module))
            if (
                layer is None
                or layer.module() is not module
                or torch._C._len_torch_dispatch_stack()
                or torch._C._get_tracing_state()
                or torch._C._are_functorch_transforms_active()
            ):
                return
            if layer.probed and forward.probing and torch.is_grad_enabled():
                if (
                    type(output) is Tensor
                    and output.is_cpu
                    and output.layout is torch.strided
                    and (kind := KERNEL_DTYPES.get(output.dtype)) is not None
                    and output.is_contiguous()
                    and (address := output.data_ptr())
                    and not forward.hits
                ):
                    size = output.numel()
                    stride = 1 if size <= PROBED else stride_of(size)
                    if kernel.nonfinite(address, size, kind, stride):
                        forward.probe(layer, args, kwargs, output)
                else:
                    forward.probe(layer, args, kwargs, output)
            if forward.closer or layer.root:
                forward.look(layer, module, args, kwargs, output)
        except Exception as error:
            forward.fail(error)
        finally:
            forward.timer.spent += perf_counter() - start + DISPATCH


class Forward:
    """Looks at the forward passes of a model, on the steps on which something is to be seen.

    The probe looks at up to 4,096 elements of each layer's output; at all, and at the input, after
    a hit. On a device it looks at a sample of both, in the first call of a step, and what it finds
    comes later: that there was something, not how much.
    """

    def __init__(
        self,
        model: nn.Module,
        watched: Collection[str],
        record: frozenset[Record],
        recorder: Recorder,
    ) -> None:
        self._model = ref(model)  # weak: watching keeps no model alive
        self._watched, self._records = watched, Record.ACTIVATIONS in record
        self._recorder, self.timer = recorder, recorder.timer
        self.batches = Batches(model, recorder)
        self.graph: Graph | None = None
        self.table: dict[int, Layer] = {}
        """Layers and roots by the identity of their module."""
        self.probing = self.closer = False
        """Whether outputs are probed on this step, and whether more than that is looked at."""
        self.hits: Hits = {}
        self._settled: Hits = {}
        """Hits of forwards whose backward has run: they belong to the step that comes or fails."""
        self._tops: dict[str, tuple[list[Tensor], int]] = {}
        """Of outputs on devices and what the layers were given the largest magnitude in a sample,
        which is not finite where anything in it is; and what to say where no input can be read."""
        self._plan = StepPlan(0, frozenset(), full=False)
        self._next_scan = 0
        self._layers: list[Layer] = []
        self._owners: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._told: set[str] = set()
        self._feeding, self._feeds = False, LOOKS
        self._acts: Activations | None = None
        self._graphing: LayerGraph | None = LayerGraph()
        self._handles: list[Any] = []
        self._off = False

    @property
    def loss_guess(self) -> Mapping[str, Any]:
        """The kind of the loss where only a number is logged, once it is known."""
        return self.batches.loss_guess

    # -- from one step to the next ---------------------------------------------------------------

    def arm(self, plan: StepPlan) -> None:
        """The previous step has ended: be there on the coming one if something is to be seen."""
        self._try(self._arm, plan)

    def _arm(self, plan: StepPlan) -> None:
        model, due = self._model(), plan.due
        if model is None:
            self._unmount()
            return
        self._plan = plan
        if plan.full and plan.step >= self._next_scan and self._looks:
            self._next_scan = plan.step + _RESCAN
            self._scan(model)
        self.probing = self._records and Family.PROBE in due
        acting = self._records and Family.ACT in due
        self._acts = Activations(self._owners) if acting else None
        if self._graphing is not None and due:
            self._graphing.arm(self._layers, self._owners)
        self.closer = acting or (self._graphing is not None and bool(due))
        # Without activations the calls of the model serve only to guess the kind of its loss.
        self._feeding = self.batches.wants(plan) and (self._records or self._feeds > 0)
        self._feeds -= self._feeding
        self._mount(self.probing or self.closer or self._feeding)

    @property
    def _looks(self) -> bool:
        """Whether anything will look at the layers from now on."""
        return self._records or self._graphing is not None or self._feeds > 0

    def _scan(self, model: nn.Module) -> None:
        """Find the layers. Models may grow."""
        self._layers = layers_of(model, self._watched, fed_modules(model))
        self.table = {id(layer.module()): layer for layer in self._layers}
        self._owners = owners(model)
        if self._records and any(layer.hidden and layer.watched for layer in self._layers):
            self._not_recorded("compiled")

    def _mount(self, wanted: bool) -> None:
        if wanted == bool(self._handles):
            return
        compiled, hook = compiles(), ForwardHook(self)
        if not wanted:
            if not compiled:  # graphs that were compiled meanwhile count on the hook they met
                self._unmount()
        elif compiled or _WITH_KWARGS is None:
            modules = [layer.module() for layer in self._layers if not layer.hidden]
            hooked = [module for module in modules if module is not None]
            self._handles = [one.register_forward_hook(hook, with_kwargs=True) for one in hooked]
        else:
            add = torch_module.register_module_forward_hook
            self._handles = [add(hook, with_kwargs=True)]

    def _unmount(self) -> None:
        for handle in self._handles:
            handle.remove()
            if _WITH_KWARGS is not None:
                _WITH_KWARGS.pop(handle.id, None)  # torch forgets to
        self._handles = []

    def detach(self) -> None:
        """The recording ends: take the hook off, and forget what was seen."""
        self._switch_off()
        if self._graphing is not None:
            self._graphing.assume()
            self._learn(self._graphing)

    def _switch_off(self) -> None:
        self._off, self.table = True, {}
        self._unmount()
        self._acts, self._tops, self.hits, self._settled = None, {}, {}, {}

    def _try(self, action: Callable[..., None], *args: Any) -> None:
        if not self._off:
            try:
                action(*args)
            except Exception as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop looking; say so once. Training goes on as if we were not there."""
        if self._off:
            return
        self._switch_off()
        why = f"{type(error).__name__}: {error}"
        log.warning("gradwatch stopped recording the forward passes: %s", why)
        log.debug("gradwatch: where it happened", exc_info=error)
        text = f"activations, probes and what the model is fed are no longer recorded: {why}"
        self._recorder.event(Event(self._plan.step, EventKind.SWITCHED_OFF, text))

    def backward(self) -> None:
        """A backward pass has run: what is seen from now on may belong to another step."""
        if self.hits:
            self._settled = {**self.hits, **self._settled}
            self.hits = {}

    # -- in the forward --------------------------------------------------------------------------

    def look(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A layer or a network has run on a step on which more than the probe looks."""
        if layer.root and self._feeding:
            self.batches.look(module, args, kwargs, output)
        if not self.closer:
            return
        if self._acts is not None and layer.watched:
            self._acts.look(layer, (args, kwargs), output)
        # Within a backward pass a checkpoint runs its part again: that is no part of the graph.
        if self._graphing is not None and torch._C._current_graph_task_id() == -1:
            if layer.is_layer and not layer.composite:
                self._graphing.look(layer.name, module, args, kwargs, output)
            if module is self._model():
                self._graphing.ended(module, args, kwargs, output)

    def probe(self, layer: Layer, args: Any, kwargs: Any, output: Any) -> None:
        """The long way: after a hit, or where the output is not one plain tensor on the CPU."""
        tensor = looking.first_floating(output)
        if tensor is None:
            return
        if readable(tensor):
            if looking.nonfinite(tensor, whole=bool(self.hits)):
                bad = looking.nonfinite(tensor, whole=True)
                self.hits[layer.name] = bad, _bad_input(_input(args, kwargs))
        elif looking.device_readable(tensor) and layer.name not in self._tops:
            given = _input(args, kwargs)
            seen = [tensor] if given is None else [tensor, given]
            tops = [top(each) for each in seen if looking.device_readable(each)]
            self._tops[layer.name] = tops, _bad_input(given)

    # -- at the optimizer's step -----------------------------------------------------------------

    def collect(self, found: Found) -> None:
        """What was seen of this step; asked before the optimizer changes the weights."""
        self._try(self._collect, found)

    def _collect(self, found: Found) -> None:
        self.backward()
        due = self._plan.due
        if self._graphing is not None and due:
            if info := self._graphing.publish(found.step):
                self._recorder.note(info)
            self._learn(self._graphing)
        if self._acts is not None:
            self._put_activations(found, self._acts.counted())
            self._acts = None
        roots = [layer.training for layer in self._layers if layer.root]
        if roots and due:
            found.scalars["training_mode"] = float(all(roots))
        if self.probing:
            self._put_probe(found, everything=not due.isdisjoint(_WITH_ALL))
        if self._feeding:
            self.batches.collect(found)

    def skipped(self, found: Found) -> None:
        """The scaler has left the step out; known when the forward of the next has run."""
        self._try(self._put_probe, found)

    def _learn(self, graphing: LayerGraph) -> None:
        """The graph is known, or more of it."""
        if graphing.graph is not None and graphing.graph != self.graph:
            self.graph, self._ids = graphing.graph, {}
            if self.graph.assumed and not self._off:
                self._not_recorded("no forward of a module was seen")
        if graphing.done:
            self._graphing, self.closer = None, False

    def _put_activations(self, found: Found, calls: list[LayerCall]) -> None:
        def finish(numbers: Parts) -> Found:
            return Found(found.step, [self._rows(Family.ACT, found.step, rows_of(calls, numbers))])

        if calls:
            _put(found, [call.sample for call in calls if call.sample is not None], finish)

    def _not_recorded(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            text, step = f"activations are not recorded: {why}", self._plan.step
            self._recorder.event(Event(step, EventKind.NOT_RECORDED, text, data={"why": why}))

    def _put_probe(self, found: Found, *, everything: bool = False) -> None:
        """Rows of the layers with something to say, or of all of them."""
        hits, self._settled = self._settled, {}
        tops, self._tops = self._tops, {}
        if not (everything or hits or tops):
            return
        # The modes of this step: a model may be in evaluation when numbers of a device arrive.
        modes = {one: one.training for one in self._layers if one.probed or one.drops}

        def finish(numbers: Parts) -> Found:
            late, coming = Found(found.step), iter(numbers)
            for name, (seen, unread) in tops.items():
                bad, *given = [not np.isfinite(next(coming)).all() for _ in seen]
                if bad:
                    hits.setdefault(name, (1, int(given[0]) if given else unread))
            told = [layer for layer in modes if everything or layer.name in hits]
            rows = np.zeros(len(told), row_dtype(Family.PROBE))
            rows["probe_training"] = [modes[layer] for layer in told]
            counts = [hits.get(layer.name, (0, 0)) for layer in told]
            rows["probe_nonfinite"] = [of_output for of_output, _ in counts]
            rows["probe_input_nonfinite"] = [max(of_input, 0) for _, of_input in counts]
            states = [State.SAMPLED if one.name in tops else State.MEASURED for one in told]
            if told:
                late.rows.append(self._rows(Family.PROBE, found.step, (told, rows, states)))
            if hits and next(iter(hits.values()))[1] == _UNREAD:
                late.scalars["probe_input_unread"] = 1.0
            return late

        _put(found, [one for seen, _ in tops.values() for one in seen], finish)

    def _rows(self, family: Family, step: int, seen: LayerRows) -> StepRows:
        layers, rows, states = seen
        if any(layer.name not in self._ids for layer in layers):
            order = self.graph.order if self.graph is not None else {}
            subjects = [
                Subject(Kind.LAYER, one.name, one.name, order=order.get(one.name), module=one.kind)
                for one in layers
            ]
            ids = self._recorder.declare(subjects).tolist()
            self._ids |= {layer.name: number for layer, number in zip(layers, ids, strict=True)}
        known = np.array([self._ids[layer.name] for layer in layers], np.uint32)
        return StepRows(family, step, known, rows, np.array(states, np.uint8))


def _put(found: Found, sent: list[Tensor], finish: Callable[[Parts], Found]) -> None:
    """Into `found` what needs the numbers of these tensors: later where there are any."""
    if sent:
        found.late.append(Late(Transfer(sent), finish))
        return
    now = finish([])
    found.rows += now.rows
    found.scalars |= now.scalars


def _input(args: Any, kwargs: Any) -> Tensor | None:
    """What a layer is given: the first tensor of floating point numbers, or else the first."""
    given = [looking.stored(tensor) for tensor in looking.tensors_in((args, kwargs))]
    return next((each for each in given if each.is_floating_point()), given[0] if given else None)


def _bad_input(given: Tensor | None) -> int:
    """Its non-finite elements; whole numbers are always finite."""
    if given is None or (given.is_floating_point() and not readable(given)):
        return _UNREAD
    return looking.nonfinite(given, whole=True) if given.is_floating_point() else 0
