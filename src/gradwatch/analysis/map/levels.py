"""The levels the original declares (§9 of its description): ours, renamed, or gone and why."""

from dataclasses import dataclass

from gradwatch.analysis.map.listing import attribute

UNREACHABLE = "never produced there, and nothing we measure would produce it"


@dataclass(frozen=True)
class Levels:
    """One enumeration of the original."""

    name: str
    declared: tuple[str, ...]
    unreachable: frozenset[str]
    """Those the original declares and never produces."""
    ours: str | None
    """`module:Class` of ours."""
    gone: dict[str, str]
    """Level → why we do not have it."""

    @property
    def added(self) -> tuple[str, ...]:
        """Levels the original lacks."""
        if self.ours is None:
            return ()
        return tuple(m.value for m in attribute(self.ours) if m.value not in self.declared)


def _levels(name: str, declared: str, ours: str | None, gone: str = "") -> Levels:
    """† marks what the original never produces; `gone` is `Level: why; Level: why`."""
    words = declared.split()
    reasons = dict(part.split(": ", 1) for part in gone.split("; ") if part)
    return Levels(
        name,
        tuple(word.rstrip("†") for word in words),
        frozenset(word.rstrip("†") for word in words if word.endswith("†")),
        ours,
        reasons,
    )


_GRADIENTS = "gradwatch.analysis.gradients.levels"
_FLOW = "gradwatch.analysis.flow.levels"
_CONSTANT = "a constant per suggestion, not a measurement"

