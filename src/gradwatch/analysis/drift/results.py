"""What the drift analysis hands back."""

from dataclasses import dataclass
from enum import StrEnum

from gradwatch.result import Result


class WeightDriftSeverity(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class LayerDrift(Result):
    count: int
    relative_change: float | None
    """‖after − before‖ / ‖before‖."""
    cosine: float | None
    """Between before and after."""
    changed_fraction: float | None
    """Share of elements that are not equal any more."""
    sign_flip_fraction: float | None
    """Share of elements that went from one side of zero to the other."""
    sparsity_change: float | None
    """Share of exact zeros after, minus before."""
    nonfinite_before: int
    nonfinite_after: int


@dataclass(frozen=True)
class WeightDriftAnalysis(Result):
    layers: dict[str, LayerDrift]
    mean_drift: float | None
    """Relative change, weighted by the number of elements; tensors that were zero have none."""
    max_drift: float | None
    severity: WeightDriftSeverity
    affected_layers: tuple[str, ...]
    """Moved further than the others (median + 3 robust deviations), by more than a tenth, or away
    from zero."""
    unmoved_layers: tuple[str, ...]
    """Not one element changed."""
    nonfinite_layers: tuple[str, ...]
    added_layers: tuple[str, ...]
    removed_layers: tuple[str, ...]
