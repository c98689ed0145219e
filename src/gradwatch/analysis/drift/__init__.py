"""Drift: how far weights moved between two states."""

from gradwatch.analysis.drift.analysis import analyze_drift
from gradwatch.analysis.drift.results import LayerDrift, WeightDriftAnalysis, WeightDriftSeverity

__all__ = ["LayerDrift", "WeightDriftAnalysis", "WeightDriftSeverity", "analyze_drift"]