LEVELS = (
    _levels("LayerHealth", "Healthy Warning Critical Unknown", f"{_GRADIENTS}:LayerHealth"),
    _levels(
        "ExplosionSeverity",
        "Low Medium High Critical",
        "gradwatch.analysis.explosion:ExplosionSeverity",
    ),
    _levels("OutlierSeverity", "Medium High", "gradwatch.analysis.weights:OutlierSeverity"),
    _levels(
        "DistributionHealthStatus",
        "Excellent Good Fair Poor Critical",
        "gradwatch.analysis.weights:DistributionHealthStatus",
    ),
    _levels(
        "WeightDriftSeverity",
        "Minimal† Low† Medium† High†",
        "gradwatch.analysis.drift:WeightDriftSeverity",
    ),
    _levels(
        "DistributionType",
        "Normal Skewed HeavyTailed Multimodal Degenerate",
        f"{_GRADIENTS}:DistributionType",
    ),
    _levels(
        "InteractionType",
        "Cooperative Competitive Neutral Disruptive†",
        f"{_GRADIENTS}:InteractionType",
    ),
    _levels(
        "ConvergenceTrend",
        "Converging Stable Diverging Oscillating† Unknown",
        f"{_GRADIENTS}:ConvergenceTrend",
    ),
    _levels(
        "LearningPhase",
        "InitialLearning RapidLearning Refinement Convergence Plateau Overfitting†",
        f"{_GRADIENTS}:LearningPhase",
    ),
    _levels("PlateauSeverity", "Mild Moderate† Severe", f"{_GRADIENTS}:PlateauSeverity"),
    _levels("StabilityTrend", "Improving† Stable Degrading", f"{_GRADIENTS}:StabilityTrend"),
    _levels(
        "InstabilityType",
        "GradientExplosion GradientVanishing Oscillation Stagnation† Chaos†",
        f"{_GRADIENTS}:InstabilityType",
    ),
    _levels(
        "StabilityOutlook",
        "Stable Improving† Deteriorating Uncertain",
        f"{_GRADIENTS}:StabilityOutlook",
    ),
    _levels(
        "OptimizationDifficulty",
        "Easy Moderate Difficult VeryDifficult†",
        f"{_GRADIENTS}:Difficulty",
    ),
    _levels(
        "InteractionDirection",
        "TopDown† BottomUp† Bidirectional†",
        f"{_GRADIENTS}:InteractionDirection",
    ),
    _levels(
        "OptimizationTarget",
        "IndividualLayer LayerGroup† NetworkLevel†",
        None,
        "IndividualLayer: a word in target_type, the only one; "
        f"LayerGroup: {UNREACHABLE}; NetworkLevel: {UNREACHABLE}",
    ),
    _levels("UrgencyLevel", "Low Medium High Critical", f"{_GRADIENTS}:Urgency"),
    _levels(
        "ActionType",
        "ParameterAdjustment ArchitecturalChange† OptimizationTechnique RegularizationMethod† "
        "LearningRateScheduling",
        None,
        "; ".join(
            f"{level}: reasons are codes and actions are looked up from them"
            for level in (
                "ParameterAdjustment",
                "ArchitecturalChange",
                "OptimizationTechnique",
                "RegularizationMethod",
                "LearningRateScheduling",
            )
        ),
    ),
    _levels(
        "ImplementationEffort",
        "Minimal Low Moderate High† Extensive†",
        None,
        "; ".join(
            f"{level}: {_CONSTANT}" for level in ("Minimal", "Low", "Moderate", "High", "Extensive")
        ),
    ),
    _levels(
        "SuggestionType",
        "WeightInitialization LearningRateAdjustment RegularizationAdd ArchitecturalModification† "
        "OptimizationAlgorithm† BatchNormalization† DropoutAdjustment†",
        f"{_GRADIENTS}:Suggestion",
        "RegularizationAdd: oscillating norms do not point to overfitting; "
        f"ArchitecturalModification: {UNREACHABLE}; OptimizationAlgorithm: {UNREACHABLE}; "
        f"DropoutAdjustment: {UNREACHABLE}",
    ),
    _levels(
        "ImplementationComplexity",
        "Simple Moderate Complex† RequiresRetraining†",
        None,
        "; ".join(
            f"{level}: {_CONSTANT}"
            for level in ("Simple", "Moderate", "Complex", "RequiresRetraining")
        ),
    ),
    _levels(
        "GradientHealth",
        "Healthy MinorIssues ProblemsDetected Critical",
        "gradwatch.analysis.animator:GradientHealth",
    ),
    _levels(
        "FlowDirection",
        "Forward Backward Oscillating Stagnant",
        f"{_FLOW}:FlowDirection",
        "Forward: now Growing; Backward: now Shrinking",
    ),
    _levels("NodeType", "Source Sink Bottleneck Amplifier Normal", f"{_FLOW}:NodeType"),
    _levels("EdgeType", "Strong Weak Intermittent Blocked", f"{_FLOW}:EdgeType"),
    _levels("VanishingSeverity", "Mild† Moderate Severe† Critical", f"{_FLOW}:RegionSeverity"),
    _levels("ExplodingSeverity", "Mild† Moderate Severe† Critical", f"{_FLOW}:RegionSeverity"),
    _levels("RecoveryPotential", "High† Medium Low None†", f"{_FLOW}:RecoveryPotential"),
    _levels(
        "AnomalyType",
        "SuddenSpike SuddenDrop Oscillation Stagnation Chaos†",
        "gradwatch.analysis.anomalies:AnomalyType",
        f"Chaos: {UNREACHABLE}",
    ),
    _levels(
        "AnomalyTrend", "Increasing Stable Decreasing", "gradwatch.analysis.anomalies:AnomalyTrend"
    ),
    _levels(
        "ConflictType", "None Mild Moderate Severe", "gradwatch.analysis.conflicts:ConflictType"
    ),
    _levels(
        "ConflictLevel", "Low Medium High Critical", "gradwatch.analysis.conflicts:ConflictLevel"
    ),
    _levels(
        "MitigationComplexity",
        "Simple Moderate Complex† RequiresArchitectureChange",
        None,
        "; ".join(
            f"{level}: {_CONSTANT}"
            for level in ("Simple", "Moderate", "Complex", "RequiresArchitectureChange")
        ),
    ),
)
