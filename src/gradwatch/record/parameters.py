"""Which parameters are recorded, what they are called, and which optimizer steps each of them."""

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
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
    while (inside := _wrapped(model)) is not None:
        child = model._modules.get(inside)
        if child is None:
            return model
        model = child
    return model


def bare_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """(path, module) in registration order, as on the bare model; a shared module under each name.

    Walks with a stack of its own: a model may be deeper than Python's recursion and hold cycles.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Module, tuple[object, ...] | None]] = [("", model, None)]
    while stack:
        path, module, above = stack.pop()
        if id(module) in seen and _is_above(module, above):
            continue
        seen.add(id(module))
        inside = _wrapped(module)
        if inside is None:  # a wrapper is no layer of the user's
            yield path, module
        children = [
            (path if name == inside else _join(path, name), child, (module, above))
            for name, child in module._modules.items()
            if child is not None
        ]
        stack.extend(reversed(children))


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
    for kind in type(module).__mro__:
        if kind.__name__ in WRAPPERS:
            return WRAPPERS[kind.__name__]
    return None


def _is_above(module: Module, above: tuple[object, ...] | None) -> bool:
    while above is not None:
        if above[0] is module:
            return True
        above = above[1]  # type: ignore[assignment]
    return False


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
        self.is_whole = True
        """Whether no parameter has died since they were taken over."""
        # One entry per parameter, in the same order:
        self.ids = np.zeros(0, np.uint32)
        self.rows: list[int] = []
        """Rows (dimension 0) of each; 0 for one that is no matrix."""
        self.offsets = np.zeros(0, np.int64)
        """Where this rank's piece begins in the flattened whole."""
        self._sizes: list[int] = []
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

    def take_over(self, parameters: Sequence[ParameterInfo], ids: Sequence[int]) -> None:
        """From now on these; what is remembered of them is kept where nothing has changed."""
        tensors = [None if (p := i.ref()) is None or is_lazy(p) else p for i in parameters]
        self.is_whole = True
        rows = [0 if t is None else _rows(local(t)) for t in tensors]
        sizes = [0 if t is None else local(t).numel() for t in tensors]
        same = (list(ids), rows, sizes) == (self.ids.tolist(), self.rows, self._sizes)
        same = same and all(ref() is t for ref, t in zip(self.refs, tensors, strict=True))
        self.parameters = tuple(parameters)
        if same:
            return
        self.refs = [_gone if t is None else weakref.ref(t, self._lose) for t in tensors]
        self.ids, self.rows, self._sizes = np.array(ids, np.uint32), rows, sizes
        self.offsets = np.array(
            [0 if t is None else flat_offset(placement(t)) for t in tensors], np.int64
        )
        self.meter = self._make_meter(self)

    def _lose(self, _: object) -> None:
        self.is_whole = False

    def number_groups(self, count: int) -> int:
        """Number its new parameter groups, from `count` on; the number after the last."""
        groups = len(self.optimizer.param_groups) if self.optimizer is not None else 0
        self.groups += range(count, count + groups - len(self.groups))
        return max([count, *(number + 1 for number in self.groups)])


def _gone() -> None:
    """Stands for the reference to a tensor that is not there."""


