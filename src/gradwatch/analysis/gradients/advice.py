"""What to try: the remedies for each check's finding, as suggestions for a layer and as actions.

A finding says what is wrong; `REMEDIES` says what helps against it. What kind of change a remedy
is, how hard it is and what else it does are properties of the remedy; how much it could bring is
measured, or None with the reason.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.diagnose import Diagnosis
from gradwatch.diagnosis.verdict import TROUBLES
from gradwatch.finding import Finding, Severity
from gradwatch.result import Result, missing
from gradwatch.text import named, number

DEEP = 4
"""Layers that must vanish together before the architecture is to blame, …"""
DEEP_SHARE = 0.25
"""… and the share of all layers they must be."""
NOT_MEASURED = "what it would bring shows only in a second training: compare the two runs"
WHOLE_NETWORK = "it concerns the whole network, not a part of its gradient"


class SuggestionType(StrEnum):
    """What kind of change helps; the last three are ours."""

    WEIGHT_INITIALIZATION = "WeightInitialization"
    LEARNING_RATE_ADJUSTMENT = "LearningRateAdjustment"
    REGULARIZATION_ADD = "RegularizationAdd"
    ARCHITECTURAL_MODIFICATION = "ArchitecturalModification"
    OPTIMIZATION_ALGORITHM = "OptimizationAlgorithm"
    BATCH_NORMALIZATION = "BatchNormalization"
    DROPOUT_ADJUSTMENT = "DropoutAdjustment"
    GRADIENT_CLIPPING = "GradientClipping"
    FIND_NON_FINITE = "FindNonFinite"
    CHECK_CONNECTION = "CheckConnection"


class ImplementationComplexity(StrEnum):
    """What a change asks for."""

    SIMPLE = "Simple"
    MODERATE = "Moderate"
    COMPLEX = "Complex"
    REQUIRES_RETRAINING = "RequiresRetraining"


class ActionType(StrEnum):
    """Which part of the training an action changes."""

    PARAMETER_ADJUSTMENT = "ParameterAdjustment"
    ARCHITECTURAL_CHANGE = "ArchitecturalChange"
    OPTIMIZATION_TECHNIQUE = "OptimizationTechnique"
    REGULARIZATION_METHOD = "RegularizationMethod"
    LEARNING_RATE_SCHEDULING = "LearningRateScheduling"


class ImplementationEffort(StrEnum):
    """From changing one number to changing the model."""

    MINIMAL = "Minimal"
    LOW = "Low"
    MODERATE = "Moderate"
    HIGH = "High"
    EXTENSIVE = "Extensive"


class LayerOptimizationSuggestion(Result):
    """Something to try for one layer, and the finding that asks for it."""

    suggestion_type: SuggestionType
    description: str
    reason: str
    """Name of the trouble, or of the check where the trouble has no name of its own."""
    rationale: str
    """What was measured."""
    expected_improvement: float | None
    """Decades between the layer's RMS and the median layer's, which it could close at most."""
    implementation_complexity: ImplementationComplexity
    side_effects: tuple[str, ...]


class RecommendedAction(Result):
    """What to do about a layer, a group or the network."""

    action_name: str
    action_type: ActionType
    expected_impact: float | None
    """Share of the squared norm of the whole gradient that the target holds."""
    implementation_effort: ImplementationEffort
    prerequisites: tuple[str, ...]


# -- remedies --------------------------------------------------------------------------------------

_Kind, _Complexity, _Action = SuggestionType, ImplementationComplexity, ActionType
_Effort = ImplementationEffort


class Change(NamedTuple):
    """What it takes to do something."""

    complexity: ImplementationComplexity
    action: ActionType
    effort: ImplementationEffort


@dataclass(frozen=True)
class Remedy:
    """A change that helps against some findings."""

    kind: SuggestionType
    text: str
    change: Change
    side_effects: tuple[str, ...] = ()
    prerequisites: tuple[str, ...] = ()


LOWER_RATE = Remedy(
    _Kind.LEARNING_RATE_ADJUSTMENT,
    "Lower the learning rate, or warm it up: the steps overshoot.",
    Change(_Complexity.SIMPLE, _Action.LEARNING_RATE_SCHEDULING, _Effort.MINIMAL),
    ("The loss falls more slowly where nothing was wrong.",),
)
RAISE_RATE = Remedy(
    _Kind.LEARNING_RATE_ADJUSTMENT,
    "Raise the learning rate step by step: the weights hardly move.",
    Change(_Complexity.SIMPLE, _Action.LEARNING_RATE_SCHEDULING, _Effort.MINIMAL),
    ("Layers that already move fast may become unstable.",),
)
CLIP = Remedy(
    _Kind.GRADIENT_CLIPPING,
    "Clip the global gradient norm near its usual value.",
    Change(_Complexity.SIMPLE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.LOW),
    ("Steps with large but right gradients become shorter.",),
    ("the usual norm of the whole gradient, read from a quiet part of the run",),
)
RAISE_CLIP = Remedy(
    _Kind.GRADIENT_CLIPPING,
    "Raise the clipping limit to a few times the usual norm.",
    Change(_Complexity.SIMPLE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.MINIMAL),
    ("Rare large gradients get through.",),
)
INITIALISE = Remedy(
    _Kind.WEIGHT_INITIALIZATION,
    "Initialise with He (ReLU) or Xavier (tanh): the scale decides how a gradient shrinks.",
    Change(_Complexity.REQUIRES_RETRAINING, _Action.PARAMETER_ADJUSTMENT, _Effort.MODERATE),
    ("The training starts again.",),
    ("the activation function behind the layer, which decides the scale",),
)
NORMALISE = Remedy(
    _Kind.BATCH_NORMALIZATION,
    "Put a normalisation layer before this one.",
    Change(_Complexity.REQUIRES_RETRAINING, _Action.ARCHITECTURAL_CHANGE, _Effort.HIGH),
    ("The training starts again.", "Batch statistics depend on the batch size."),
)
TRAIN_MODE = Remedy(
    _Kind.BATCH_NORMALIZATION,
    "Call model.train() before the loop and after each validation.",
    Change(_Complexity.SIMPLE, _Action.PARAMETER_ADJUSTMENT, _Effort.MINIMAL),
)
RESIDUAL = Remedy(
    _Kind.ARCHITECTURAL_MODIFICATION,
    "Add residual connections, or use fewer layers: the gradient fades over the depth.",
    Change(_Complexity.COMPLEX, _Action.ARCHITECTURAL_CHANGE, _Effort.EXTENSIVE),
    ("The training starts again.", "Old checkpoints do not fit the new model."),
)
LOGITS = Remedy(
    _Kind.ARCHITECTURAL_MODIFICATION,
    "Give the loss the logits: remove the last softmax.",
    Change(_Complexity.SIMPLE, _Action.ARCHITECTURAL_CHANGE, _Effort.LOW),
)
ADAPT = Remedy(
    _Kind.OPTIMIZATION_ALGORITHM,
    "Use Adam, or a learning rate for each group of layers.",
    Change(_Complexity.MODERATE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.LOW),
    ("Adam keeps two more numbers for each parameter.",),
)
LOWER_EPS = Remedy(
    _Kind.OPTIMIZATION_ALGORITHM,
    "Lower Adam's eps to 1e-8 or less.",
    Change(_Complexity.SIMPLE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.MINIMAL),
    ("Steps of parameters with tiny gradients grow.",),
)
LOWER_BETA = Remedy(
    _Kind.OPTIMIZATION_ALGORITHM,
    "Lower Adam's β2 to 0.95.",
    Change(_Complexity.SIMPLE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.MINIMAL),
    ("The size of steps becomes noisier.",),
)
MASTER_WEIGHTS = Remedy(
    _Kind.OPTIMIZATION_ALGORITHM,
    "Keep float32 master weights: use autocast instead of a half-precision model.",
    Change(_Complexity.MODERATE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.MODERATE),
    ("The weights take twice the memory.",),
)
DECAY = Remedy(
    _Kind.REGULARIZATION_ADD,
    "Add weight decay or augmentation.",
    Change(_Complexity.MODERATE, _Action.REGULARIZATION_METHOD, _Effort.LOW),
    ("The network can hold less.",),
)
DROPOUT = Remedy(
    _Kind.DROPOUT_ADJUSTMENT,
    "Add dropout, or raise its rate.",
    Change(_Complexity.MODERATE, _Action.REGULARIZATION_METHOD, _Effort.MODERATE),
    ("The training loss stays higher and falls more slowly.",),
    ("model.eval() in every validation, which switches dropout off",),
)
FIND_NON_FINITE = Remedy(
    _Kind.FIND_NON_FINITE,
    "Find the first NaN or Inf: `gradwatch diagnose` names the layer and the phase.",
    Change(_Complexity.MODERATE, _Action.PARAMETER_ADJUSTMENT, _Effort.LOW),
)
CONNECT = Remedy(
    _Kind.CHECK_CONNECTION,
    "Check that the loss depends on this layer: detached, frozen, or all its units inactive.",
    Change(_Complexity.MODERATE, _Action.PARAMETER_ADJUSTMENT, _Effort.LOW),
)

REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    "nonfinite": (FIND_NON_FINITE,),
    "no-gradient": (CONNECT,),
    "not-updated": (CONNECT,),
    "exploding-gradient": (CLIP, LOWER_RATE, INITIALISE),
    "vanishing-gradient": (NORMALISE, INITIALISE),
    "dead-units": (LOWER_RATE, INITIALISE),
    "saturation": (NORMALISE, INITIALISE),
    "bad-init": (INITIALISE,),
    "symmetric-weights": (INITIALISE,),
    "norm-misuse": (TRAIN_MODE,),
    "output-misuse": (LOGITS,),
    "weight-explosion": (LOWER_RATE, DECAY),
    "weight-collapse": (LOWER_RATE,),
    "update-ratio-too-large": (LOWER_RATE, CLIP),
    "update-ratio-too-small": (RAISE_RATE,),
    "update-lost-to-rounding": (MASTER_WEIGHTS,),
    "eps-dominated-adam": (LOWER_EPS,),
    "stale-second-moment": (LOWER_BETA, CLIP),
    "uneven-learning-speeds": (ADAPT,),
    "heavy-tailed-gradients": (CLIP, ADAPT),
    "slow-convergence": (RAISE_RATE, ADAPT),
    "divergence": (LOWER_RATE, CLIP),
    "loss-oscillation": (LOWER_RATE,),
    "loss-spike": (CLIP, LOWER_RATE),
    "gradient-spikes": (CLIP, LOWER_RATE),
    "clipping-every-step": (RAISE_CLIP,),
    "overfitting": (DECAY, DROPOUT),
}
"""Check → what helps, the first thing to try in front; of other checks the finding's own advice."""


