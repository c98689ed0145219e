"""What the zoo measured of each check on its reported half.

Written by `gradwatch zoo score --figures`.
"""

HEALTHY_RUNS = 31
"""Healthy trainings behind the false-alarm figures."""

CHECK_FIGURES: dict[str, tuple[int, int, int]] = {
    "bad-init": (0, 15, 15),
    "dead-units": (0, 6, 6),
    "divergence": (0, 9, 9),
    "eps-dominated-adam": (0, 0, 0),
    "exploding-gradient": (0, 10, 10),
    "gradient-spikes": (0, 0, 2),
    "input-scale": (0, 4, 4),
    "loss-oscillation": (0, 1, 2),
    "loss-spike": (0, 6, 6),
    "no-gradient": (0, 5, 5),
    "nonfinite": (0, 13, 13),
    "norm-misuse": (0, 2, 2),
    "not-updated": (0, 15, 15),
    "output-misuse": (0, 2, 2),
    "overfitting": (0, 0, 0),
    "saturation": (0, 6, 6),
    "slow-convergence": (0, 19, 19),
    "stale-gradients": (0, 2, 2),
    "stale-second-moment": (0, 0, 0),
    "symmetric-weights": (0, 4, 4),
    "update-lost-to-rounding": (0, 2, 2),
    "update-ratio-too-large": (0, 4, 5),
    "update-ratio-too-small": (0, 10, 10),
    "vanishing-gradient": (0, 2, 2),
    "weight-collapse": (0, 2, 2),
    "weight-explosion": (0, 10, 12),
}
"""For each check: healthy runs with a warning, sick runs found, sick runs that have the fault."""
