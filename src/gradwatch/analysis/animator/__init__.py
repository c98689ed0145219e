"""The animation of gradient flow: a recorder of frames and its writers."""

from gradwatch.analysis.animator.animator import GradientFlowAnimator
from gradwatch.analysis.animator.drawing import Scale
from gradwatch.analysis.animator.frames import GradientFrame, LayerGradientInfo
from gradwatch.analysis.animator.summary import (
    FlowAdvice,
    GradientFlowSummary,
    GradientHealth,
    Recording,
)

__all__ = [
    "FlowAdvice",
    "GradientFlowAnimator",
    "GradientFlowSummary",
    "GradientFrame",
    "GradientHealth",
    "LayerGradientInfo",
    "Recording",
    "Scale",
]
