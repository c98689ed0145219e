"""Things that happen at a step and are no number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
