"""The original's own rules, formula by formula: what `rules="original"` says.

One file for each of four modules of trustformers-debug 0.1.1: `weights`, `gradients`, `animation`,
`flow`, with the names its callers know. They visit layers in insertion order where the original's
hash maps are random, keep its wrong numbers where it has them, and say where NaN stops it. Levels
are its words, without those it never says. Sentences are ours.
"""

from gradwatch.original.animation import GradientFlowAnimator
from gradwatch.original.arithmetic import GradientHistory
from gradwatch.original.flow import GradientFlowVisualizer, GradientVisualizationConfig
from gradwatch.original.gradients import EnhancedGradientAnalyzer
from gradwatch.original.weights import WeightAnalyzer

__all__ = [
    "EnhancedGradientAnalyzer",
    "GradientFlowAnimator",
    "GradientFlowVisualizer",
    "GradientHistory",
    "GradientVisualizationConfig",
    "WeightAnalyzer",
]