def _rows(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.dim() > 1 and tensor.numel() else 0


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
        self._seen: dict[str, tuple[int, bool]] = {}
        self._order: Mapping[str, int] = {}
        self._last: Hashable = None
        self._next_scan = 0
        self._held: list[int] = []
        """How many parameters each group of each optimizer had."""
        self._by_id: dict[int, TrackedOptimizer] = {}
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
        tracked = self._by_id.get(id(optimizer))
        return tracked if tracked is not None and tracked.optimizer is optimizer else None

    def are_stepped_by(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer steps a parameter of the model."""
        ours = {id(info.ref()) for tracked in self.all for info in tracked.parameters}
        return not ours.isdisjoint(parameter_ids(optimizer))

    def add(self, optimizer: Optimizer) -> tuple[TrackedOptimizer, list[TrackedOptimizer]]:
        """Track this optimizer; also gives those it takes the place of."""
        mine = set(parameter_ids(optimizer))
        replaced = [
            tracked
            for tracked in self.optimizers
            if (other := tracked.optimizer) is None or set(parameter_ids(other)) <= mine
        ]
        for old in replaced:
            self._remove(old)
        tracked = self._track(optimizer)
        tracked.groups = [number for old in replaced for number in old.groups]
        self.optimizers.append(tracked)
        self._by_id[id(optimizer)] = tracked
        return tracked, replaced

    def learn_order(self, order: Mapping[str, int]) -> None:
        """Forward order of the layers; the next scan, soon, stores it with the parameters."""
        self._order, self._next_scan = dict(order), 0

    def refresh(self, step: int) -> list[Event]:
        """Look at the model again, if the last time was long ago.

        And where something must have changed: a parameter has died, has got its shape, or was handed
        to an optimizer.
        """
        held = [
            len(group["params"])
            for tracked in self.optimizers
            if (optimizer := tracked.optimizer) is not None
            for group in optimizer.param_groups
        ]
        changed = held != self._held or self.has_lazy or not all(t.is_whole for t in self.all)
        self._held = held
        return self.scan(step) if changed or step >= self._next_scan else []

    def scan(self, step: int) -> list[Event]:
        """Look at model and optimizers anew; what has changed since the last time."""
        model = self._model()
        if model is None:
            return []
        self._next_scan = step + _SCAN
        infos = [info for info in named_parameters(model) if self._wanted(info.name)]
        events: list[Event] = []
        signature = self._signature(infos)
        if signature != self._last:
            self._last = signature
            events = self._changes(step, infos)
            self._take_over(infos)
        self.has_lazy = any((p := info.ref()) is not None and is_lazy(p) for info in infos)
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

    def _take_over(self, infos: list[ParameterInfo]) -> None:
        """Hand every parameter to the optimizers that step it."""
        owners_by_id = self._owners()
        shares: dict[int, list[int]] = {id(tracked): [] for tracked in self.all}
        groups: list[int | None] = []
        for index, info in enumerate(infos):
            owners = owners_by_id.get(id(info.ref()), [])
            # One that several optimizers step is measured with the last of them.
            tracked, group = owners[-1] if owners else (self.unowned, None)
            groups.append(group)
            shares[id(tracked)].append(index)
        ids = self._declare([self._subject(i, g) for i, g in zip(infos, groups, strict=True)])
        for tracked in self.all:
            share = shares[id(tracked)]
            tracked.take_over([infos[i] for i in share], [int(ids[i]) for i in share])
            self.settle(tracked)
            if (optimizer := tracked.optimizer) is not None:
                numbers = tracked.groups[: len(optimizer.param_groups)]
                tracked.group_ids = self._declare(
                    [Subject(Kind.GROUP, f"group {number}", group=number) for number in numbers]
                )

    def _subject(self, info: ParameterInfo, group: int | None) -> Subject:
        tensor = info.ref()
        subject = Subject(
            Kind.PARAMETER,
            info.name,
            info.layer,
            group=group,
            tied_to=tuple(info.others),
            order=self._order.get(info.layer),
            module=info.module,
        )
        if tensor is None or is_lazy(tensor):
            return subject
        return replace(
            subject,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            count=tensor.numel(),
            frozen=not tensor.requires_grad,
            placement=placement(tensor),
        )

    def _owners(self) -> dict[int, list[tuple[TrackedOptimizer, int]]]:
        """By the id of a parameter: who steps it, and in which of the run's parameter groups."""
        owners: dict[int, list[tuple[TrackedOptimizer, int]]] = {}
        for tracked in list(self.optimizers):
            optimizer = tracked.optimizer
            if optimizer is None:
                self._remove(tracked)
                continue
            self._groups = tracked.number_groups(self._groups)
            for number, group in zip(tracked.groups, optimizer.param_groups, strict=False):
                for parameter in group["params"]:
                    owners.setdefault(id(parameter), []).append((tracked, number))
        return owners

    def _changes(self, step: int, infos: list[ParameterInfo]) -> list[Event]:
        now = {
            info.name: (id(tensor), tensor.requires_grad)
            for info in infos
            if (tensor := info.ref()) is not None
        }
        was, self._seen = self._seen, now
        events = []
        for name, (identity, trainable) in now.items() if was else ():
            before = was.get(name)
            if before is None or before[0] != identity:
                text = "a new parameter" if before is None else "replaced by another tensor"
                events.append(Event(step, EventKind.PARAMETER_ADDED, text, name))
            if before is not None and before[1] is not trainable:
                kind = EventKind.UNFROZEN if trainable else EventKind.FROZEN
                text = f"requires {'a' if trainable else 'no'} gradient now"
                events.append(Event(step, kind, text, name))
        events += [
            Event(step, EventKind.PARAMETER_REMOVED, "no longer in the model", name)
            for name in was
            if name not in now
        ]
        return events

    def _signature(self, infos: list[ParameterInfo]) -> Hashable:
        """Everything a scan depends on: where it is as last time, nothing is to be done."""
        # By id: a parameter that the user has replaced is another tensor under the same name.
        tensors = [(info.name, tensor) for info in infos if (tensor := info.ref()) is not None]
        return (
            tuple(
                (name, id(p), p.requires_grad, p.dtype, p.device, None if is_lazy(p) else p.shape)
                for name, p in tensors
            ),
            tuple(
                (id(tracked), len(o.param_groups), tuple(parameter_ids(o)))
                if (o := tracked.optimizer) is not None
                else None
                for tracked in self.optimizers
            ),
            id(self._order),
        )

    def _remove(self, tracked: TrackedOptimizer) -> None:
        tracked.sampler.remove()
        self.optimizers.remove(tracked)
        self._by_id = {key: other for key, other in self._by_id.items() if other is not tracked}


def parameter_ids(optimizer: Optimizer) -> list[int]:
    """The identities of the parameters it steps, in order."""
    return [id(p) for group in optimizer.param_groups for p in group["params"]]
