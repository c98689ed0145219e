"""What other diagnosers call the faults of our taxonomy.

Each table has every warning the package can give under its own words, and the names we hold it
for. Several names mean: right if any of them is true of the training. An empty tuple means that
the taxonomy has nothing like it: it is neither right nor wrong, and counts only as a warning.
Where a word could be read in two ways the reading that is kinder to the package is taken.
"""

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]

TORCHMORTEM: Names = {
    # The ratio of the last to the first layer; infinite when the first gets exactly nothing.
    "Vanishing gradients detected": ("vanishing-gradient", "no-gradient"),
    "Exploding gradients detected": ("exploding-gradient",),
    # Under 1e-8 on 30 % of steps: "its weights are effectively frozen".
    "Gradient stalling": ("no-gradient", "vanishing-gradient"),
    "Dead units": ("dead-units",),
    "Activation saturation": ("saturation",),
    # A ratio of zero is under its limit too.
    "Update ratio too low": ("update-ratio-too-small", "not-updated"),
    "Update ratio too high": ("update-ratio-too-large",),
    "Weight norm explosion": ("weight-explosion",),
    # "These layers may not be learning", "not receiving sufficient gradient signal".
    "Stagnant weight norms": ("not-updated", "update-ratio-too-small", "no-gradient"),
    "Training divergence detected": ("divergence",),
    "Loss plateau detected": ("slow-convergence",),
    # Properties of a training, not faults in the taxonomy.
    "Inter-layer weight norm imbalance": (),
    "High gradient noise (low SNR)": (),
    "Rank collapse": (),
}
"""Findings of `Autopsy` at WARNING or CRITICAL, by title without the layer."""

NEURAL_OBSERVATORY: Names = {
    "NaN detected": ("nonfinite",),
    "Inf detected": ("nonfinite",),
    "NaN in parameter": ("nonfinite",),
    "Inf in parameter": ("nonfinite",),
    # Its absolute limit holds for a mean norm of exactly zero as well.
    "Vanishing gradients": ("vanishing-gradient", "no-gradient"),
    "Exploding gradients": ("exploding-gradient",),
    "Gradient norm collapsed recently": ("vanishing-gradient",),
    "of neurons are dead": ("dead-units",),
    "of neurons appear dead": ("dead-units",),
    # "Most activations are near zero."
    "High sparsity": ("dead-units",),
    "High saturation": ("saturation",),
    "gradient norm spike": ("gradient-spikes",),
    # Large distance from the start: "verify learning rate is not too large".
    "High parameter drift": ("update-ratio-too-large", "weight-explosion"),
    "Large step-to-step parameter change": ("update-ratio-too-large",),
    "Parameter norm near zero": ("weight-collapse",),
    # Attention collapsed to one token is saturation in the taxonomy.
    "Low attention entropy": ("saturation",),
    "High attention entropy": (),
    "activation norm spike": (),
    "embedding drift": (),
}
"""Warnings in results of status WARNING or CRITICAL, by a phrase in them."""

TRAINPULSE: Names = {
    "nan_detector": ("nonfinite",),
    # Five times the mean of the last 50 losses, whether or not it comes back.
    "loss_spike": ("loss-spike", "divergence"),
    # One step with a total norm above 100.
    "Gradient explosion": ("exploding-gradient", "gradient-spikes"),
    "Vanishing gradient": ("vanishing-gradient",),
    "plateau": ("slow-convergence",),
    "learning_rate": (),
    # Never fed: on a shared machine it would speak about the neighbours.
    "step_time": (),
}
"""Alerts of severity warning or critical, by detector; `gradient` by what its message says."""

TORCH_AUDIT: Names = {
    "TA100": ("nonfinite",),  # NaN or Inf in parameters or gradients
    "TA102": ("exploding-gradient", "gradient-spikes"),  # total norm above 100 at one step
    "TA104": ("no-gradient",),  # no gradients in the whole model
    "TA105": ("dead-units",),  # more than 90 % zeros after an activation
    "TA301": ("input-scale",),  # an input above 50
    "TA405": ("dead-units", "bad-init"),  # convolution filters that are zero
    "TA500": ("no-gradient", "not-updated"),  # a layer that is never called
    # Hints about speed, layout, decay and design, and a crash of its own.
    "TA000": (), "TA200": (), "TA201": (), "TA202": (), "TA300": (), "TA302": (), "TA303": (),
    "TA304": (), "TA305": (), "TA400": (), "TA401": (), "TA402": (), "TA403": (), "TA501": (),
}  # fmt: skip
"""Findings at WARN or above, by rule. TA103, a gradient of exactly zero, is only INFO."""

NEURALDBG: Names = {
    # A norm under 1e-6, zero included.
    "gradient_vanishing": ("vanishing-gradient", "no-gradient"),
    "gradient_exploding": ("exploding-gradient",),
    # Its word for a norm between 1e-6 and 1e-4.
    "gradient_saturated": ("vanishing-gradient", "saturation"),
    "activation_dead": ("dead-units",),
    "activation_saturated": ("saturation",),
    "activation_anomalous": ("nonfinite",),
    "optimizer_loss_plateau": ("slow-convergence",),
    "optimizer_loss_spike": ("loss-spike", "divergence"),
    # NaN or Inf among the last five losses.
    "optimizer_diverging": ("divergence", "nonfinite"),
    "data_nan_detected": ("nonfinite",),
    "data_inf_detected": ("nonfinite",),
    # Compares a layer's input with its output of the last step as well: says nothing of inputs.
    "data_distribution_shift": (),
}
"""What `first_failure_step` holds: every state that is not healthy. It has no severities."""

TABLES: Mapping[str, Names] = {
    "torchmortem": TORCHMORTEM,
    "neural-observatory": NEURAL_OBSERVATORY,
    "trainpulse": TRAINPULSE,
    "torch-audit": TORCH_AUDIT,
    "neuraldbg": NEURALDBG,
}


def claims(table: Names) -> frozenset[str]:
    """The faults a package speaks about at all."""
    return frozenset(name for names in table.values() for name in names)
