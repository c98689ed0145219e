"""Who is watched: the model's parameters, shared out among the optimizers that step them."""

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.record.instrument import Sink
from gradwatch.record.naming import Named, named_parameters
from gradwatch.record.placement import placement
from gradwatch.record.sentinel import Sentinel
from gradwatch.record.ward import Track, Ward
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Kind

Declared = Callable[[Sequence[Subject], NDArray[np.uint32]], None]


class Roster:
    """The wards, kept up to date by looking at the model and the optimizers again now and then.

    Everything of the user's is held weakly. Parameters of no optimizer form a ward of their own.
    """

    def __init__(
        self,
        model: Module,
        sink: Sink,
        wanted: Callable[[str], bool],
        make_sentinel: Callable[[], Sentinel],
        declared: Declared,
    ) -> None:
        self._model = weakref.ref(model)
        self._sink = sink
        self._wanted = wanted
        self._make_sentinel = make_sentinel
        self._declared = declared
        self._groups = 0
        self._known: dict[str, tuple[int, bool]] = {}
        self._order: dict[str, int] = {}
        self._last: Hashable = None
        self.wards: list[Ward] = []
        self._by_id: dict[int, Ward] = {}
        self.rest = Ward(None, make_sentinel())
        self.names: tuple[str, ...] = ()

    @property
    def model(self) -> Module | None:
        return self._model()

    @property
    def all(self) -> tuple[Ward, ...]:
        """Every ward, that of the parameters of no optimizer included."""
        return (*self.wards, self.rest)

    def find(self, optimizer: Optimizer) -> Ward | None:
        ward = self._by_id.get(id(optimizer))
        return ward if ward is not None and ward.optimizer is optimizer else None

    def owns_ours(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer steps a parameter of the model."""
        ours = {id(p) for p in self._tensors()}
        return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])

    def add(self, optimizer: Optimizer) -> tuple[Ward, list[Ward]]:
        """A ward for this optimizer, and the wards it takes the place of."""
        mine = _parameter_ids(optimizer)
        gone = [ward for ward in self.wards if self._is_within(ward, mine)]
        for ward in gone:
            self._remove(ward)
        ward = Ward(optimizer, self._make_sentinel())
        ward.groups = [number for old in gone for number in old.groups]
        self.wards.append(ward)
        self._by_id[id(optimizer)] = ward
        return ward, gone

    def learn_order(self, order: dict[str, int]) -> None:
        """Forward order of the layers; the next scan stores it with the parameters."""
        self._order = order

    def scan(self, step: int) -> list[Event]:
        """Look at model and optimizers anew; what has changed since the last time."""
        model = self._model()
        if model is None:
            return []
        found = [named for named in named_parameters(model) if self._wanted(named.name)]
        signature = self._signature(found)
        if signature == self._last:
            return []
        self._last = signature
        events = self._changes(step, found)
        owner = self._owners()
        shares: dict[int, list[Named]] = {id(ward): [] for ward in self.all}
        groups: dict[str, int | None] = {}
        for named in found:
            tensor = named.ref()
            owners = owner.get(id(tensor), [])
            groups[named.name] = owners[-1][1] if owners else None
            for ward, _ in owners or [(self.rest, 0)]:
                shares[id(ward)].append(named)
        tracks = self._tracks(found, groups)
        for ward in self.all:
            self._share_out(ward, [tracks[named.name] for named in shares[id(ward)]])
        self.names = tuple(named.name for named in found)
        return events

    def _share_out(self, ward: Ward, tracks: list[Track]) -> None:
        if [t.id for t in tracks] != [t.id for t in ward.tracks]:
            ward.copies.plan([track.tensor for track in tracks])
        ward.hand_over(tracks)
        stands = ward is not self.rest or not self.wards
        able = [p for p in ward.parameters() if p is not None and not is_lazy(p)]
        ward.sentinel.elect(able if stands else [])
        if (optimizer := ward.optimizer) is not None:
            ward.group_ids = self._declare_groups(ward, optimizer)

    def _tracks(self, found: list[Named], groups: dict[str, int | None]) -> dict[str, Track]:
        subjects = [self._subject(named, groups[named.name]) for named in found]
        ids = self._sink.declare(subjects)
        self._declared(subjects, ids)
        return {
            named.name: Track(named, subject, int(number))
            for named, subject, number in zip(found, subjects, ids, strict=True)
        }

    def _subject(self, named: Named, group: int | None) -> Subject:
        tensor = named.ref()
        subject = Subject(
            Kind.PARAMETER,
            named.name,
            named.layer,
            group=group,
            tied_to=tuple(named.others),
            order=self._order.get(named.layer),
            module=named.module,
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

    def _declare_groups(self, ward: Ward, optimizer: Optimizer) -> NDArray[np.uint32]:
        numbers = ward.groups[: len(optimizer.param_groups)]
        subjects = [Subject(Kind.GROUP, f"group {number}", group=number) for number in numbers]
        ids = self._sink.declare(subjects)
        self._declared(subjects, ids)
        return ids

    def _owners(self) -> dict[int, list[tuple[Ward, int]]]:
        owners: dict[int, list[tuple[Ward, int]]] = {}
        for ward in list(self.wards):
            optimizer = ward.optimizer
            if optimizer is None:
                self._remove(ward)
                continue
            while len(ward.groups) < len(optimizer.param_groups):
                ward.groups.append(self._groups)
                self._groups += 1
            for number, group in zip(ward.groups, optimizer.param_groups, strict=False):
                for parameter in group["params"]:
                    owners.setdefault(id(parameter), []).append((ward, number))
        return owners

    def _changes(self, step: int, found: list[Named]) -> list[Event]:
        now = {
            named.name: (id(tensor), tensor.requires_grad)
            for named in found
            if (tensor := named.ref()) is not None
        }
        events = []
        for name, (identity, trainable) in now.items() if self._known else ():
            if name not in self._known:
                events.append(Event(step, EventKind.PARAMETER_ADDED, "a new parameter", name))
                continue
            was, was_trainable = self._known[name]
            if was != identity:
                text = "replaced by another tensor"
                events.append(Event(step, EventKind.PARAMETER_ADDED, text, name))
            if was_trainable and not trainable:
                events.append(Event(step, EventKind.FROZEN, "requires no gradient now", name))
            elif trainable and not was_trainable:
                events.append(Event(step, EventKind.UNFROZEN, "requires a gradient now", name))
        events.extend(
            Event(step, EventKind.PARAMETER_REMOVED, "no longer in the model", name)
            for name in self._known
            if name not in now
        )
        self._known = now
        return events

    def _signature(self, found: list[Named]) -> Hashable:
        """Everything a scan depends on: where it is as last time, nothing is to be done."""
        tensors = [(named.name, tensor) for named in found if (tensor := named.ref()) is not None]
        return (
            tuple(
                (name, id(p), p.requires_grad, p.dtype, None if is_lazy(p) else p.shape)
                for name, p in tensors
            ),
            tuple(
                (id(ward), tuple(len(g["params"]) for g in o.param_groups), _parameter_sum(o))
                if (o := ward.optimizer) is not None
                else None
                for ward in self.wards
            ),
            id(self._order),
        )

    def _remove(self, ward: Ward) -> None:
        ward.sentinel.dismiss()
        self.wards.remove(ward)
        self._by_id = {key: other for key, other in self._by_id.items() if other is not ward}

    def _tensors(self) -> list[Tensor]:
        return [p for ward in self.all for p in ward.parameters() if p is not None]

    def _is_within(self, ward: Ward, others: set[int]) -> bool:
        optimizer = ward.optimizer
        return optimizer is None or _parameter_ids(optimizer) <= others


def _parameter_sum(optimizer: Optimizer) -> int:
    return sum(id(p) for group in optimizer.param_groups for p in group["params"])


def _parameter_ids(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
