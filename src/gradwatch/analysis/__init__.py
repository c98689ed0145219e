"""The analyses: plain functions from a `Run` (or arrays) to frozen results that know their JSON.

The doors below are loaded when first used, so that each pays only for itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.analysis.animator import GradientFlowAnimator as GradientFlowAnimator
    from gradwatch.analysis.anomalies import detect_anomalies as detect_anomalies
    from gradwatch.analysis.conflicts import analyze_conflicts as analyze_conflicts
    from gradwatch.analysis.conflicts import layer_correlations as layer_correlations
    from gradwatch.analysis.drift import analyze_drift as analyze_drift
    from gradwatch.analysis.explosion import detect_gradient_explosion as detect_gradient_explosion
    from gradwatch.analysis.flow import analyze_flow as analyze_flow
    from gradwatch.analysis.gradients import analyze_gradients as analyze_gradients
    from gradwatch.analysis.result import Missing as Missing
    from gradwatch.analysis.result import Result as Result
    from gradwatch.analysis.result import dumps as dumps
    from gradwatch.analysis.result import loads as loads
    from gradwatch.analysis.rules import Rules as Rules
    from gradwatch.analysis.thresholds import watch_thresholds as watch_thresholds
    from gradwatch.analysis.weights import analyze_weights as analyze_weights

_DOORS = {
    "GradientFlowAnimator": "animator",
    "Missing": "result",
    "Result": "result",
    "Rules": "rules",
    "analyze_conflicts": "conflicts",
    "analyze_drift": "drift",
    "analyze_flow": "flow",
    "analyze_gradients": "gradients",
    "analyze_weights": "weights",
    "detect_anomalies": "anomalies",
    "detect_gradient_explosion": "explosion",
    "dumps": "result",
    "layer_correlations": "conflicts",
    "loads": "result",
    "watch_thresholds": "thresholds",
}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'gradwatch.analysis' has no attribute {name!r}")
    return getattr(import_module(f"gradwatch.analysis.{_DOORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_DOORS)
