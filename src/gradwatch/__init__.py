"""gradwatch finds out why a neural network does not train, and names the layer and the step.

    import gradwatch
    watcher = gradwatch.watch(model, optimizer)
    …
    watcher.log(loss=loss)

The doors below are loaded when first used: `import gradwatch` imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwatch.errors import GradwatchError
from gradwatch.version import __version__

if TYPE_CHECKING:
    from gradwatch.analysis.animator import GradientFlowAnimator as GradientFlowAnimator
    from gradwatch.analysis.drift import analyze_drift as analyze_drift
    from gradwatch.analysis.flow import analyze_flow as analyze_flow
    from gradwatch.analysis.gradients import analyze_gradients as analyze_gradients
    from gradwatch.analysis.weights import analyze_weights as analyze_weights
    from gradwatch.checkpoints import scan as scan
    from gradwatch.diagnosis import Diagnosis as Diagnosis
    from gradwatch.diagnosis.diagnose import diagnose as diagnose
    from gradwatch.live import watch as watch
    from gradwatch.record import Watcher as Watcher
    from gradwatch.run import Run as Run
    from gradwatch.stats import Stat as Stat
    from gradwatch.store import open_run as open_run

_DOORS = {
    "Diagnosis": "gradwatch.diagnosis",
    "GradientFlowAnimator": "gradwatch.analysis.animator",
    "Run": "gradwatch.run",
    "Stat": "gradwatch.stats",
    "Watcher": "gradwatch.record",
    "analyze_drift": "gradwatch.analysis.drift",
    "analyze_flow": "gradwatch.analysis.flow",
    "analyze_gradients": "gradwatch.analysis.gradients",
    "analyze_weights": "gradwatch.analysis.weights",
    "diagnose": "gradwatch.diagnosis",
    "open_run": "gradwatch.store",
    "scan": "gradwatch.checkpoints",
    "watch": "gradwatch.live",
}

__all__ = ["GradwatchError", "__version__", *_DOORS]


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'gradwatch' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
