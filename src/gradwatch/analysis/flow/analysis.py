"""`analyze_flow`: how gradients travel through the network and through time."""

from dataclasses import dataclass
from typing import Any

from gradwatch.analysis.flow import network, paths, regions
from gradwatch.analysis.flow.layer_flow import (
    GradientLayerFlow,
    TemporalGradientFlow,
    layer_flow,
    layer_sketches,
    temporal_flow,
)
from gradwatch.analysis.flow.levels import PALETTES, ColorScheme
from gradwatch.analysis.flow.network import FlowNetwork
from gradwatch.analysis.flow.paths import CriticalGradientPath
from gradwatch.analysis.flow.regions import GradientDeadZone, Region
from gradwatch.analysis.gradients.health import column_medians
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import flow as original_flow
from gradwatch.result import Result
from gradwatch.run import Run


@dataclass(frozen=True)
class FlowConfig(Result):
    """The options that led to a result, and the colours its scheme stands for."""

    show_temporal_flows: bool
    show_critical_paths: bool
    show_problem_regions: bool
    color_scheme: ColorScheme
    palette: tuple[str, ...]
    temporal_window: int
    flow_threshold: float


@dataclass(frozen=True)
class GradientFlow(Result):
    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: tuple[TemporalGradientFlow, ...]
    flow_network: FlowNetwork
    critical_paths: tuple[CriticalGradientPath, ...]
    vanishing_regions: tuple[Region, ...]
    exploding_regions: tuple[Region, ...]
    dead_zones: tuple[GradientDeadZone, ...]
    visualization_config: FlowConfig


def analyze_flow(
    run: Run,
    *,
    show_temporal_flows: bool = True,
    show_critical_paths: bool = True,
    show_problem_regions: bool = True,
    color_scheme: ColorScheme | str = ColorScheme.DEFAULT,
    temporal_window: int = 50,
    flow_threshold: float = 0.01,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """Flow of gradients on the recorded layer graph: a `GradientFlow`.

    `temporal_window` is the number of samples shown and judged per layer; an edge that transmits
    less than `flow_threshold` is blocked. `rules="original"` gives the original program's answer.
    """
    if temporal_window < 1 or not 0 < flow_threshold < 1:
        raise GradwatchError(
            "Expected temporal_window ≥ 1 and flow_threshold between 0 and 1, "
            f"got {temporal_window} and {flow_threshold}.",
            Exit.USAGE,
        )
    if Rules(rules) is Rules.ORIGINAL:
        last = int(run.steps[-1]) if len(run.steps) else 0
        return original_flow.analyze_flow(histories(run), current_step=last)
    series = LayerSeries.of(run)
    pairs = network.contracted(run.graph, series.names)
    edges = network.edges_of(
        pairs, network.transmissions(series, pairs), flow_threshold, run.graph.assumed
    )
    scores = network.bottlenecks(series.names, pairs, column_medians(series.rms))
    nodes = network.nodes_of(series, edges, scores)
    order = run.graph.order
    ordered = sorted(series.names, key=lambda name: order.get(name, len(order)))
    metrics = network.metrics(series, ordered, pairs, edges, nodes)
    sketches = layer_sketches(run, series.names)
    scheme = ColorScheme(color_scheme)
    return GradientFlow(
        {
            name: layer_flow(series, column, sketches, scores.get(name), temporal_window)
            for column, name in enumerate(series.names)
        },
        _temporal(series, temporal_window) if show_temporal_flows else (),
        FlowNetwork(tuple(nodes), tuple(edges), metrics),
        paths.critical_paths(ordered, edges) if show_critical_paths else (),
        regions.vanishing(series, pairs) if show_problem_regions else (),
        regions.exploding(series, pairs) if show_problem_regions else (),
        regions.dead_zones(run, series) if show_problem_regions else (),
        FlowConfig(
            show_temporal_flows,
            show_critical_paths,
            show_problem_regions,
            scheme,
            PALETTES[scheme],
            temporal_window,
            flow_threshold,
        ),
    )


def _temporal(series: LayerSeries, window: int) -> tuple[TemporalGradientFlow, ...]:
    found = (temporal_flow(series, column, window) for column in range(len(series.names)))
    return tuple(flow for flow in found if flow)
