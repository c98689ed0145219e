"""`gradwatch analyze`: the analyses of a run, as tables or as JSON."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradwatch.analysis import Rules
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.result import dumps
from gradwatch.store import open_run
from gradwatch.text import number, plain, shortened

FORMAT = 1


NAME_WIDTH = 26
MOST_ROWS = 40
_COLOURS = {"Critical": "red", "Warning": "yellow", "Healthy": "green", "Unknown": "dim"}


def gradient_tables(analysis: Any) -> Iterator[Table | str]:
    """Layers, the sick ones first, then the network in a few lines."""
    network = analysis.network_level_analysis
    yield f"[bold]Gradients[/bold]: {_level(network.overall_gradient_health)}"
    table = _table("layer", "health", "mean norm", "trend", "stability", "why")
    details = sorted(analysis.layer_details.values(), key=_sickness)
    for detail in details[:MOST_ROWS]:
        health, flow = detail.health_metrics, detail.flow_characteristics
        table.add_row(
            _name(detail.layer_name),
            _level(health.overall_health),
            _number(detail.gradient_statistics.mean),
            _number(flow.trend_strength),
            _number(health.gradient_stability),
            ", ".join(map(str, health.risk_factors)),
        )
    yield table
    yield from _rest(details)
    convergence, dynamics = network.convergence_indicators, network.training_dynamics
    yield f"Trend of the whole gradient: {convergence.convergence_trend.value}"
    phase = dynamics.learning_phase
    word = phase.value if phase else f"unknown ({dynamics.missing['learning_phase']})"
    yield f"Learning phase: {word}"
    for item in analysis.optimization_priorities[:3]:
        if item.reasons:
            actions = " ".join(action.action_name for action in item.recommended_actions[:2])
            yield f"Look first at {_name(item.target_name)}: {actions}"


def flow_tables(analysis: Any) -> Iterator[Table | str]:
    """The edges (of very many those farthest from 1), the path that loses most, the regions."""
    network = analysis.flow_network
    edges = network.edges
    if len(edges) > MOST_ROWS:
        edges = sorted(edges, key=lambda edge: -_away(edge.flow_strength))
    table = _table("from", "to", "transmits", "steady", "edge")
    for edge in edges[:MOST_ROWS]:
        table.add_row(
            _name(edge.from_layer),
            _name(edge.to_layer),
            _number(edge.flow_strength),
            _number(edge.flow_consistency),
            edge.edge_type.value,
        )
    assumed = any(edge.assumed for edge in network.edges)
    yield "[bold]Flow[/bold]" + (" (connections assumed: order of registration)" if assumed else "")
    yield table
    yield from _rest(network.edges)
    for path in analysis.critical_paths[:1]:
        lost = path.criticality_score
        verb = "loses" if lost > 0 else "gains"
        yield (
            f"From {_name(path.layers[-1])} back to {_name(path.layers[0])} the gradient {verb} "
            f"{abs(lost):.1f} decades over {path.path_length} layers"
        )
    for word, regions in (
        ("Vanishing", analysis.vanishing_regions),
        ("Exploding", analysis.exploding_regions),
    ):
        for region in regions[:5]:
            extent = region.extent
            state = "since" if region.current else "from"
            until = "" if region.current else f" to {extent.end_step}"
            yield (
                f"{word} ({region.severity_level.value}): {_name(extent.start_layer)} … "
                f"{_name(extent.end_layer)}, {extent.affected_parameters:,} parameters, "
                f"{state} step {extent.start_step}{until}"
            )
    for zone in analysis.dead_zones[:5]:
        yield f"Dead: {_name(zone.affected_layers[0])} since step {zone.start_step}"


def weight_tables(analysis: Any) -> Iterator[Table | str]:
    """One row per tensor, the worst score first; equals stay in order."""
    yield f"[bold]Weights[/bold]: {analysis.distribution_health.status.value}"
    table = _table("tensor", "score", "mean", "std", "min", "max", "zeros", "issues")
    layers = sorted(
        analysis.layer_analyses.values(), key=lambda layer: _or_worst(layer.health_score)
    )
    for layer in layers[:MOST_ROWS]:
        s = layer.statistics
        table.add_row(
            _name(layer.name),
            _number(layer.health_score),
            *(_number(value) for value in (s.mean, s.std_dev, s.min, s.max, s.zero_fraction)),
            ", ".join(str(issue.value) for issue in layer.issues),
        )
    yield table
    yield from _rest(layers)


def _sickness(detail: Any) -> int:
    """Critical before Warning before what is not known before Healthy; equals stay in order."""
    order = ("Critical", "Warning", "Unknown")
    level = str(detail.health_metrics.overall_health.value)
    return order.index(level) if level in order else len(order)


def _away(strength: float | None) -> float:
    """Decades between what an edge transmits and 1, in either direction."""
    return abs(math.log10(strength)) if strength and strength > 0 else math.inf


def _or_worst(value: float | None) -> float:
    """A missing number is looked at first."""
    return -math.inf if value is None else float(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for i, column in enumerate(columns):
        wide = i == 0 or column in ("to", "why", "edge", "health", "issues")
        table.add_column(column, justify="left" if wide else "right", no_wrap=column != "issues")
    return table


def _rest(rows: Any) -> Iterator[str]:
    if len(rows) > MOST_ROWS:
        yield f"[dim]… and {len(rows) - MOST_ROWS} more: --json has them all[/dim]"


def _name(name: str) -> str:
    return escape(shortened(plain(name), NAME_WIDTH))


def _number(value: float | None) -> str:
    return "–" if value is None else number(float(value))


def _level(level: Any) -> str:
    colour = _COLOURS.get(level.value, "")
    return f"[{colour}]{level.value}[/{colour}]" if colour else str(level.value)


PARTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Iterator[Any]]]] = {
    "weights": (analyze_weights, weight_tables),
    "gradients": (analyze_gradients, gradient_tables),
    "flow": (analyze_flow, flow_tables),
}


@click.command("analyze")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--weights", "parts", flag_value="weights", multiple=True, help="Only the weights.")
@click.option("--gradients", "parts", flag_value="gradients", multiple=True, help="Only gradients.")
@click.option("--flow", "parts", flag_value="flow", multiple=True, help="Only the flow.")
@click.option(
    "--rules",
    type=click.Choice([rules.value for rules in Rules]),
    default=Rules.GRADWATCH.value,
    help="Our rules, or what the original program would say (JSON only).",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as strict JSON.")
def command(run: Path, parts: tuple[str, ...], rules: str, as_json: bool) -> None:
    """Weights, gradients and their flow, in numbers."""
    if rules != Rules.GRADWATCH and not as_json:
        raise click.UsageError("The original rules have no tables: add --json.")
    opened = open_run(run)
    results = {name: PARTS[name][0](opened, rules=rules) for name in parts or PARTS}
    if as_json:
        click.echo(dumps({"format": FORMAT, **results}))
        return
    console = Console(highlight=False)
    for name, result in results.items():
        for line in PARTS[name][1](result):
            console.print(line)
        console.print()
