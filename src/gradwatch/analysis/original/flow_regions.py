"""Problem regions of the original: one layer each, with a constant for the parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import RecoveryPotential, RegionSeverity
from gradwatch.analysis.result import Result

VANISHING_HINTS = ("Initialise the weights better.", "Add skip connections.", "Clip gradients.")
EXPLODING_HINTS = ("Clip the gradients.", "Lower the learning rate.", "Check the initialisation.")

Norms = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class RegionExtent(Result):
    start_layer: str
    end_layer: str
    affected_parameters: int
    duration_steps: int


@dataclass(frozen=True)
class ProblemRegion(Result):
    region_id: str
    affected_layers: tuple[str, ...]
    severity_level: RegionSeverity
    extent: RegionExtent
    mitigation_suggestions: tuple[str, ...]


@dataclass(frozen=True)
class GradientDeadZone(Result):
    zone_id: str
    affected_layers: tuple[str, ...]
    dead_duration: int
    recovery_potential: RecoveryPotential
    intervention_required: bool


def vanishing_regions(norms: Norms) -> tuple[ProblemRegion, ...]:
    """Mean over the whole history below 1e-5."""
    means = {name: floats.mean(x) for name, x in norms.items() if x}
    small = {name: mean < 1e-7 for name, mean in means.items() if mean < 1e-5}
    return _regions("vanishing", small, norms, VANISHING_HINTS)


def exploding_regions(norms: Norms) -> tuple[ProblemRegion, ...]:
    """Any norm of the history above 100."""
    tops = {name: reduce(floats.greatest, x, float("-inf")) for name, x in norms.items() if x}
    large = {name: top > 1000.0 for name, top in tops.items() if top > 100.0}
    return _regions("exploding", large, norms, EXPLODING_HINTS)


def _regions(
    kind: str, layers: Mapping[str, bool], norms: Norms, hints: tuple[str, ...]
) -> tuple[ProblemRegion, ...]:
    return tuple(
        ProblemRegion(
            region_id=f"{kind}_{number}",
            affected_layers=(name,),
            severity_level=RegionSeverity.CRITICAL if extreme else RegionSeverity.MODERATE,
            extent=RegionExtent(name, name, 1000, len(norms[name])),
            mitigation_suggestions=hints,
        )
        for number, (name, extreme) in enumerate(layers.items(), 1)
    )


def dead_zones(norms: Norms) -> tuple[GradientDeadZone, ...]:
    """More than half of the samples below 1e-8."""
    zones: list[GradientDeadZone] = []
    for name, x in norms.items():
        dead = sum(value < 1e-8 for value in x)
        share = dead / len(x) if x else 0.0
        if share > 0.5:
            recovery = RecoveryPotential.LOW if share > 0.9 else RecoveryPotential.MEDIUM
            number = len(zones) + 1
            zones.append(
                GradientDeadZone(f"dead_zone_{number}", (name,), dead, recovery, share > 0.8)
            )
    return tuple(zones)
