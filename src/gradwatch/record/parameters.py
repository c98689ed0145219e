"""Which parameters are recorded, what they are called, and which optimizer steps each of them."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.record.recorder import Meter
from gradwatch.record.sampler import GradientSampler
from gradwatch.record.tensors import flat_offset, local, placement
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Kind

WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
"""Class of a wrapping module → the attribute under which it keeps what it wraps."""


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter of the model, under its first name."""

    name: str
    layer: str
    module: str
    """Class of the owning module."""
    ref: "weakref.ref[Tensor]"
    """Weak, so that watching keeps no model alive."""
    others: list[str] = field(default_factory=list)
    """Its other names, where layers share it."""


class Networks(Module):
    """Several networks as the parts of one model, which nobody calls.

    They are held weakly: watching keeps no model alive.
    """

    def __init__(self, networks: Mapping[str, Module]) -> None:
        super().__init__()
        self.__dict__["_modules"] = weakref.WeakValueDictionary(networks)


def networks_of(model: Module) -> list[Module]:
    """What the user has handed over: the networks, or the model itself."""
    return list(model.children()) if isinstance(model, Networks) else [model]


def unwrap(model: Module) -> Module:
    """The user's own model inside compile, data-parallel and checkpoint wrappers."""
    while (child := model._modules.get(_wrapped(model) or "")) is not None:
        model = child
    return model


def bare_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """(path, module) in registration order, as on the bare model; a shared module under each name.

    Walks with a stack of its own: a model may be deeper than Python's recursion and hold cycles.
    """
    above: set[int] = set()
    """The modules around the present one: within itself none is listed again."""
    stack = [("", model, False)]
    while stack:
        path, module, ends = stack.pop()
        if ends:
            above.remove(id(module))
        elif id(module) not in above:
            above.add(id(module))
            stack.append((path, module, True))
            inside = _wrapped(module)
            if inside is None:  # a wrapper is no layer of the user's
                yield path, module
            for name, child in reversed(list(module._modules.items())):
                if child is not None:
                    below = path if name == inside else _join(path, name)
                    stack.append((below, child, False))


def named_parameters(model: Module) -> list[ParameterInfo]:
    """Every parameter once, under its first name, frozen ones included."""
    infos: dict[int, ParameterInfo] = {}
    kinds: dict[str, str] = {}
    for path, module in bare_modules(model):
        kinds[path] = type(module).__name__
        for own_name, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _join(path, own_name)
            if (info := infos.get(id(parameter))) is not None:
                info.others.append(name)
            else:
                layer, kind = _served(path, type(module).__name__, kinds)
                infos[id(parameter)] = ParameterInfo(name, layer, kind, weakref.ref(parameter))
    return list(infos.values())


def _served(path: str, kind: str, kinds: dict[str, str]) -> tuple[str, str]:
    """The layer a tensor belongs to: a parametrized weight serves the module above its list."""
    above, separator, _ = f".{path}.".partition(".parametrizations.")
    if not separator:
        return path, kind
    layer = above.removeprefix(".")
    return layer, kinds.get(layer, kind).removeprefix("Parametrized")


