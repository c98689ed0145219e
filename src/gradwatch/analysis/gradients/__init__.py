"""Gradients by layer and as a network: statistics, health, convergence, stability, priorities."""

from gradwatch.analysis.gradients.analysis import GradientAnalysis, analyze_gradients

__all__ = ["GradientAnalysis", "analyze_gradients"]
