"""Gradients of the same parameters that pull in opposite directions.

A conflict is a negative cosine between gradients of the *same* parameters from different losses,
tasks, micro-batches or optimizers. Between layers there is no inner product; what can be said there
is whether their norms move together: `layer_correlations`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.analysis.gradients.distribution import interactions
from gradwatch.analysis.layers import LayerSeries
from gradwatch.analysis.original import conflicts as original
from gradwatch.analysis.original.history import from_run
from gradwatch.analysis.result import Result, missing
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run

MILD, MODERATE, SEVERE = 0.1, 0.3, 0.6


class ConflictType(StrEnum):
    NONE = "None"
    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"


class ConflictLevel(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


ADVICE = (
    "Project conflicting gradients (PCGrad) before the step.",
    "Weigh the losses so that their gradients have comparable norms.",
    "Train the parts that conflict with separate heads or at different times.",
)


@dataclass(frozen=True)
class GradientConflict(Result):
    source1: str
    source2: str
    parameter: str
    cosine: float | None
    conflict_score: float | None
    """max(0, −cosine)."""
    conflict_type: ConflictType | None


@dataclass(frozen=True)
class ConflictAnalysis(Result):
    conflicts: tuple[GradientConflict, ...]
    """Every pair of sources and parameter, worst first."""
    total_conflicts: int
    overall_conflict_level: ConflictLevel
    """By the share of the compared elements that lie in conflicting parameters."""
    conflicting_share: float | None
    mitigation_strategies: tuple[str, ...]


def analyze_conflicts(gradients: Mapping[str, Mapping[str, ArrayLike]]) -> ConflictAnalysis:
    """`{"loss a": {parameter: gradient}, "loss b": {…}}`: who pulls against whom, and where."""
    if len(gradients) < 2:
        raise GradwatchError(
            f"Expected the gradients of at least two sources, got {len(gradients)}.", Exit.USAGE
        )
    found, compared, conflicting = [], 0, 0
    for first, second in combinations(gradients, 2):
        for name in gradients[first]:
            if name not in gradients[second]:
                continue
            a, b = (np.asarray(gradients[s][name], float).ravel() for s in (first, second))
            conflict = _compared(first, second, name, a, b)
            found.append(conflict)
            compared += a.size if conflict.cosine is not None else 0
            conflicting += a.size if (conflict.conflict_score or 0) > MILD else 0
    found.sort(key=lambda item: -(item.conflict_score or 0))
    count = sum((item.conflict_score or 0) > MILD for item in found)
    return ConflictAnalysis(
        tuple(found),
        count,
        _level(conflicting / compared if compared else 0.0),
        conflicting / compared if compared else missing("no parameter has two gradients"),
        ADVICE if count else (),
    )


def layer_correlations(
    run: Run, *, window: int | None = None, rules: Rules | str = Rules.GRADWATCH
) -> Any:
    """Which layers' norms move together: correlation of Δ ln norm over the last steps (100).

    `rules="original"` gives what the original called conflicts between layers (last 10 steps).
    """
    if Rules(rules) is Rules.ORIGINAL:
        return original.analyze_conflicts(from_run(run), window=window or 10)
    return interactions(LayerSeries.of(run).last(window or 100))


def conflict_type(score: float) -> ConflictType:
    if score > SEVERE:
        return ConflictType.SEVERE
    if score > MODERATE:
        return ConflictType.MODERATE
    return ConflictType.MILD if score > MILD else ConflictType.NONE


def _compared(
    first: str,
    second: str,
    name: str,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> GradientConflict:
    if a.shape != b.shape:
        raise GradwatchError(
            f"Expected gradients of one shape for {name!r}, got {a.size} and {b.size} elements.",
            Exit.USAGE,
        )
    size = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if not (size > 0 and math.isfinite(size)):
        gone = missing("one of the gradients is zero or not finite")
        return GradientConflict(first, second, name, gone, gone, gone)
    cosine = float(a @ b) / size
    score = max(0.0, -cosine)
    return GradientConflict(first, second, name, cosine, score, conflict_type(score))


def _level(share: float) -> ConflictLevel:
    if share > 0.5:
        return ConflictLevel.CRITICAL
    if share > 0.25:
        return ConflictLevel.HIGH
    return ConflictLevel.MEDIUM if share > 0.05 else ConflictLevel.LOW
