"""One call of an optimizer's `step`, from its first hook to its last."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradwatch.record.measuring import Measured
from gradwatch.record.ward import Ward
from gradwatch.stats import Family


@dataclass
class Frame:
    """What was measured before the update waits here until the update is done."""

    ward: Ward
    step: int
    due: frozenset[Family]
    full: bool
    """Histograms are taken too."""
    closure: bool
    """The gradient is made inside the step: it can be read only afterwards."""
    rest: Ward | None = None
    """The parameters of no optimizer, where they are measured with this step."""
    collects: bool = False
    """The instruments are to be read with this step."""
    sketches: bool = True
    cosines: bool = True
    skipped: bool = False
    hollow: bool = False
    """An optimizer inside this one stepped the same parameters: that one counts."""
    measured: list[tuple[Ward, Measured]] = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the optimizer was given a closure; `args[0]` is the optimizer itself."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return callable(closure)
