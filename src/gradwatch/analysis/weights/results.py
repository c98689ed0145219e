"""What the weight analysis hands back."""

from dataclasses import dataclass

from gradwatch.analysis.weights.words import (
    DistributionHealthStatus,
    OutlierSeverity,
    WeightIssue,
)
from gradwatch.result import Result


@dataclass(frozen=True)
class WeightStatistics(Result):
    """Of the finite elements; what is NaN or infinite is counted beside them."""

    count: int
    mean: float | None
    std_dev: float | None
    skewness: float | None
    """None below three elements; 0 where all are equal."""
    kurtosis: float | None
    """None below four elements; 0 where all are equal."""
    entropy: float | None
    """Bits of a histogram (Freedman–Diaconis, 1 … 256 bins) with the Miller–Madow term."""
    normalized_entropy: float | None
    """Entropy over its largest possible value, log₂ of the number of bins."""
    min: float | None
    max: float | None
    zero_fraction: float | None
    norm: float | None
    """Euclidean norm."""
    nan_count: int
    inf_count: int


@dataclass(frozen=True)
class LayerWeightAnalysis(Result):
    name: str
    layer_index: int
    shape: tuple[int, ...]
    dtype: str
    statistics: WeightStatistics
    zero_rows: int | None
    """Output units whose weights are all zero; None for tensors of one dimension."""
    first_nonfinite: int | None
    """Flat index of the first NaN or Inf."""
    health_score: float | None
    issues: tuple[WeightIssue, ...]
    recommendations: tuple[str, ...]


@dataclass(frozen=True)
class DistributionHealth(Result):
    score: float | None
    status: DistributionHealthStatus


@dataclass(frozen=True)
class WeightOutlier(Result):
    name: str
    layer_index: int
    weight_index: int
    position: tuple[int, ...]
    value: float
    z_score: float
    """Signed robust distance: from the median, in units of 1.4826 · MAD."""
    severity: OutlierSeverity


@dataclass(frozen=True)
class LayerOutliers(Result):
    total: int
    expected: float
    """How many a Gaussian of this size would show beyond the limit."""
    limit: float
    """Robust distance from which an element counts: 3.5, more in large tensors."""


@dataclass(frozen=True)
class OutlierDetection(Result):
    total: int
    listed: int
    outliers: tuple[WeightOutlier, ...]
    """The furthest of all, in the order of layers and elements."""
    layers: dict[str, LayerOutliers]


@dataclass(frozen=True)
class WeightDistributionAnalysis(Result):
    layer_analyses: dict[str, LayerWeightAnalysis]
    overall_statistics: WeightStatistics
    distribution_health: DistributionHealth
    outlier_detection: OutlierDetection | None
