"""`analyze_flow`: how gradients travel through the network and through time."""

from enum import StrEnum
from typing import Any

from gradwatch.analysis import Rules
from gradwatch.analysis.flow.directions import GradientDirection, recent
from gradwatch.analysis.flow.network import FlowNetwork, connections, network_of
from gradwatch.analysis.flow.over_time import (
    FlowDirection,
    GradientLayerFlow,
    TemporalGradientFlow,
    layer_flows,
    temporal_flows,
)
from gradwatch.analysis.flow.paths import CriticalGradientPath, critical_paths
from gradwatch.analysis.flow.regions import GradientDeadZone, Region, problems_of
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import flow as original_flow
from gradwatch.result import Result
from gradwatch.run import as_run, choice, number, whole_number
from gradwatch.run.given import refused

__all__ = [
    "PALETTES",
    "ColorScheme",
    "FlowConfig",
    "FlowDirection",
    "GradientDirection",
    "GradientFlow",
    "GradientLayerFlow",
    "TemporalGradientFlow",
    "analyze_flow",
]


class ColorScheme(StrEnum):
    """Colours a drawing of the flow may use; `PALETTES` holds them."""

    DEFAULT = "Default"
    HIGH_CONTRAST = "HighContrast"
    COLOR_BLIND = "ColorBlind"
    MONOCHROME = "Monochrome"

    @classmethod
    def _missing_(cls, value: object) -> "ColorScheme | None":
        """The same word in other letters: `highcontrast`, `high-contrast`."""
        word = str(value).lower().replace("-", "").replace("_", "")
        return next((scheme for scheme in cls if scheme.lower() == word), None)


PALETTES = {
    scheme: tuple(f"#{stop}" for stop in stops.split())
    for scheme, stops in {
        ColorScheme.DEFAULT: "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
        ColorScheme.HIGH_CONTRAST: "000000 3b0070 7a00a8 c4006c f03a1a ff8400 ffc300 fff17a ffffff",
        ColorScheme.COLOR_BLIND: "00204c 1b3a6d 414d6b 61636d 7c7b78 9b9476 bcae6c dfc95b ffea46",
        ColorScheme.MONOCHROME: "0d0d0d 2a2a2a 484848 656565 838383 a1a1a1 bfbfbf dddddd fafafa",
    }.items()
}
"""From low to high, each growing lighter; maps, flows and moving pictures are drawn in them."""


class FlowConfig(Result):
    """The options that led to a result, and the colours its scheme stands for."""

    show_temporal_flows: bool
    show_critical_paths: bool
    show_problem_regions: bool
    color_scheme: ColorScheme
    palette: tuple[str, ...]
    temporal_window: int
    flow_threshold: float


class GradientFlow(Result):
    """The result of `analyze_flow`."""

    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: tuple[TemporalGradientFlow, ...]
    flow_network: FlowNetwork
    critical_paths: tuple[CriticalGradientPath, ...]
    vanishing_regions: tuple[Region, ...]
    exploding_regions: tuple[Region, ...]
    dead_zones: tuple[GradientDeadZone, ...]
    visualization_config: FlowConfig
    non_finite_since: int | None
    """The step at which the run went NaN or Inf, if it did: all this describes what came before."""


def analyze_flow(
    data: Any,
    *,
    show_temporal_flows: bool = True,
    show_critical_paths: bool = True,
    show_problem_regions: bool = True,
    color_scheme: ColorScheme | str = ColorScheme.DEFAULT,
    temporal_window: int = 50,
    flow_threshold: float = 0.01,
    rules: Rules | str = Rules.GRADWATCH,
    current_step: int | None = None,
) -> Any:
    """Flow of gradients on the recorded layer graph: a `GradientFlow`.

    `data` is a run, or norms or arrays by name. `temporal_window` is the number of samples shown
    and judged per layer; an edge that transmits less than `flow_threshold` is blocked.
    `rules="original"` gives the original program's answer, as of `current_step` (else the last).
    """
    scheme = choice(ColorScheme, color_scheme, "color_scheme")
    config = FlowConfig(
        _switch(show_temporal_flows, "show_temporal_flows"),
        _switch(show_critical_paths, "show_critical_paths"),
        _switch(show_problem_regions, "show_problem_regions"),
        scheme,
        PALETTES[scheme],
        whole_number(temporal_window, "temporal_window", least=2),
        _share(flow_threshold, "flow_threshold"),
    )
    if current_step is not None:
        current_step = whole_number(current_step, "current_step", least=0)
    if choice(Rules, rules, "rules") is Rules.ORIGINAL:
        return _original(data, config, current_step)
    if current_step is not None:
        raise GradwatchError(
            "Expected current_step only with rules='original': a run knows its steps.", Exit.USAGE
        )
    return _analyzed(data, config)


def _original(data: Any, config: FlowConfig, current_step: int | None) -> Result:
    run = as_run(data)
    last = int(run.steps[-1]) if len(run.steps) else 0
    same = {name: value for name, value in config.to_dict().items() if name != "palette"}
    visualizer = original_flow.GradientFlowVisualizer(
        original_flow.GradientVisualizationConfig(**same)
    )
    step = last if current_step is None else current_step
    return visualizer.generate_visualization(histories(run), step)


def _analyzed(data: Any, config: FlowConfig) -> GradientFlow:
    run = as_run(data)
    series = LayerSeries.of(run)
    pairs = connections(run.graph, series.names)
    network, bottlenecks, silent = network_of(run, series, pairs, config.flow_threshold)
    last = recent(series, config.temporal_window)
    return GradientFlow(
        layer_flows(run, series, last, bottlenecks),
        temporal_flows(series, last) if config.show_temporal_flows else (),
        network,
        critical_paths(network.edges, silent) if config.show_critical_paths else (),
        *(problems_of(run, series, pairs) if config.show_problem_regions else ((), (), ())),
        config,
        series.non_finite_since,
    )


def _switch(value: Any, option: str) -> bool:
    if not isinstance(value, bool):
        raise refused(f"True or False for {option}", value)
    return value


def _share(value: Any, option: str) -> float:
    share = number(value, option, above=0)
    if share >= 1:
        raise refused(f"a number between 0 and 1 for {option}", value)
    return share
