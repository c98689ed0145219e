"""Weights: statistics per tensor and pooled, health, outliers, entropy."""

from gradwatch.analysis.weights.analysis import analyze_weights
from gradwatch.analysis.weights.results import (
    DistributionHealth,
    LayerOutliers,
    LayerWeightAnalysis,
    OutlierDetection,
    WeightDistributionAnalysis,
    WeightOutlier,
    WeightStatistics,
)
from gradwatch.analysis.weights.words import (
    DistributionHealthStatus,
    OutlierSeverity,
    WeightIssue,
)

__all__ = [
    "DistributionHealth",
    "DistributionHealthStatus",
    "LayerOutliers",
    "LayerWeightAnalysis",
    "OutlierDetection",
    "OutlierSeverity",
    "WeightDistributionAnalysis",
    "WeightIssue",
    "WeightOutlier",
    "WeightStatistics",
    "analyze_weights",
]
