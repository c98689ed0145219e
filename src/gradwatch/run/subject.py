"""What a run holds beside its series: subjects, events, histograms.

A subject is everything that has a series: a parameter, a layer, a group of an optimizer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Kind


@dataclass(frozen=True, slots=True)
class Placement:
    """Which part of the whole tensor one rank holds.

    `offset` and `shape` give the shard of the whole; ranks whose shards are the same hold copies,
    and only one of them is counted.
    """

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    replica: int = 0
    """Which copy of the shard this is, counting from 0."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the table of subjects. Names are data: never a path, markup or a control."""

    kind: Kind
    name: str
    layer: str = ""
    """The layer that owns it: a module path; empty is the model itself."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    count: int = 0
    """Elements; 0 where that is not known, as in a run made from norms."""
    group: int | None = None
    """Index of the optimizer group that holds it; None if no optimizer knows it."""
    frozen: bool = False
    tied_to: tuple[str, ...] = ()
    """Other names of the same tensor."""
    order: int | None = None
    """Position in forward order, once a forward pass was seen."""
    module: str = ""
    """Class of the owning module, such as `Linear` or `BatchNorm1d`."""
    placement: Placement | None = None

    def unsharded(self) -> "Subject":
        """The subject as one machine would have it."""
        if self.placement is None:
            return self
        shape = self.placement.global_shape
        return replace(self, shape=shape, count=prod(shape), placement=None)

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that tables stay small."""
        given = {**asdict(self), "kind": str(self.kind)}
        return {name: value for name, value in given.items() if value != _DEFAULTS[name]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Subject":
        """Back from `to_dict`; what a later version added is left out.

        Raises ValueError, TypeError or KeyError for what is no subject.
        """
        known = {k: v for k, v in _with_tuples(data).items() if k in _DEFAULTS}
        known["kind"] = Kind(known["kind"])
        if "placement" in known:
            known["placement"] = Placement(**_with_tuples(known["placement"]))
        return cls(**known)


def _with_tuples(data: Any) -> dict[str, Any]:
    """A dictionary with tuples for the lists that JSON makes of them."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in dict(data).items()}


_DEFAULTS = {item.name: item.default for item in fields(Subject)}


def with_known_shapes(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Where nothing has two dimensions the shapes are not known: gradients were handed in flat."""
    if any(len(subject.shape) > 1 for subject in subjects):
        return tuple(subjects)
    return tuple(replace(subject, shape=()) for subject in subjects)


def block_of(layer: str) -> str:
    """The path up to its first number: `layers.3.mlp.fc` is in `layers.3`; else the first part."""
    numbered = re.match(r"(.*?\d+)(\.|$)", layer)
    return numbered[1] if numbered else layer.partition(".")[0]


class EventKind(StrEnum):
    """What happened. The recorder writes most of these; the store adds gaps, drops and damage."""

    STARTED = "started"
    CLOSED = "closed"
    OPTIMIZER_ADOPTED = "optimizer adopted"
    PARAMETER_ADDED = "parameter added"
    PARAMETER_REMOVED = "parameter removed"
    FROZEN = "frozen"
    UNFROZEN = "unfrozen"
    MODE_CHANGED = "mode changed"
    SKIPPED_STEP = "skipped step"
    NOT_RECORDED = "not recorded"
    AUDIT = "audit"
    COST = "cost"
    STRETCHED = "cadence stretched"
    ENGINE = "engine"
    GAP = "gap"
    DAMAGE = "damage"
    RETENTION = "retention"
    SWITCHED_OFF = "switched off"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `data` is plain JSON."""

    step: int
    kind: EventKind
    text: str
    subject: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    wall: float = 0.0
    rank: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All but the rank, which a writer's folder says for all its events."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "rank"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], rank: int = 0) -> "Event":
        """Back from `to_dict`."""
        return cls(**{**data, "kind": EventKind(data["kind"]), "rank": rank})


@dataclass(frozen=True)
class Histogram:
    """Counts per power of two of |x|: bin e holds 2^e ≤ |x| < 2^(e+1).

    Bins of both signs, zeros and non-finite elements together are the tensor's count, always.
    """

    first_exponent: int
    negative: NDArray[np.uint64]
    positive: NDArray[np.uint64]
    zeros: int = 0
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0

    @classmethod
    def merged(cls, parts: "Sequence[Histogram]") -> "Histogram":
        """The histogram of all parts together."""
        first = min(part.first_exponent for part in parts)
        end = max(part.first_exponent + len(part.negative) for part in parts)
        negative, positive = np.zeros((2, end - first), np.uint64)
        for part in parts:
            at = part.first_exponent - first
            negative[at : at + len(part.negative)] += part.negative
            positive[at : at + len(part.positive)] += part.positive
        others = [(part.zeros, part.nan, part.positive_inf, part.negative_inf) for part in parts]
        return cls(first, negative, positive, *map(sum, zip(*others, strict=True)))

    @property
    def count(self) -> int:
        """Elements of the tensor, zeros and non-finite ones included."""
        finite = int(self.negative.sum()) + int(self.positive.sum())
        return finite + self.zeros + self.nan + self.positive_inf + self.negative_inf


@dataclass(frozen=True)
class HistogramTable:
    """Histograms of several tensors, joined in a few arrays: as they are measured and stored."""

    tensors: NDArray[np.int64]
    """Whose they are: places among the tensors that were measured together."""
    first_exponents: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """How many bins each has."""
    counts: NDArray[np.uint64]
    """Of each its negative bins, then as many positive ones."""
    others: NDArray[np.uint64]
    """[histogram, 4]: zeros, NaN, +Inf, −Inf."""

    @classmethod
    def of(cls, histograms: Sequence[Histogram | None]) -> "HistogramTable":
        """Those of tensors of which some may have none."""
        there = [(at, found) for at, found in enumerate(histograms) if found is not None]
        others = [(h.zeros, h.nan, h.positive_inf, h.negative_inf) for _, h in there]
        counts = [part for _, h in there for part in (h.negative, h.positive)]
        return cls(
            np.array([at for at, _ in there], np.int64),
            np.array([h.first_exponent for _, h in there], np.int64),
            np.array([len(h.negative) for _, h in there], np.int64),
            np.concatenate([np.zeros(0, np.uint64), *counts]).astype(np.uint64),
            np.array(others, np.uint64).reshape(-1, 4),
        )

    def part(self, begin: int, end: int) -> "HistogramTable":
        """Those from `begin` up to `end`."""
        bins = 2 * self.sizes
        counts = self.counts[bins[:begin].sum() : bins[:end].sum()]
        some = (part[begin:end] for part in (self.tensors, self.first_exponents, self.sizes))
        tensors, first_exponents, sizes = some
        return HistogramTable(tensors, first_exponents, sizes, counts, self.others[begin:end])

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Histogram]:
        begin = 0
        for at, size in enumerate(self.sizes.tolist()):
            negative, positive = self.counts[begin : begin + 2 * size].reshape(2, size)
            first = int(self.first_exponents[at])
            yield Histogram(first, negative, positive, *self.others[at].tolist())
            begin += 2 * size
