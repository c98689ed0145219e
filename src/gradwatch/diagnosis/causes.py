"""Which fault can follow from which: a literal table, the heart of folding.

For each fault, the faults it may be a consequence of, the most telling cause first. Time and data
flow still have to agree; see `folding`.
"""

LOOP = ("stale-gradients", "loss-scale-overflow")
"""Faults of the training loop: they touch everything."""

SCALE = ("input-scale", "bad-init")
"""The wrong size of inputs or of the first weights."""

START = ("input-scale", "symmetric-weights", "bad-init", "norm-misuse", "output-misuse")
"""Faults that are there before the first update."""

STEPS = ("update-ratio-too-large", "exploding-gradient", "weight-explosion", "gradient-spikes")
"""Steps, gradients or weights that are too large: each can be the first of the chain."""

SILENT = ("dead-units", "saturation")
"""Activations that let no gradient through."""

CAUSES: dict[str, tuple[str, ...]] = {
    "nonfinite": (*LOOP, *SCALE, *STEPS, "stale-second-moment", "divergence"),
    "divergence": (*LOOP, *SCALE, "norm-misuse", *STEPS, "stale-second-moment", "weight-collapse"),
    "loss-spike": (
        "stale-second-moment",
        "gradient-spikes",
        *LOOP,
        *SCALE,
        *STEPS[:3],
        "divergence",
    ),
    "gradient-spikes": ("stale-second-moment", "stale-gradients", *SCALE, *STEPS[:3], "divergence"),
    "loss-oscillation": (*LOOP, "input-scale", *STEPS[:3]),
    "slow-convergence": (
        *LOOP,
        *START,
        "not-updated",
        "no-gradient",
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
        "nonfinite",
    ),
    "vanishing-gradient": (
        *SCALE,
        "saturation",
        "dead-units",
        "weight-collapse",
        "symmetric-weights",
        "weight-explosion",
    ),
    "no-gradient": (
        "dead-units",
        "symmetric-weights",
        "saturation",
        "weight-collapse",
        "nonfinite",
    ),
    "not-updated": (
        "update-lost-to-rounding",
        "no-gradient",
        *SILENT,
        "vanishing-gradient",
        "update-ratio-too-small",
    ),
    "dead-units": (*LOOP, *SCALE, *STEPS, "weight-collapse"),
    "saturation": (*LOOP, *SCALE, *STEPS),
    "bad-init": ("input-scale", "symmetric-weights"),
    "symmetric-weights": ("no-gradient",),
    "update-ratio-too-large": (*LOOP, *SCALE, "exploding-gradient", "weight-collapse"),
    "update-ratio-too-small": (
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
    "weight-explosion": (*LOOP, *SCALE, *STEPS, "norm-misuse", "divergence"),
    "weight-collapse": (*LOOP, "update-ratio-too-large", "exploding-gradient"),
    "stale-second-moment": ("input-scale", "gradient-spikes"),
    "update-leads-loss": ("stale-second-moment", "loss-spike", "divergence", "nonfinite", *STEPS),
    "eps-dominated-adam": (*SILENT, "vanishing-gradient", "no-gradient"),
    "clipping-every-step": ("exploding-gradient", "stale-gradients", *SCALE),
    "uneven-learning-speeds": (
        "vanishing-gradient",
        "saturation",
        "bad-init",
        "input-scale",
        "update-ratio-too-large",
    ),
    "heavy-tailed-gradients": ("dead-units", "exploding-gradient", "divergence"),
    "overfitting": (),
}

ANY_TIME = frozenset({"slow-convergence", "loss-oscillation", "update-ratio-too-small"})
"""Judged over the whole run, so that their first step says nothing about what came first."""

SEVERAL = frozenset({"not-updated"})
"""Checks whose findings have reasons of their own and stay apart."""

SYMPTOMS = frozenset({"slow-convergence", "loss-oscillation", "gradient-spikes"})
"""Doubtful by themselves (noise, a hard task); once a cause is found, they count."""

ORDER = (
    "replica-divergence",
    "stale-gradients",
    "output-misuse",
    "norm-misuse",
    "input-scale",
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
    "vanishing-gradient",
    "clipping-every-step",
    "update-ratio-too-small",
    "stale-second-moment",
    "gradient-spikes",
    "divergence",
    "nonfinite",
    "loss-spike",
    "loss-oscillation",
    "overfitting",
    "slow-convergence",
)
"""Root-like first: decides between faults of the same step, and the order of the findings."""


def rank(check: str) -> int:
    """Position in `ORDER`; unknown checks (plugins) come last."""
    return ORDER.index(check) if check in ORDER else len(ORDER)
