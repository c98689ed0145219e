"""Codes of the weight analysis and, looked up from them, sentences and penalties."""

from enum import StrEnum


class WeightIssue(StrEnum):
    """What can be wrong with a weight tensor."""

    NON_FINITE = "non-finite"
    ZERO_WEIGHTS = "zero-weights"
    SKEWED = "skewed"
    HEAVY_TAILS = "heavy-tails"
    EXTREME_VALUES = "extreme-values"

    @property
    def text(self) -> str:
        return _TEXT[self]

    @property
    def advice(self) -> str:
        return _ADVICE[self]


class OutlierSeverity(StrEnum):
    MEDIUM = "Medium"
    HIGH = "High"


class DistributionHealthStatus(StrEnum):
    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"


_TEXT = {
    WeightIssue.NON_FINITE: "The tensor contains NaN or infinite elements.",
    WeightIssue.ZERO_WEIGHTS: "More than half of the elements are exactly zero.",
    WeightIssue.SKEWED: "The elements are strongly skewed to one side.",
    WeightIssue.HEAVY_TAILS: "A few elements are far larger than the rest.",
    WeightIssue.EXTREME_VALUES: "Some elements are larger than 10.",
}
_ADVICE = {
    WeightIssue.NON_FINITE: (
        "Go back to the last checkpoint without them, and look for the step that made them."
    ),
    WeightIssue.ZERO_WEIGHTS: (
        "If the tensor was not pruned on purpose: lower the learning rate or weight decay, or "
        "change the activation."
    ),
    WeightIssue.SKEWED: "Normalise the weights, or initialise them differently.",
    WeightIssue.HEAVY_TAILS: "Watch these layers' gradients: a few weights carry the layer.",
    WeightIssue.EXTREME_VALUES: "Add weight decay, or clip the weights.",
}