def _wrapped(module: Module) -> str | None:
    kinds = (kind.__name__ for kind in type(module).__mro__)
    return next((WRAPPERS[kind] for kind in kinds if kind in WRAPPERS), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_SCAN = 16
"""Steps after which the model is looked at anew, on a step that records everything."""
Declare = Callable[[Sequence[Subject]], NDArray[np.uint32]]


class TrackedOptimizer:
    """The parameters of one optimizer (or of none), measured together in one call.

    Holds neither optimizer nor parameters alive.
    """

    meter: Meter
    """Measures these parameters where they lie: on the CPU or on an accelerator."""

    def __init__(
        self,
        optimizer: Optimizer | None,
        sampler: GradientSampler,
        make_meter: Callable[["TrackedOptimizer"], Meter],
    ) -> None:
        self._ref = weakref.ref(optimizer) if optimizer is not None else None
        self.sampler = sampler
        self._make_meter = make_meter
        self.has_stepped = False
        self.groups: list[int] = []
        """The run's numbers of the optimizer's parameter groups."""
        self.group_ids = np.zeros(0, np.uint32)
        self.parameters: tuple[ParameterInfo, ...] = ()
        self.refs: list[Callable[[], Tensor | None]] = []
        # One entry per parameter, in the same order:
        self.ids = np.zeros(0, np.uint32)
        self.rows: list[int] = []
        """Rows (dimension 0) of each; 0 for one that is no matrix."""
        self.offsets = np.zeros(0, np.int64)
        """Where this rank's piece begins in the flattened whole."""
        self._layout: list[Any] = []
        self.meter = make_meter(self)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, or None for parameters that none has, and when it is gone."""
        return self._ref() if self._ref is not None else None

    def tensors(self) -> list[Tensor | None]:
        """The parameters now; None where one is gone or, in a lazy module, has no shape yet."""
        return [ref() for ref in self.refs]

    def gradients(self) -> list[Tensor | None]:
        """Their gradients now; None where there is none."""
        return [None if (p := ref()) is None else p.grad for ref in self.refs]

    def take_over(self, parameters: Sequence[ParameterInfo], ids: NDArray[np.uint32]) -> None:
        """From now on these; what the meter remembers is kept where they lie as they did."""
        self.parameters = tuple(parameters)
        tensors = [None if (p := i.ref()) is None or is_lazy(p) else p for i in parameters]
        layout = [None if t is None else (id(t), t.device, local(t).shape) for t in tensors]
        # By the tensor as well: another one may have come to lie where one that is gone has been.
        alive = all(r() is t for r, t in zip(self.refs, tensors, strict=False))
        if alive and layout == self._layout and np.array_equal(ids, self.ids):
            return
        self.refs = [_gone if t is None else weakref.ref(t) for t in tensors]
        self.ids, self._layout = ids, layout
        pieces = [None if t is None else local(t) for t in tensors]
        self.rows = [len(t) if t is not None and t.dim() > 1 and t.numel() else 0 for t in pieces]
        offsets = [0 if t is None else flat_offset(placement(t)) for t in tensors]
        self.offsets = np.array(offsets, np.int64)
        self.meter = self._make_meter(self)


def _gone() -> None:
    """Stands for the reference to a tensor that is not there."""


State = tuple[int, bool, torch.dtype, torch.device, tuple[int, ...] | None]
"""What a scan looks at in a parameter: identity, whether it is trained, type, device, and shape
(None where it has none yet, in a lazy module). Where nothing differs, nothing is to be done."""
Owners = dict[int, tuple[TrackedOptimizer, int]]
"""By the identity of a parameter: who steps it, in which of the run's parameter groups."""


class TrackedParameters:
    """All parameters, kept up to date by looking at model and optimizers again now and then.

    Everything of the user's is held weakly.
    """

    def __init__(
        self,
        model: Module,
        wanted: Callable[[str], bool],
        track: Callable[[Optimizer | None], TrackedOptimizer],
        declare: Declare,
    ) -> None:
        self._model = weakref.ref(model)
        self._wanted = wanted
        self._track = track
        self._declare = declare
        self._groups = 0
        self._states: dict[str, State] = {}
        self._owners: Owners | None = None
        """None where the next scan, soon, has to take everything over anew."""
        self._order: Mapping[str, int] = {}
        self._next_scan = 0
        self._held: list[int] = []
        self._tracked = weakref.WeakKeyDictionary[Optimizer, TrackedOptimizer]()
        self.optimizers: list[TrackedOptimizer] = []
        self.has_lazy = False
        """Whether some are still without a shape."""
        self.unowned = track(None)
        """The parameters of no optimizer."""

    @property
    def model(self) -> Module | None:
        """The model, or None when the user has let it go."""
        return self._model()

    @property
    def all(self) -> tuple[TrackedOptimizer, ...]:
        """Every group of parameters, those without an optimizer last."""
        return (*self.optimizers, self.unowned)

    def find(self, optimizer: Optimizer) -> TrackedOptimizer | None:
        """The parameters of this optimizer; None for one that is not tracked."""
        return self._tracked.get(optimizer)

    def are_stepped_by(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer steps a parameter of the model."""
        ours = {id(info.ref()) for tracked in self.all for info in tracked.parameters}
        return not ours.isdisjoint(parameter_ids(optimizer))

    def add(self, optimizer: Optimizer) -> tuple[TrackedOptimizer, list[TrackedOptimizer]]:
        """Track this optimizer; also gives those it takes the place of."""
        mine, replaced = set(parameter_ids(optimizer)), []
        tracked = self._tracked[optimizer] = self._track(optimizer)
        for old in list(self.optimizers):
            other = old.optimizer
            if other is None or set(parameter_ids(other)) <= mine:
                self._remove(old)
                replaced.append(old)
                tracked.groups += old.groups
        self.optimizers.append(tracked)
        return tracked, replaced

    def learn_order(self, order: Mapping[str, int]) -> None:
        """Forward order of the layers; the next scan, soon, stores it with the parameters."""
        self._order, self._owners = dict(order), None

    def refresh(self, step: int) -> list[Event]:
        """Look at the model again, if the last time was long ago.

        And where something may have changed: a parameter was to get its shape, or an optimizer was
        handed one. A step may come here every time, so each is not asked for.
        """
        optimizers = [tracked.optimizer for tracked in self.optimizers]
        held = [len(g["params"]) for one in optimizers if one is not None for g in one.param_groups]
        changed = held != self._held or self.has_lazy or self._owners is None
        self._held = held
        return self.scan(step) if changed or step >= self._next_scan else []

    def scan(self, step: int) -> list[Event]:
        """Look at model and optimizers anew; what has changed since the last time."""
        model = self._model()
        if model is None:
            return []
        self._next_scan = step + _SCAN
        infos = [info for info in named_parameters(model) if self._wanted(info.name)]
        states = {info.name: _state(p) for info in infos if (p := info.ref()) is not None}
        owners = self._find_owners()
        if states == self._states and owners == self._owners:
            return []
        events = _changes(step, self._states, states) if self._states else []
        self._states, self._owners = states, owners
        self.has_lazy = any(state[-1] is None for state in states.values())
        self._take_over(infos, owners)
        return events

    def settle(self, tracked: TrackedOptimizer, *, with_gradient: bool = False) -> None:
        """Choose the parameters that carry hooks: of those that have a gradient, once one can see.

        Where there are optimizers, what none of them steps tells nothing about steps.
        """
        sampled = tracked is not self.unowned or not self.optimizers
        tensors = tracked.tensors() if sampled else []
        if with_gradient:
            tensors = [None if p is None or p.grad is None else p for p in tensors]
        tracked.sampler.choose(tensors, getattr(tracked.meter, "kernel", None))

    def _find_owners(self) -> Owners:
        """Who steps what; of a parameter that several optimizers step the last one counts."""
        owners: Owners = {}
        for tracked in list(self.optimizers):
            optimizer = tracked.optimizer
            if optimizer is None:
                self._remove(tracked)
                continue
            more = len(optimizer.param_groups) - len(tracked.groups)
            numbers = range(self._groups, self._groups + more)
            tracked.groups += numbers
            self._groups += len(numbers)
            for number, group in zip(tracked.groups, optimizer.param_groups, strict=False):
                owners |= {id(parameter): (tracked, number) for parameter in group["params"]}
        return owners

    def _take_over(self, infos: list[ParameterInfo], owners: Owners) -> None:
        """Hand every parameter to the optimizer that steps it."""
        shares: dict[TrackedOptimizer, list[int]] = {tracked: [] for tracked in self.all}
        subjects = []
        for index, info in enumerate(infos):
            tracked, group = owners.get(id(info.ref()), (self.unowned, None))
            shares[tracked].append(index)
            subjects.append(self._subject(info, group))
        ids = self._declare(subjects)
        for tracked, share in shares.items():
            tracked.take_over([infos[index] for index in share], ids[share])
            self.settle(tracked)
            if (optimizer := tracked.optimizer) is not None:
                numbers = tracked.groups[: len(optimizer.param_groups)]
                named = [Subject(Kind.GROUP, f"group {one}", group=one) for one in numbers]
                tracked.group_ids = self._declare(named)

    def _subject(self, info: ParameterInfo, group: int | None) -> Subject:
        known: dict[str, Any] = {"group": group, "order": self._order.get(info.layer)}
        if (tensor := info.ref()) is not None and not is_lazy(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            known |= {"shape": tuple(tensor.shape), "dtype": dtype, "count": tensor.numel()}
            known |= {"frozen": not tensor.requires_grad, "placement": placement(tensor)}
        known |= {"tied_to": tuple(info.others), "module": info.module}
        return Subject(Kind.PARAMETER, info.name, info.layer, **known)

    def _remove(self, tracked: TrackedOptimizer) -> None:
        tracked.sampler.remove()
        self.optimizers.remove(tracked)
        if (optimizer := tracked.optimizer) is not None:
            del self._tracked[optimizer]


def _state(parameter: Tensor) -> State:
    shape = None if is_lazy(parameter) else parameter.shape
    return id(parameter), parameter.requires_grad, parameter.dtype, parameter.device, shape


def _changes(step: int, was: Mapping[str, State], now: Mapping[str, State]) -> list[Event]:
    """Parameters that have come, gone, or are trained no more or again."""
    removed, added = EventKind.PARAMETER_REMOVED, EventKind.PARAMETER_ADDED
    events = [Event(step, removed, "no longer in the model", n) for n in was if n not in now]
    for name, (identity, trainable, *_) in now.items():
        before = was.get(name)
        if before is None or before[0] != identity:
            text = "a new parameter" if before is None else "replaced by another tensor"
            events.append(Event(step, added, text, name))
        if before is not None and before[1] is not trainable:
            kind = EventKind.UNFROZEN if trainable else EventKind.FROZEN
            text = f"requires {'a' if trainable else 'no'} gradient now"
            events.append(Event(step, kind, text, name))
    return events


def parameter_ids(optimizer: Optimizer) -> list[int]:
    """The identities of the parameters it steps, in order."""
    return [id(p) for group in optimizer.param_groups for p in group["params"]]
