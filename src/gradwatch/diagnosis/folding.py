"""One root instead of a list of alarms: what follows from another finding is put under it.

`CAUSES` says which fault can follow from which, the most telling cause first; time, data flow and
size still have to agree (see `causality`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gradwatch.diagnosis.causality import Causality
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run

LOOP = (
    "no-optimizer-step",
    "foreign-optimizer",
    "lost-initialisation",
    "stale-gradients",
    "loss-scale-overflow",
)
"""Faults of the training loop: they touch everything."""

RATE = ("learning-rate-zero", "clipped-to-nothing")
"""Steps that are too small because somebody made them so."""

SCALE = ("input-scale", "target-scale", "bad-init")
"""The wrong size of inputs, targets or of the first weights."""

START = (
    "input-scale",
    "target-scale",
    "symmetric-weights",
    "bad-init",
    "norm-misuse",
    "output-misuse",
    "output-range",
)
"""Faults that are there before the first update."""

STEPS = ("update-ratio-too-large", "exploding-gradient", "weight-explosion", "gradient-spikes")
"""Steps, gradients or weights that are too large: each can be the first of the chain."""

SILENT = ("dead-units", "saturation")
"""Activations that let no gradient through."""

CAUSES: dict[str, tuple[str, ...]] = {
    "nonfinite": (*LOOP, *SCALE, *STEPS, "stale-second-moment", "divergence"),
    "divergence": (*LOOP, *SCALE, "norm-misuse", *STEPS, "stale-second-moment", "weight-collapse"),
    "loss-spike": (
        "gradient-spikes",
        *LOOP,
        *SCALE,
        *STEPS[:3],
        "stale-second-moment",
        "divergence",
    ),
    "gradient-spikes": (
        "lost-initialisation",
        "stale-gradients",
        "input-scale",
        *STEPS[:3],
        "divergence",
    ),
    "loss-oscillation": (*LOOP, "input-scale", *STEPS[:3]),
    "slow-convergence": (
        *(cause for cause in LOOP if cause != "lost-initialisation"),  # an event, over at once
        *RATE,
        *START,
        "not-updated",
        "no-gradient",
        "unused-input",
        "update-lost-to-rounding",
        "eps-dominated-adam",
        "clipping-every-step",
        *SILENT,
        "weight-collapse",
        "vanishing-gradient",
        "update-ratio-too-small",
        *STEPS,
        "loss-oscillation",
        "divergence",
        "class-imbalance",
        "constant-output",
        "nonfinite",
        "not-learning",
    ),
    "vanishing-gradient": (
        *SCALE,
        "saturation",
        "dead-units",
        "weight-collapse",
        "symmetric-weights",
        "weight-explosion",
        "overpowering-discriminator",
    ),
    "no-gradient": (
        "dead-units",
        "symmetric-weights",
        "saturation",
        "weight-collapse",
        "nonfinite",
    ),
    "not-updated": (
        "no-optimizer-step",
        "foreign-optimizer",
        *RATE,
        "update-lost-to-rounding",
        "no-gradient",
        *SILENT,
        "vanishing-gradient",
        "update-ratio-too-small",
    ),
    "dead-units": (*LOOP, *SCALE, *STEPS, "weight-collapse"),
    "saturation": (*LOOP, *SCALE, *STEPS, "output-range"),
    "bad-init": ("input-scale", "target-scale", "symmetric-weights"),
    "symmetric-weights": ("no-gradient", "not-updated"),
    "update-ratio-too-large": (*LOOP, *SCALE, "exploding-gradient", "weight-collapse"),
    "update-ratio-too-small": (
        *RATE,
        "clipping-every-step",
        "eps-dominated-adam",
        "weight-explosion",
        *SILENT,
        "vanishing-gradient",
        "no-gradient",
        "output-misuse",
        "bad-init",
        "input-scale",
    ),
    "exploding-gradient": (*LOOP, *SCALE, *STEPS),
    "unused-input": ("no-gradient",),
    "weight-decay-on-norms": (),
    "weight-explosion": (*LOOP, *SCALE, *STEPS, "norm-misuse", "divergence"),
    "weight-collapse": (*LOOP, "update-ratio-too-large", "exploding-gradient"),
    "stale-second-moment": ("gradient-spikes", *SCALE, *STEPS[:3], "loss-spike", "divergence"),
    "update-leads-loss": ("stale-second-moment", "loss-spike", "divergence", "nonfinite", *STEPS),
    "eps-dominated-adam": (*SILENT, "vanishing-gradient", "no-gradient"),
    "clipping-every-step": ("exploding-gradient", "stale-gradients", *SCALE),
    "clipped-to-nothing": ("exploding-gradient", "stale-gradients", *SCALE),
    "uneven-learning-speeds": (
        "vanishing-gradient",
        "saturation",
        "bad-init",
        "input-scale",
        "update-ratio-too-large",
    ),
    "norm-misuse": ("eval-mode-in-training",),
    "constant-output": (
        *LOOP,
        *RATE,
        *START,
        *SILENT,
        *STEPS,
        "no-gradient",
        "weight-collapse",
        "vanishing-gradient",
        "class-imbalance",
    ),
    "overfitting": ("dropout-in-evaluation", "eval-mode-in-training", "duplicated-batches"),
    "heavy-tailed-gradients": ("dead-units", "exploding-gradient", "divergence"),
    "overpowering-discriminator": ("no-optimizer-step", "not-updated", "no-gradient"),
}

SEVERAL = frozenset({"not-updated"})
"""Checks whose findings have reasons of their own and stay apart."""

SYMPTOMS = frozenset({"slow-convergence", "loss-oscillation", "gradient-spikes"})
"""Doubtful by themselves (noise, a hard task); once a cause is found, they count."""

ORDER = (
    "replica-divergence",
    "no-optimizer-step",
    "foreign-optimizer",
    *RATE,
    "lost-initialisation",
    "stale-gradients",
    "output-misuse",
    "eval-mode-in-training",
    "norm-misuse",
    "dropout-in-evaluation",
    "duplicated-batches",
    "input-scale",
    "output-range",
    "target-scale",
    "unused-input",
    "symmetric-weights",
    "bad-init",
    "update-lost-to-rounding",
    "no-gradient",
    "not-updated",
    "loss-scale-overflow",
    "eps-dominated-adam",
    "update-ratio-too-large",
    "exploding-gradient",
    "weight-explosion",
    "dead-units",
    "saturation",
    "weight-collapse",
    "overpowering-discriminator",
    "vanishing-gradient",
    "clipping-every-step",
    "update-ratio-too-small",
    "gradient-spikes",
    "stale-second-moment",
    "divergence",
    "nonfinite",
    "loss-spike",
    "loss-oscillation",
    "overfitting",
    "class-imbalance",
    "constant-output",
    "not-learning",
    "slow-convergence",
)
"""Root-like first: decides between faults of the same step, and the order of the findings."""


def rank(check: str) -> int:
    """Position in `ORDER`; unknown checks (plugins) come last."""
    return ORDER.index(check) if check in ORDER else len(ORDER)


def fold(
    findings: Sequence[Finding], run: Run, degrees: Mapping[str, Severity] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """Put every finding under its root; roots in order of importance.

    `degrees` are the severities, by message, of findings that weigh less because the training
    works. Under a root that is a fault nonetheless they count in full.
    """
    causality = Causality(run)
    parents = _parents(findings, causality)
    roots: dict[int, list[Finding]] = {}
    for index in range(len(findings)):
        root = index
        while parents[root] is not None:
            root = parents[root] or 0
        roots.setdefault(root, [])
        if root != index:
            effect = _counted(findings[index], findings[root], findings, causality)
            if findings[root].severity > Severity.INFO and effect is findings[index]:
                degree = degrees.get(effect.message, effect.severity)
                effect = replace(effect, severity=max(degree, effect.severity))
            roots[root].append(effect)
    folded = [_root(findings[root], follows) for root, follows in roots.items()]
    return tuple(sorted(folded, key=importance))


def _counted(
    effect: Finding, root: Finding, findings: Sequence[Finding], causality: Causality
) -> Finding:
    """A doubtful symptom whose cause was found is not doubtful; a late silence is part of it.

    So are steps that are small only beside weights that have exploded.
    """
    late = effect.check == "no-gradient" != root.check and causality.began_late(effect)
    beside = effect.check == "update-ratio-too-small" and any(
        other.check in STEPS and other.severity > Severity.INFO for other in findings
    )
    if late or beside:
        return replace(effect, severity=Severity.INFO)
    if effect.check in SYMPTOMS and effect.severity is Severity.INFO:
        return replace(effect, severity=Severity.WARNING)
    return effect


def importance(finding: Finding) -> tuple[int, int, int, int]:
    """Sorting key: severity, then what explains more, then what is more of a root, then time."""
    others = [item for item in finding.consequences if item.check != finding.check]
    return (
        -finding.severity,
        -len([item for item in others if item.severity > Severity.INFO]),
        rank(finding.check),
        finding.first_step,
    )


def _root(finding: Finding, follows: list[Finding]) -> Finding:
    """A root is as grave as the gravest of what follows from it."""
    if not follows:
        return finding
    follows.sort(key=lambda item: (-item.severity, item.first_step, rank(item.check)))
    worst = max(item.severity for item in (finding, *follows))
    return replace(finding, severity=worst, consequences=tuple(follows))


def _parents(findings: Sequence[Finding], causality: Causality) -> list[int | None]:
    parents: list[int | None] = [None] * len(findings)
    for index in sorted(range(len(findings)), key=lambda i: -rank(findings[i].check)):
        effect = findings[index]
        twin = _twin(findings, index, causality)
        if twin is not None:
            parents[index] = twin
            continue
        for name in CAUSES.get(effect.check, ()):
            causes = (
                other
                for other, cause in enumerate(findings)
                if cause.check == name
                and other != index
                and causality.explains(
                    cause, effect, earlier_in_order=rank(name) < rank(effect.check)
                )
                and not _leads_to(parents, other, index)
            )
            parents[index] = next(causes, None)
            if parents[index] is not None:
                break
    return parents


def _twin(findings: Sequence[Finding], index: int, causality: Causality) -> int | None:
    """An earlier finding of the same check nearby: one fault seen from two sides."""
    effect = findings[index]
    if effect.check in SEVERAL:
        return None
    for other, cause in enumerate(findings[:index]):
        same = cause.check == effect.check and cause.severity >= effect.severity
        # NaN also travels outside the graph, through the loss and the optimizer
        near = effect.check == "nonfinite" or causality.connected(cause.layers, effect.layers)
        if same and near:
            return other
    return None


def _leads_to(parents: Sequence[int | None], start: int, target: int) -> bool:
    """Whether `target` is already above `start`; then the link would close a circle."""
    at: int | None = start
    while at is not None:
        if at == target:
            return True
        at = parents[at]
    return False
