"""Frames of the animation: one per step, each layer with its size and two intensities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from gradwatch.result import Missing, Result, missing

FLOOR_DECADES = 12.0
"""Over the run, intensity covers at most so many decades below the largest norm."""


@dataclass(frozen=True)
class Sample:
    """What one pass over a gradient leaves: statistics of its finite elements, and counts."""

    mean_abs: float | None
    """None where only the norm is known."""
    max_abs: float | None
    norm: float
    count: int
    nan: int
    inf: int

    @property
    def finite(self) -> int:
        return self.count - self.nan - self.inf


@dataclass(frozen=True)
class Limits:
    vanishing_threshold: float
    exploding_threshold: float


@dataclass(frozen=True)
class LayerGradientInfo(Result):
    """None where the layer had no gradient (no elements) or no finite one."""

    name: str
    mean_abs_grad: float | None
    max_abs_grad: float | None
    grad_norm: float | None
    is_vanishing: bool | None
    is_exploding: bool | None
    flow_intensity: float | None
    """Norm over the largest finite norm of the same frame."""
    run_intensity: float | None
    """Place of the norm between the smallest and largest of the run, on a log scale; 0 for zero."""
    nan_count: int
    inf_count: int

    @property
    def is_nonfinite(self) -> bool:
        return self.nan_count + self.inf_count > 0


@dataclass(frozen=True)
class GradientFrame(Result):
    step: int
    layers: tuple[LayerGradientInfo, ...]
    """In the order in which they were first recorded."""


Recorded = tuple[int, dict[str, Sample]]


def frames(
    recorded: Sequence[Recorded], order: Sequence[str], limits: Limits
) -> list[GradientFrame]:
    """Intensities over the run need all frames, so they are made when asked for."""
    positive = [s.norm for _, samples in recorded for s in samples.values() if s.norm > 0]
    high = max(positive, default=1.0)
    low = max(min(positive, default=1.0), high * 10.0**-FLOOR_DECADES)
    return [
        GradientFrame(step, _layers(samples, order, limits, (low, high)))
        for step, samples in recorded
    ]


def _layers(
    samples: dict[str, Sample], order: Sequence[str], limits: Limits, reach: tuple[float, float]
) -> tuple[LayerGradientInfo, ...]:
    largest = max((s.norm for s in samples.values() if s.finite), default=0.0)
    return tuple(
        _layer(name, samples[name], limits, largest, reach) for name in order if name in samples
    )


def _layer(
    name: str, sample: Sample, limits: Limits, largest: float, reach: tuple[float, float]
) -> LayerGradientInfo:
    why = missing("no gradient" if not sample.count else "no element is finite")
    seen = sample.finite > 0
    mean, top = (_known(value) if seen else why for value in (sample.mean_abs, sample.max_abs))
    return LayerGradientInfo(
        name=name,
        mean_abs_grad=mean,
        max_abs_grad=top,
        grad_norm=sample.norm if seen else why,
        is_vanishing=_flag(mean, lambda value: value < limits.vanishing_threshold),
        is_exploding=_flag(top, lambda value: value > limits.exploding_threshold),
        flow_intensity=(sample.norm / largest if largest > 0 else 0.0) if seen else why,
        run_intensity=_place(sample.norm, *reach) if seen else why,
        nan_count=sample.nan,
        inf_count=sample.inf,
    )


def _known(value: float | None) -> Any:
    return missing("only the norm was recorded") if value is None else value


def _flag(value: Any, test: Callable[[float], bool]) -> Any:
    return value if isinstance(value, Missing) else test(value)


def _place(norm: float, low: float, high: float) -> float:
    if norm <= 0:
        return 0.0
    if high == low:
        return 1.0
    place = (log10(norm) - log10(low)) / (log10(high) - log10(low))
    return min(max(place, 0.0), 1.0)
