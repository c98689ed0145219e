"""Critical paths and troubled regions of the flow, from the flow analysis."""

from typing import Any

from gradwatch.analysis.flow import GradientFlow, analyze_flow
from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.views.model.encode import rounded

MOST_TENSORS = 2_000
MOST_VALUES = 5_000_000
"""Larger runs are shown without it, so that a page opens in a second or two."""
MOST_REGIONS = 12
MOST_LAYERS = 12
LEAST_LOSS = 0.5
"""Decades; a path that loses less is no news."""


def troubles(run: Run) -> dict[str, Any]:
    """`paths` (most attenuating first) and `regions`; empty where the run is too large to load."""
    small = (
        len(run.steps) * len(run.parameters) <= MOST_VALUES and len(run.parameters) <= MOST_TENSORS
    )
    if Stat.GRAD_NORM not in run.recorded or not len(run.steps) or not small:
        return {"paths": [], "regions": []}
    try:
        found: GradientFlow = analyze_flow(run, show_temporal_flows=False)
    except GradwatchError:
        return {"paths": [], "regions": []}
    return {"paths": _paths(found), "regions": _regions(found)}


def _paths(found: GradientFlow) -> list[dict[str, Any]]:
    worst = [
        path
        for path in found.critical_paths
        if path.path_id.endswith("-1") and path.criticality_score >= LEAST_LOSS
    ]
    seen: dict[tuple[str, ...], Any] = {}
    for path in worst:
        seen.setdefault(path.layers, path)
    return [
        {
            "kind": path.path_id.partition("-")[0],
            "layers": list(path.layers),
            "decades_lost": rounded(path.criticality_score, 3),
            "bottlenecks": list(path.bottleneck_layers[:MOST_LAYERS]),
        }
        for path in seen.values()
    ]


def _regions(found: GradientFlow) -> list[dict[str, Any]]:
    kinds = [("vanishing", found.vanishing_regions), ("exploding", found.exploding_regions)]
    regions = [
        {
            "kind": kind,
            "severity": str(region.severity_level).lower(),
            "layers": list(region.affected_layers[:MOST_LAYERS]),
            "count": len(region.affected_layers),
            "first_step": region.extent.start_step,
            "last_step": region.extent.end_step,
            "current": region.current,
        }
        for kind, listed in kinds
        for region in listed
    ]
    dead = [
        {
            "kind": "dead",
            "severity": "needs intervention" if zone.intervention_required else "mild",
            "layers": list(zone.affected_layers[:MOST_LAYERS]),
            "count": len(zone.affected_layers),
            "first_step": zone.start_step,
            "last_step": zone.start_step + zone.dead_duration - 1,
            "current": True,
        }
        for zone in found.dead_zones
    ]
    return (regions + dead)[:MOST_REGIONS]
