"""What the corrections change: both rule books on the same small inputs, run when the page is made."""

# ruff: noqa: E501  (a table is read by lines)

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.gradients.analysis import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.run import Run

BOOKS = ("original", "gradwatch")


@dataclass(frozen=True)
class Change:
    """One input, one question, two answers."""

    given: str
    asked: str
    answer: Callable[[str], Any]

    def answers(self) -> tuple[str, str]:
        before, after = (_text(self.answer(rules)) for rules in BOOKS)
        return before, after


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value) if value is not None else "not known"


def _gradients(norms: dict[str, list[float]], rules: str) -> Any:
    return analyze_gradients(Run.from_norms(norms), rules=rules)


def _layer(norms: list[float], rules: str) -> Any:
    return _gradients({"a": norms}, rules).layer_details["a"]


def _noise(length: int = 200) -> list[float]:
    values: list[float] = (1 + 0.1 * np.random.default_rng(0).normal(size=length)).tolist()
    return values


def _falling(length: int = 120) -> list[float]:
    return (np.linspace(200.0, 1.0, length) * np.array(_noise(length))).tolist()  # type: ignore[no-any-return]


def _trend(norms: list[float], rules: str) -> Any:
    network = _gradients({"a": norms}, rules).network_level_analysis
    return network.convergence_indicators.convergence_trend


def _weights(tensors: list[Any], rules: str) -> Any:
    return analyze_weights([np.asarray(t, np.float32) for t in tensors], rules=rules)


def _explosion(norms: list[float], at: int, rules: str) -> Any:
    found = detect_gradient_explosion([np.array([n]) for n in norms], 10.0, rules=rules)
    layers = found.exploding_layers  # type: ignore[attr-defined]
    return layers[str(at)].severity if isinstance(layers, dict) else layers[0].severity


def _animated(frames: list[dict[str, list[float]]], rules: str) -> Any:
    animator = GradientFlowAnimator(rules=rules)
    for step, gradients in enumerate(frames):
        animator.record_step(step, gradients)
    return animator.summary().overall_health


CHANGES = (
    Change("white noise around 1", "health of the layer", lambda r: _layer(_noise(), r).health_metrics.overall_health),
    Change("norms with NaN", "health of the layer", lambda r: _layer([*_noise(8), float("nan"), 1.0], r).health_metrics.overall_health),
    Change("zero for 100 steps", "health of the layer", lambda r: _layer([0.0] * 100, r).health_metrics.overall_health),
    Change("falling from 200 to 1", "convergence trend", lambda r: _trend(_falling(), r)),
    Change("rising from 1 to 200", "convergence trend", lambda r: _trend(_falling()[::-1], r)),
    Change("a single sample", "health of the layer", lambda r: _layer([1.0], r).health_metrics.overall_health),
    Change("weights −1 … and 1 …", "pooled standard deviation", lambda r: _weights([[-1.0] * 9, [1.0] * 9], r).overall_statistics.std_dev),
    Change("weights between 2 and 3", "pooled minimum", lambda r: _weights([np.linspace(2, 3, 50)], r).overall_statistics.min),
    Change("a weight is NaN", "status", lambda r: _weights([[float("nan"), 0.1, 0.2]], r).distribution_health.status),
    Change("Gaussian weights, std 0.02", "entropy in bits", lambda r: _weights([0.02 * np.random.default_rng(0).normal(size=5000)], r).overall_statistics.entropy),
    Change("norm 1e6 before 199 of 1", "severity", lambda r: _explosion([1e6] + [1.0] * 199, 0, r)),
    Change("norm 1e6 after 199 of 1", "severity", lambda r: _explosion([1.0] * 199 + [1e6], 199, r)),
    Change("all layers dead in every frame", "health of the animation", lambda r: _animated([{"a": [0.0], "b": [0.0]}] * 8, r)),
    Change("a frame with NaN", "health of the animation", lambda r: _animated([{"a": [float("nan")]}] * 8, r)),
)  # fmt: skip