@dataclass(frozen=True)
class Reason:
    """A finding at warning or above, where it stands, and the root it follows from."""

    finding: Finding
    root: Finding
    rank: int
    """Place of the root among the findings of the diagnosis."""
    remedies: tuple[Remedy, ...]

    @property
    def word(self) -> str:
        """The trouble's name, or the check's."""
        return str(TROUBLES.get(self.finding.check, self.finding.check))

    @property
    def follows(self) -> str:
        """What it follows from, if it is no root."""
        if self.finding is self.root:
            return ""
        where = f" in {named(self.root.layers[0])}" if self.root.layers else ""
        return f"{self.root.check}{where}"


def reasons(diagnosis: Diagnosis, layers: int) -> Iterator[Reason]:
    """Every finding at warning or above, each root before what follows from it."""
    for rank, root in enumerate(diagnosis.findings):
        for finding in (root, *root.consequences):
            if finding.severity >= Severity.WARNING:
                yield Reason(finding, root, rank, _remedies(finding, root, layers))


def _remedies(finding: Finding, root: Finding, layers: int) -> tuple[Remedy, ...]:
    if finding is not root and not finding.layers:
        return ()  # a symptom of the whole run goes with its cause
    found = REMEDIES.get(finding.check, ())
    deep = len(finding.layers) >= max(DEEP, DEEP_SHARE * layers)
    return (*found, RESIDUAL) if deep and finding.check == "vanishing-gradient" else found


