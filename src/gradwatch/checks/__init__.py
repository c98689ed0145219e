"""The catalogue of checks: one module each, listed here and nowhere else."""

from gradwatch.checks import (
    bad_init,
    clipped_to_nothing,
    clipping_every_step,
    constant_weights,
    dead_units,
    divergence,
    dropout_in_evaluation,
    duplicate_rows,
    duplicated_batches,
    eps_dominated_adam,
    eval_mode_in_training,
    exploding_gradient,
    foreign_objects,
    foreign_optimizer,
    gradient_spikes,
    heavy_tailed_gradients,
    identical_units,
    input_scale,
    learning_rate_zero,
    loss_oscillation,
    loss_scale_overflow,
    loss_spike,
    lost_initialisation,
    low_rank,
    narrow_casts,
    no_gradient,
    no_optimizer_step,
    nonfinite,
    nonfinite_weights,
    norm_gains_near_zero,
    norm_misuse,
    not_learning,
    not_updated,
    outlier_channels,
    output_misuse,
    overfitting,
    overpowering_discriminator,
    replica_divergence,
    saturation,
    slow_convergence,
    stale_gradients,
    stale_second_moment,
    symmetric_weights,
    target_scale,
    tied_weights,
    uneven_learning_speeds,
    untrained_embeddings,
    update_leads_loss,
    update_lost_to_rounding,
    update_ratio_too_large,
    update_ratio_too_small,
    vanishing_gradient,
    weight_collapse,
    weight_decay_on_norms,
    weight_explosion,
    zeroed_units,
)
from gradwatch.checks.check import Check
from gradwatch.checks.tensors import weights_only
from gradwatch.run import Run

TRAINING_CHECKS: tuple[Check, ...] = (
    nonfinite,
    no_optimizer_step,
    foreign_optimizer,
    learning_rate_zero,
    clipped_to_nothing,
    lost_initialisation,
    stale_gradients,
    output_misuse,
    norm_misuse,
    eval_mode_in_training,
    dropout_in_evaluation,
    duplicated_batches,
    input_scale,
    target_scale,
    not_updated,
    no_gradient,
    symmetric_weights,
    bad_init,
    dead_units,
    saturation,
    vanishing_gradient,
    exploding_gradient,
    gradient_spikes,
    update_ratio_too_large,
    update_ratio_too_small,
    update_lost_to_rounding,
    weight_explosion,
    weight_collapse,
    divergence,
    loss_spike,
    loss_oscillation,
    slow_convergence,
    not_learning,
    overfitting,
    overpowering_discriminator,
    eps_dominated_adam,
    stale_second_moment,
    update_leads_loss,
    clipping_every_step,
    loss_scale_overflow,
    heavy_tailed_gradients,
    uneven_learning_speeds,
    replica_divergence,
    weight_decay_on_norms,
)

WEIGHT_CHECKS: tuple[Check, ...] = (
    nonfinite_weights,
    constant_weights,
    identical_units,
    zeroed_units,
    duplicate_rows,
    norm_gains_near_zero,
    untrained_embeddings,
    outlier_channels,
    low_rank,
    narrow_casts,
    tied_weights,
    foreign_objects,
)
"""Of runs that hold nothing but weights: a checkpoint, or arrays."""

CHECKS = (*TRAINING_CHECKS, *WEIGHT_CHECKS)
_OF_SERIES = (weight_explosion, weight_collapse)


def checks_for(run: Run) -> tuple[Check, ...]:
    """The checks that concern a run of this kind: a training, or weights and nothing else."""
    if not weights_only(run):
        return TRAINING_CHECKS
    return (*WEIGHT_CHECKS, *_OF_SERIES) if len(run.steps) > 2 else WEIGHT_CHECKS


__all__ = ["CHECKS", "TRAINING_CHECKS", "WEIGHT_CHECKS", "Check", "checks_for", "weights_only"]
