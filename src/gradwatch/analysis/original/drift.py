"""Drift between two sets of weights, as an older, uncompiled copy of the original intended it.

The compiled program declares the result and has no function for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import DriftSeverity
from gradwatch.analysis.result import Result
from gradwatch.errors import Exit, GradwatchError

LIMITS = ((0.1, DriftSeverity.HIGH), (0.05, DriftSeverity.MEDIUM), (0.01, DriftSeverity.LOW))


@dataclass(frozen=True)
class WeightDriftAnalysis(Result):
    mean_drift: float
    max_drift: float
    severity: DriftSeverity
    affected_layers: tuple[str, ...]


def analyze_drift(
    before: Mapping[str, NDArray[np.float32]], after: Mapping[str, NDArray[np.float32]]
) -> WeightDriftAnalysis:
    """Mean absolute difference per layer; affected is more than twice the mean of the layers."""
    if list(before) != list(after) or any(
        np.shape(before[name]) != np.shape(after[name]) for name in before
    ):
        raise GradwatchError("Drift needs the same tensors before and after.", Exit.USAGE)
    drifts = {name: _drift(before[name], after[name]) for name in before}
    mean = floats.mean(list(drifts.values())) if drifts else 0.0
    severity = next((level for above, level in LIMITS if mean > above), DriftSeverity.MINIMAL)
    affected: Sequence[str] = [name for name, drift in drifts.items() if drift > 2.0 * mean]
    return WeightDriftAnalysis(mean, max(drifts.values(), default=0.0), severity, tuple(affected))


def _drift(before: NDArray[np.float32], after: NDArray[np.float32]) -> float:
    apart = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
    return float(apart.mean()) if apart.size else 0.0