def suggestions(
    because: Iterable[Reason], measured: str = "", decades: float = math.nan
) -> tuple[LayerOptimizationSuggestion, ...]:
    """One entry for each kind of remedy, with the first finding that asks for it.

    `measured` says the layer's own numbers; `decades`, if known, lie between it and the median
    layer.
    """
    by_kind: dict[SuggestionType, LayerOptimizationSuggestion] = {}
    for reason in because:
        finding = reason.finding
        said = [f"{finding.message} (since step {finding.first_step})", measured]
        said += [f"it follows from {reason.follows}"] if reason.follows else []
        sized = reason.word in (Trouble.VANISHING, Trouble.EXPLODING) and math.isfinite(decades)
        for remedy in reason.remedies:
            if remedy.kind not in by_kind:
                by_kind[remedy.kind] = LayerOptimizationSuggestion(
                    remedy.kind,
                    remedy.text,
                    reason.word,
                    "; ".join(filter(None, said)),
                    decades if sized else missing(NOT_MEASURED),
                    remedy.change.complexity,
                    remedy.side_effects,
                )
    return tuple(by_kind.values())


def actions(because: Sequence[Reason], share: float | None) -> tuple[RecommendedAction, ...]:
    """Each remedy of a root once; what follows from a root elsewhere waits for that to be mended.

    Where a check has no remedy here, it is the first advice of its finding.
    """
    impact = missing(WHOLE_NETWORK) if share is None else share
    own_roots = {reason.rank for reason in because if not reason.follows}
    remedies: dict[str, Remedy] = {}
    for reason in because:
        found = reason.remedies or _advised(reason.finding)
        if reason.follows:
            text = f"Mend {reason.follows} first: this follows from it."
            causes = REMEDIES.get(reason.root.check) or _advised(reason.root)
            elsewhere = reason.rank not in own_roots
            found = tuple(replace(cause, text=text) for cause in causes[:1] if elsewhere)
        for remedy in found:
            remedies.setdefault(remedy.text, remedy)
    return tuple(
        RecommendedAction(x.text, x.change.action, impact, x.change.effort, x.prerequisites)
        for x in remedies.values()
    )


def _advised(finding: Finding) -> tuple[Remedy, ...]:
    """The finding's own first advice: faults of the loop and the data have no remedy of a layer."""
    change = Change(_Complexity.SIMPLE, _Action.OPTIMIZATION_TECHNIQUE, _Effort.LOW)
    return tuple(Remedy(_Kind.OPTIMIZATION_ALGORITHM, x, change) for x in finding.advice[:1])


def own_numbers(typical: float, middle: float) -> str:
    """The typical RMS of a layer beside the median layer's, as a clause; empty where unknown."""
    if not typical >= 0:
        return ""
    beside = f", that of the median layer {number(middle)}" if middle > 0 else ""
    return f"here the RMS is {number(typical)}{beside}"
