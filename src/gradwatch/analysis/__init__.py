"""The analyses: plain functions from a `Run` (or arrays) to frozen results that know their JSON.

The doors below are loaded when first used, so that each pays only for itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.analysis.animator import GradientFlowAnimator as GradientFlowAnimator
    from gradwatch.analysis.drift import analyze_drift as analyze_drift
    from gradwatch.analysis.explosion import detect_gradient_explosion as detect_gradient_explosion
    from gradwatch.analysis.flow import analyze_flow as analyze_flow
    from gradwatch.analysis.gradients import analyze_gradients as analyze_gradients
    from gradwatch.analysis.rules import Rules as Rules
    from gradwatch.analysis.weights import analyze_weights as analyze_weights
    from gradwatch.result import Missing as Missing
    from gradwatch.result import Result as Result
    from gradwatch.result import dumps as dumps
    from gradwatch.result import loads as loads

_DOORS = {
    "GradientFlowAnimator": "analysis.animator",
    "Missing": "result",
    "Result": "result",
    "Rules": "analysis.rules",
    "analyze_drift": "analysis.drift",
    "analyze_flow": "analysis.flow",
    "analyze_gradients": "analysis.gradients",
    "analyze_weights": "analysis.weights",
    "detect_gradient_explosion": "analysis.explosion",
    "dumps": "result",
    "loads": "result",
}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'gradwatch.analysis' has no attribute {name!r}")
    return getattr(import_module(f"gradwatch.{_DOORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_DOORS)
