"""The original's own rules, formula by formula: what `rules="original"` says.

One file for each of four modules of trustformers-debug 0.1.1. They visit layers in insertion order
where the original's hash maps are random, keep its wrong numbers where it has them, and raise
`GradwatchError` where NaN stops it. Levels are its words, without those it never says. Sentences
are ours.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.original.animation import OriginalAnimator as OriginalAnimator
    from gradwatch.original.arithmetic import History as History
    from gradwatch.original.flow import analyze_flow as analyze_flow
    from gradwatch.original.gradients import analyze_gradients as analyze_gradients
    from gradwatch.original.weights import analyze_drift as analyze_drift
    from gradwatch.original.weights import (
        analyze_weight_distribution as analyze_weight_distribution,
    )
    from gradwatch.original.weights import detect_gradient_explosion as detect_gradient_explosion
    from gradwatch.original.weights import l2_norm as l2_norm

_DOORS = {
    "History": "arithmetic",
    "OriginalAnimator": "animation",
    "analyze_drift": "weights",
    "analyze_flow": "flow",
    "analyze_gradients": "gradients",
    "analyze_weight_distribution": "weights",
    "detect_gradient_explosion": "weights",
    "l2_norm": "weights",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: each file makes many dataclasses, and a command needs one file.
    if name not in _DOORS:
        raise AttributeError(f"module 'gradwatch.original' has no attribute {name!r}")
    return getattr(import_module(f"gradwatch.original.{_DOORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_DOORS)
