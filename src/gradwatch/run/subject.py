"""What a run holds beside its series: subjects, events, histograms.

A subject is everything that has a series: a parameter, a layer, a group of an optimizer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
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

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that tables stay small."""
        data = {k: v for k, v in asdict(self).items() if v != _DEFAULTS[k]}
        data["kind"] = str(self.kind)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Subject":
        """Back from `to_dict`; raises where a file holds something of the wrong type."""
        placement = data.get("placement")
        return cls(
            kind=Kind(data["kind"]),
            name=str(data["name"]),
            layer=str(data.get("layer", "")),
            shape=_ints(data.get("shape", ())),
            dtype=str(data.get("dtype", "")),
            count=int(data.get("count", 0)),
            group=None if data.get("group") is None else int(data["group"]),
            frozen=bool(data.get("frozen", False)),
            tied_to=tuple(str(name) for name in data.get("tied_to", ())),
            order=None if data.get("order") is None else int(data["order"]),
            module=str(data.get("module", "")),
            placement=placement
            and Placement(
                _ints(placement["global_shape"]),
                _ints(placement["offset"]),
                _ints(placement["shape"]),
                int(placement.get("replica", 0)),
            ),
        )


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


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


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

    @property
    def count(self) -> int:
        """Elements of the tensor, zeros and non-finite ones included."""
        finite = int(self.negative.sum()) + int(self.positive.sum())
        return finite + self.zeros + self.nan + self.positive_inf + self.negative_inf
