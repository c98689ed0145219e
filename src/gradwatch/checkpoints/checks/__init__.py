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
from gradwatch.checkpoints.checks.form import Check, Patient
from gradwatch.finding import Finding, Skipped

__all__ = ["WEIGHT_CHECKS", "Check", "Patient", "look"]

WEIGHT_CHECKS: tuple[Check, ...] = (
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


def look(patient: Patient) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """What all checks say: findings, gravest first, and what could not be looked at."""
    said = [item for check in WEIGHT_CHECKS for item in check.check(patient)]
    findings = [item for item in said if isinstance(item, Finding)]
    findings.sort(key=lambda finding: -finding.severity)
    return tuple(findings), tuple(item for item in said if isinstance(item, Skipped))
