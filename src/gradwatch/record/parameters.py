"""Which parameters are recorded, what they are called, and which optimizer steps each of them."""

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.kernel import SKETCH_WIDTH
from gradwatch.record.clipping import GradientSampler
from gradwatch.record.tensors import flat_offset, local, on_accelerator, placement
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Kind
from gradwatch.stats.rows import name_seed
from gradwatch.store import Writer

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


if TYPE_CHECKING:
    from gradwatch.record.backend import Backend

_GLANCE, _SCAN = 4, 16
"""Of so many turns one takes a glance, or looks at everything whatever a glance says."""
Declared = Callable[[Sequence[Subject], NDArray[np.uint32]], None]


class TrackedOptimizer:
    """The parameters of one optimizer (or of none), measured together in one call.

    Holds neither optimizer nor parameters alive.
    """

    def __init__(
        self,
        optimizer: Optimizer | None,
        sampler: GradientSampler,
        make_backend: Callable[[bool], "Backend"],
    ) -> None:
        self._ref = weakref.ref(optimizer) if optimizer is not None else None
        self.sampler = sampler
        self._make_backend = make_backend
        self._on_device = False
        self.backend = make_backend(False)
        """Measures these parameters where they lie: on the CPU or on an accelerator."""
        self.devices: tuple[torch.device, ...] = ()
        """The accelerators they lie on."""
        self.has_stepped = False
        self.groups: list[int] = []
        """The run's numbers of the optimizer's parameter groups."""
        self.group_ids = np.zeros(0, np.uint32)
        self.parameters: tuple[ParameterInfo, ...] = ()
        self._refs: list[Callable[[], Tensor | None]] = []
        self.is_whole = True
        """Whether no parameter has died since they were taken over."""
        # One entry per parameter, in the same order:
        self.ids = np.zeros(0, np.uint32)
        self.rows: list[int] = []
        """Rows (dimension 0) of each; 0 for one that is no matrix."""
        self.seeds = np.zeros(0, np.uint64)
        self.offsets = np.zeros(0, np.int64)
        """Where this rank's piece begins in the flattened whole."""
        self.wholes = np.zeros(0, np.int64)
        self.last_sketch = np.zeros((0, SKETCH_WIDTH), np.float32)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer, or None for parameters that none has, and when it is gone."""
        return self._ref() if self._ref is not None else None

    def tensors(self) -> list[Tensor | None]:
        """The parameters now; None where one is gone or, in a lazy module, has no shape yet."""
        return [ref() for ref in self._refs]

    def gradients(self) -> list[Tensor | None]:
        """Their gradients now; None where there is none."""
        return [None if (p := ref()) is None else p.grad for ref in self._refs]

    def take_over(self, parameters: Sequence[ParameterInfo], ids: Sequence[int]) -> None:
        """From now on these; what is remembered of them is kept where nothing has changed."""
        owned = [info.ref() for info in parameters]
        self.is_whole = True
        self._refs = [
            _gone if tensor is None or is_lazy(tensor) else weakref.ref(tensor, self._lose)
            for tensor in owned
        ]
        del owned
        tensors = self.tensors()
        rows = [_rows(tensor) for tensor in tensors]
        remote = [tensor for tensor in tensors if tensor is not None and on_accelerator(tensor)]
        on_device, self.devices = bool(remote), tuple(dict.fromkeys(t.device for t in remote))
        sizes = [0 if tensor is None else tensor.numel() for tensor in tensors]
        same = (list(ids), rows, sizes) == (self.ids.tolist(), self.rows, self.wholes.tolist())
        self.parameters = tuple(parameters)
        if same and on_device is self._on_device:
            return
        self.ids, self.rows, self._on_device = np.array(ids, np.uint32), rows, on_device
        self.seeds = np.array([name_seed(info.name) for info in parameters], np.uint64)
        self.offsets = np.array(
            [0 if t is None else flat_offset(placement(t)) for t in tensors], np.int64
        )
        self.wholes = np.array(sizes, np.int64)
        self.last_sketch = np.full((len(ids), SKETCH_WIDTH), np.nan, np.float32)
        self.backend = self._make_backend(on_device)
        self.backend.prepare(self)

    def _lose(self, _: object) -> None:
        self.is_whole = False

    def number_groups(self, count: int) -> int:
        """Number its new parameter groups, from `count` on; the number after the last."""
        groups = len(self.optimizer.param_groups) if self.optimizer is not None else 0
        while len(self.groups) < groups:
            self.groups.append(count)
            count += 1
        return count


def _is_lazy(info: ParameterInfo) -> bool:
    tensor = info.ref()
    return tensor is not None and is_lazy(tensor)


def _gone() -> None:
    """Stands for the reference to a tensor that is not there."""


def _rows(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    tensor = local(tensor)
    return tensor.shape[0] if tensor.dim() > 1 and tensor.numel() else 0


class TrackedParameters:
    """All parameters, kept up to date by looking at model and optimizers again now and then.

    Everything of the user's is held weakly.
    """

    def __init__(
        self,
        model: Module,
        sink: Writer,
        wanted: Callable[[str], bool],
        track: Callable[[Optimizer | None], TrackedOptimizer],
        declared: Declared,
    ) -> None:
        self._model = weakref.ref(model)
        self._sink = sink
        self._wanted = wanted
        self._track = track
        self._declared = declared
        self._groups = 0
        self._seen: dict[str, tuple[int, bool]] = {}
        self._order: dict[str, int] = {}
        self._last: Hashable = None
        self._modules: list[weakref.ref[Module]] = []
        self._glanced: Hashable = None
        self._turn = 0
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
        return not ours.isdisjoint(_parameter_ids(optimizer))

    def add(self, optimizer: Optimizer) -> tuple[TrackedOptimizer, list[TrackedOptimizer]]:
        """Track this optimizer; also gives those it takes the place of."""
        mine = _parameter_ids(optimizer)
        replaced = [
            tracked
            for tracked in self.optimizers
            if (other := tracked.optimizer) is None or _parameter_ids(other) <= mine
        ]
        for old in replaced:
            self._remove(old)
        tracked = self._track(optimizer)
        tracked.groups = [number for old in replaced for number in old.groups]
        self.optimizers.append(tracked)
        self._by_id[id(optimizer)] = tracked
        return tracked, replaced

    def learn_order(self, order: dict[str, int]) -> None:
        """Forward order of the layers; the next scan stores it with the parameters."""
        self._order, self._glanced = order, None

    def refresh(self, step: int) -> list[Event]:
        """Scan if something may have changed: seen at a glance every few times, or by turns."""
        self._turn += 1
        if (
            self._glanced is None
            or self._turn % _SCAN == 0
            or not all(tracked.is_whole for tracked in self.all)
            or (self._turn % _GLANCE == 0 and self._glance() != self._glanced)
        ):
            return self.scan(step)
        return []

    def scan(self, step: int) -> list[Event]:
        """Look at model and optimizers anew; what has changed since the last time."""
        model = self._model()
        if model is None:
            return []
        infos = [info for info in named_parameters(model) if self._wanted(info.name)]
        signature = self._signature(infos)
        self._modules = [weakref.ref(module) for _, module in bare_modules(model)]
        events: list[Event] = []
        if signature != self._last:
            self._last = signature
            events += self._changes(step, infos)
            self._take_over(infos)
        self.has_lazy = any(map(_is_lazy, infos))
        # A lazy one becomes another under the same id: no glance would show it.
        self._glanced = None if self.has_lazy else self._glance()
        return events

    def _glance(self) -> Hashable:
        """What a change of the model or of an optimizer would hardly leave as it is."""
        optimizers = [optimizer for tracked in self.optimizers if (optimizer := tracked.optimizer)]
        return (
            [
                (*map(id, module._parameters.values()), *map(id, module._modules.values()))
                for ref in self._modules
                if (module := ref()) is not None
            ],
            [p is not None and p.requires_grad for tracked in self.all for p in tracked.tensors()],
            [
                id(p)
                for optimizer in optimizers
                for g in optimizer.param_groups
                for p in g["params"]
            ],
            [len(optimizer.param_groups) for optimizer in optimizers],
        )

    def _take_over(self, infos: list[ParameterInfo]) -> None:
        """Hand every parameter to the optimizers that step it."""
        owners_by_id = self._owners()
        shares: dict[int, list[int]] = {id(tracked): [] for tracked in self.all}
        groups: list[int | None] = []
        for index, info in enumerate(infos):
            owners = owners_by_id.get(id(info.ref()), [])
            groups.append(owners[-1][1] if owners else None)
            for tracked, _ in owners or [(self.unowned, 0)]:
                shares[id(tracked)].append(index)
        ids = self._declare([self._subject(i, g) for i, g in zip(infos, groups, strict=True)])
        for tracked in self.all:
            share = shares[id(tracked)]
            tracked.take_over([infos[i] for i in share], [int(ids[i]) for i in share])
            self._settle(tracked)

    def _settle(self, tracked: TrackedOptimizer) -> None:
        """Its parameters are known: choose those that carry hooks, declare its groups."""
        # Where there are optimizers, what none of them steps tells nothing about steps.
        sampled = tracked is not self.unowned or not self.optimizers
        able = [p for p in tracked.tensors() if p is not None]
        tracked.sampler.choose(able if sampled else [])
        if (optimizer := tracked.optimizer) is not None:
            numbers = tracked.groups[: len(optimizer.param_groups)]
            tracked.group_ids = self._declare(
                [Subject(Kind.GROUP, f"group {number}", group=number) for number in numbers]
            )

    def _declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        ids = self._sink.declare(subjects)
        self._declared(subjects, ids)
        return ids

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
        events = []
        for name, (identity, trainable) in now.items() if self._seen else ():
            if name not in self._seen:
                events.append(Event(step, EventKind.PARAMETER_ADDED, "a new parameter", name))
                continue
            was, was_trainable = self._seen[name]
            if was != identity:
                text = "replaced by another tensor"
                events.append(Event(step, EventKind.PARAMETER_ADDED, text, name))
            if was_trainable and not trainable:
                events.append(Event(step, EventKind.FROZEN, "requires no gradient now", name))
            elif trainable and not was_trainable:
                events.append(Event(step, EventKind.UNFROZEN, "requires a gradient now", name))
        events.extend(
            Event(step, EventKind.PARAMETER_REMOVED, "no longer in the model", name)
            for name in self._seen
            if name not in now
        )
        self._seen = now
        return events

    def _signature(self, infos: list[ParameterInfo]) -> Hashable:
        """Everything a scan depends on: where it is as last time, nothing is to be done."""
        # By id: a parameter that the user has replaced is another tensor under the same name.
        tensors = [(info.name, tensor) for info in infos if (tensor := info.ref()) is not None]
        return (
            tuple(
                (name, id(p), p.requires_grad, p.dtype, None if is_lazy(p) else p.shape)
                for name, p in tensors
            ),
            tuple(
                (id(tracked), tuple(tuple(map(id, g["params"])) for g in o.param_groups))
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


def _parameter_ids(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
