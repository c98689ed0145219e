"""The words the gradient analysis uses for what it finds."""

from enum import StrEnum


class LayerHealth(StrEnum):
    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"


class Risk(StrEnum):
    """Why a layer is not healthy; texts are looked up from the code, never the other way round."""

    NON_FINITE = "NonFinite"
    DEAD = "Dead"
    EXPLODING = "Exploding"
    VANISHING = "Vanishing"
    UNSTABLE = "Unstable"
    OSCILLATING = "Oscillating"


CRITICAL_RISKS = frozenset({Risk.NON_FINITE, Risk.DEAD, Risk.EXPLODING})


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
    DISRUPTIVE = "Disruptive"


class ConvergenceTrend(StrEnum):
    CONVERGING = "Converging"
    STABLE = "Stable"
    DIVERGING = "Diverging"
    OSCILLATING = "Oscillating"
    UNKNOWN = "Unknown"


class LearningPhase(StrEnum):
    INITIAL_LEARNING = "InitialLearning"
    RAPID_LEARNING = "RapidLearning"
    REFINEMENT = "Refinement"
    CONVERGENCE = "Convergence"
    PLATEAU = "Plateau"
    OVERFITTING = "Overfitting"


class PlateauSeverity(StrEnum):
    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"


class StabilityTrend(StrEnum):
    IMPROVING = "Improving"
    STABLE = "Stable"
    DEGRADING = "Degrading"


class StabilityOutlook(StrEnum):
    STABLE = "Stable"
    IMPROVING = "Improving"
    DETERIORATING = "Deteriorating"
    UNCERTAIN = "Uncertain"


class InstabilityType(StrEnum):
    GRADIENT_EXPLOSION = "GradientExplosion"
    GRADIENT_VANISHING = "GradientVanishing"
    OSCILLATION = "Oscillation"
    STAGNATION = "Stagnation"
    CHAOS = "Chaos"


class Difficulty(StrEnum):
    EASY = "Easy"
    MODERATE = "Moderate"
    DIFFICULT = "Difficult"
    VERY_DIFFICULT = "VeryDifficult"


class InteractionDirection(StrEnum):
    TOP_DOWN = "TopDown"
    BOTTOM_UP = "BottomUp"
    BIDIRECTIONAL = "Bidirectional"


class Urgency(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class Suggestion(StrEnum):
    """What to try, as a code; `TEXTS` says it in words."""

    WEIGHT_INITIALIZATION = "WeightInitialization"
    LEARNING_RATE_ADJUSTMENT = "LearningRateAdjustment"
    GRADIENT_CLIPPING = "GradientClipping"
    BATCH_NORMALIZATION = "BatchNormalization"
    FIND_NON_FINITE = "FindNonFinite"
    CHECK_CONNECTION = "CheckConnection"


TEXTS = {
    Suggestion.WEIGHT_INITIALIZATION: (
        "Check the initialisation: its scale decides how a gradient shrinks from layer to layer."
    ),
    Suggestion.LEARNING_RATE_ADJUSTMENT: (
        "Lower the learning rate, or warm it up: the steps overshoot."
    ),
    Suggestion.GRADIENT_CLIPPING: "Clip the global gradient norm near its usual value.",
    Suggestion.BATCH_NORMALIZATION: (
        "Put a normalisation or a residual connection before this layer."
    ),
    Suggestion.FIND_NON_FINITE: (
        "Find the first NaN or Inf: `gradwatch diagnose` names the layer and the phase."
    ),
    Suggestion.CHECK_CONNECTION: (
        "Check that the loss depends on this layer: detached, frozen, or all its units inactive."
    ),
}

SUGGESTIONS = {
    Risk.NON_FINITE: (Suggestion.FIND_NON_FINITE,),
    Risk.DEAD: (Suggestion.CHECK_CONNECTION,),
    Risk.EXPLODING: (Suggestion.LEARNING_RATE_ADJUSTMENT, Suggestion.GRADIENT_CLIPPING),
    Risk.VANISHING: (Suggestion.BATCH_NORMALIZATION, Suggestion.WEIGHT_INITIALIZATION),
    Risk.UNSTABLE: (Suggestion.GRADIENT_CLIPPING,),
    Risk.OSCILLATING: (Suggestion.LEARNING_RATE_ADJUSTMENT,),
}
