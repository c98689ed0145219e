"""The catalogue of the checks of weights: one module each, listed here and nowhere else."""

from gradwatch.checkpoints.checks import (
    constant_weights,
    dead_units,
    duplicate_rows,
    foreign_objects,
    low_rank,
    narrow_casts,
    nonfinite,
    norm_gains,
    outlier_channels,
    symmetric_weights,
    tied_weights,
    untrained_embeddings,
)
from gradwatch.checkpoints.checks.check import WeightCheck
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Finding, Skipped

__all__ = ["WEIGHT_CHECKS", "findings_for"]

WEIGHT_CHECKS: tuple[WeightCheck, ...] = (
    nonfinite,
    constant_weights,
    symmetric_weights,
    dead_units,
    duplicate_rows,
    norm_gains,
    untrained_embeddings,
    outlier_channels,
    low_rank,
    narrow_casts,
    tied_weights,
    foreign_objects,
)


def findings_for(
    checkpoint: Checkpoint,
) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """What all checks say: findings, gravest first, and what could not be looked at."""
    outcomes = [item for check in WEIGHT_CHECKS for item in check.check(checkpoint)]
    findings = [item for item in outcomes if isinstance(item, Finding)]
    findings.sort(key=lambda finding: -finding.severity)
    return tuple(findings), tuple(item for item in outcomes if isinstance(item, Skipped))
