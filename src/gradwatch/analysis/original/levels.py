"""The levels the original can produce, by their names there; unreachable ones are gone.

`gradwatch.analysis.map` lists what is gone.
"""

from enum import StrEnum


class LayerHealth(StrEnum):
    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"


class Level(StrEnum):
    """ExplosionSeverity, UrgencyLevel, ConflictLevel and the general anomaly severity."""

    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class DistributionHealthStatus(StrEnum):
    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"


class DriftSeverity(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


class GradientHealth(StrEnum):
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class DistributionType(StrEnum):
    NORMAL = "Normal"
    SKEWED = "Skewed"
    HEAVY_TAILED = "HeavyTailed"
    MULTIMODAL = "Multimodal"
    DEGENERATE = "Degenerate"


class InteractionType(StrEnum):
    COOPERATIVE = "Cooperative"
    COMPETITIVE = "Competitive"
    NEUTRAL = "Neutral"


class ConvergenceTrend(StrEnum):
    CONVERGING = "Converging"
    STABLE = "Stable"
    DIVERGING = "Diverging"
    UNKNOWN = "Unknown"


class LearningPhase(StrEnum):
    INITIAL_LEARNING = "InitialLearning"
    RAPID_LEARNING = "RapidLearning"
    REFINEMENT = "Refinement"
    CONVERGENCE = "Convergence"
    PLATEAU = "Plateau"


class PlateauSeverity(StrEnum):
    MILD = "Mild"
    SEVERE = "Severe"


class StabilityTrend(StrEnum):
    STABLE = "Stable"
    DEGRADING = "Degrading"


class InstabilityType(StrEnum):
    GRADIENT_EXPLOSION = "GradientExplosion"
    GRADIENT_VANISHING = "GradientVanishing"
    OSCILLATION = "Oscillation"


class StabilityOutlook(StrEnum):
    STABLE = "Stable"
    DETERIORATING = "Deteriorating"
    UNCERTAIN = "Uncertain"


class OptimizationDifficulty(StrEnum):
    EASY = "Easy"
    MODERATE = "Moderate"
    DIFFICULT = "Difficult"


class OptimizationTarget(StrEnum):
    INDIVIDUAL_LAYER = "IndividualLayer"


class ActionType(StrEnum):
    PARAMETER_ADJUSTMENT = "ParameterAdjustment"
    OPTIMIZATION_TECHNIQUE = "OptimizationTechnique"
    LEARNING_RATE_SCHEDULING = "LearningRateScheduling"


class ImplementationEffort(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MODERATE = "Moderate"


class SuggestionType(StrEnum):
    WEIGHT_INITIALIZATION = "WeightInitialization"
    LEARNING_RATE_ADJUSTMENT = "LearningRateAdjustment"
    REGULARIZATION_ADD = "RegularizationAdd"


class Complexity(StrEnum):
    """ImplementationComplexity and MitigationComplexity."""

    SIMPLE = "Simple"
    MODERATE = "Moderate"
    REQUIRES_ARCHITECTURE_CHANGE = "RequiresArchitectureChange"


class FlowDirection(StrEnum):
    FORWARD = "Forward"
    BACKWARD = "Backward"
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"


class NodeType(StrEnum):
    SOURCE = "Source"
    SINK = "Sink"
    BOTTLENECK = "Bottleneck"
    AMPLIFIER = "Amplifier"
    NORMAL = "Normal"


class EdgeType(StrEnum):
    STRONG = "Strong"
    WEAK = "Weak"
    INTERMITTENT = "Intermittent"
    BLOCKED = "Blocked"


class RegionSeverity(StrEnum):
    MODERATE = "Moderate"
    CRITICAL = "Critical"


class RecoveryPotential(StrEnum):
    MEDIUM = "Medium"
    LOW = "Low"


class AnomalyType(StrEnum):
    SUDDEN_SPIKE = "SuddenSpike"
    SUDDEN_DROP = "SuddenDrop"
    OSCILLATION = "Oscillation"
    STAGNATION = "Stagnation"


class GeneralAnomaly(StrEnum):
    """What the debugger turns its anomalies into for the report."""

    GRADIENT_EXPLOSION = "GradientExplosion"
    GRADIENT_VANISHING = "GradientVanishing"
    NUMERICAL_INSTABILITY = "NumericalInstability"


class AnomalyTrend(StrEnum):
    INCREASING = "Increasing"
    STABLE = "Stable"
    DECREASING = "Decreasing"


class ConflictType(StrEnum):
    NONE = "None"
    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
