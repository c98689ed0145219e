"""Issues and scores of weights, from their statistics alone."""

from gradwatch.analysis.weights.results import DistributionHealth, WeightStatistics
from gradwatch.analysis.weights.words import DistributionHealthStatus, WeightIssue

_STATUS = (
    (90.0, DistributionHealthStatus.EXCELLENT),
    (75.0, DistributionHealthStatus.GOOD),
    (60.0, DistributionHealthStatus.FAIR),
    (40.0, DistributionHealthStatus.POOR),
)
_PENALTY = {
    WeightIssue.ZERO_WEIGHTS: 30.0,
    WeightIssue.SKEWED: 15.0,
    WeightIssue.HEAVY_TAILS: 15.0,
    WeightIssue.EXTREME_VALUES: 20.0,
}
_PENALTY_OVERALL = {**_PENALTY, WeightIssue.ZERO_WEIGHTS: 25.0}


def issues(
    found: WeightStatistics,
    *,
    zeros: float = 0.5,
    skewness: float = 2.0,
    kurtosis: float = 10.0,
    extreme: float = 10.0,
) -> tuple[WeightIssue, ...]:
    """Above these limits; an undefined statistic raises none."""
    largest = max(abs(found.min or 0.0), abs(found.max or 0.0))
    tests = {
        WeightIssue.NON_FINITE: found.nan_count + found.inf_count > 0,
        WeightIssue.ZERO_WEIGHTS: (found.zero_fraction or 0.0) > zeros,
        WeightIssue.SKEWED: abs(found.skewness or 0.0) > skewness,
        WeightIssue.HEAVY_TAILS: (found.kurtosis or 0.0) > kurtosis,
        WeightIssue.EXTREME_VALUES: largest > extreme,
    }
    return tuple(issue for issue, present in tests.items() if present)


def score(found: tuple[WeightIssue, ...]) -> float:
    """100 less the penalties; 0 with anything non-finite, whatever else is right."""
    if WeightIssue.NON_FINITE in found:
        return 0.0
    return 100.0 - sum(_PENALTY[issue] for issue in found)


def distribution_health(overall: WeightStatistics) -> DistributionHealth:
    """Of the whole network, by the pooled statistics and tighter limits."""
    found = issues(overall, zeros=0.3, skewness=1.0, kurtosis=5.0, extreme=5.0)
    if WeightIssue.NON_FINITE in found:
        return DistributionHealth(0.0, DistributionHealthStatus.CRITICAL)
    points = 100.0 - sum(_PENALTY_OVERALL[issue] for issue in found)
    status = next((s for least, s in _STATUS if points >= least), None)
    return DistributionHealth(points, status or DistributionHealthStatus.CRITICAL)
