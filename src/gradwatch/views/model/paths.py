"""Critical paths and troubled regions of the flow, from the flow analysis."""

from collections.abc import Sequence
from typing import Any

from gradwatch.analysis.flow import network, regions
from gradwatch.analysis.flow.network import CriticalGradientPath
from gradwatch.analysis.flow.regions import GradientDeadZone, Region
from gradwatch.analysis.layers import LayerSeries
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.views.model.encode import rounded

MOST_TENSORS = 2_000
MOST_VALUES = 2_000_000
"""Larger runs are shown without it, so that a page opens in a second or two."""
MOST_REGIONS = 12
MOST_LAYERS = 12
THRESHOLD = 0.01
"""An edge that transmits less is blocked: the same as in `gradwatch analyze --flow`."""
LEAST_LOSS = 0.5
"""Decades; a path that loses less is no news."""


def troubles(run: Run) -> dict[str, Any]:
    """`paths` (most attenuating first) and `regions`; empty where the run is too large to load."""
    small = (
        len(run.steps) * len(run.parameters) <= MOST_VALUES and len(run.parameters) <= MOST_TENSORS
    )
    if Stat.GRAD_NORM not in run.recorded or not len(run.steps) or not small:
        return {"paths": [], "regions": []}
    series = LayerSeries.of(run)
    pairs = network.connections(run.graph, series.names)
    edges = network.edges_of(series, pairs, THRESHOLD, run.graph.assumed)
    return {
        "paths": _paths(network.critical_paths(run.graph, series.names, edges)),
        "regions": [
            *_regions("vanishing", regions.vanishing_regions(series, pairs)),
            *_regions("exploding", regions.exploding_regions(series, pairs)),
            *_dead(regions.dead_zones(run, series)),
        ][:MOST_REGIONS],
    }


def _paths(found: Sequence[CriticalGradientPath]) -> list[dict[str, Any]]:
    worst = [
        path
        for path in found
        if path.path_id.endswith("-1") and path.criticality_score >= LEAST_LOSS
    ]
    seen: dict[tuple[str, ...], CriticalGradientPath] = {}
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


def _regions(kind: str, found: Sequence[Region]) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "severity": str(region.severity_level).lower(),
            "layers": list(region.affected_layers[:MOST_LAYERS]),
            "count": len(region.affected_layers),
            "first_step": region.extent.start_step,
            "last_step": region.extent.end_step,
            "current": region.current,
        }
        for region in found
    ]


def _dead(found: Sequence[GradientDeadZone]) -> list[dict[str, Any]]:
    return [
        {
            "kind": "dead",
            "severity": "needs intervention" if zone.intervention_required else "mild",
            "layers": list(zone.affected_layers[:MOST_LAYERS]),
            "count": len(zone.affected_layers),
            "first_step": zone.start_step,
            "last_step": zone.start_step + zone.dead_duration - 1,
            "current": True,
        }
        for zone in found
    ]
