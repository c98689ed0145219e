"""`gradwatch analyze`: the analyses of a run or of a folder of arrays, in sentences and tables."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import click
import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from gradwatch.analysis import Rules
from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import AnalysisDepth, analyze_gradients
from gradwatch.analysis.gradients.relations import InteractionType
from gradwatch.analysis.layers import LayerSeries
from gradwatch.analysis.sentences import sentences, went_non_finite
from gradwatch.analysis.weights import analyze_weights
from gradwatch.checkpoints.blocks import arrays_of
from gradwatch.checkpoints.readers import open_index
from gradwatch.checks.context import context
from gradwatch.cli.help import examples
from gradwatch.cli.places import run_argument
from gradwatch.cli.progress import waiting
from gradwatch.diagnosis import verdicts
from gradwatch.errors import Exit, GradwatchError
from gradwatch.finding import Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.store import open_run
from gradwatch.store.places import Place
from gradwatch.text import number, plain, several
from gradwatch.views.colours import HELP, ORIGINAL_NAMES, Scheme
from gradwatch.views.console import console, print_json, prose_width
from gradwatch.views.tables import FittedTable, fitted

FORMAT = 2
ARRAYS = ("gradients.npz", "weights.npz")
"""Files of a folder of arrays: by name, the first axis is the step; `steps` may be among them."""
MOST_ROWS = 40
MOST_TARGETS = 3
MOST_PAIRS = 6
_COLOURS = {
    "Critical": "red",
    "Warning": "yellow",
    "Healthy": "green",
    "Excellent": "green",
    "Good": "green",
    "Unknown": "dim",
}


# -- what to analyse -------------------------------------------------------------------------------


def opened(path: Place) -> tuple[Run, dict[str, Any] | None]:
    """The run of a recorded folder, or of a folder with arrays; of arrays the last weights too."""
    files = [file for name in ARRAYS if (file := Path(path, name)).is_file()]
    if not files:
        return open_run(path), None
    tables = {file.stem: _arrays(file) for file in files}
    steps = None
    for table in tables.values():
        steps = table.pop("steps", steps)
    gradients, weights = (
        {name: list(array) for name, array in tables.get(kind, {}).items()}
        for kind in ("gradients", "weights")
    )
    run = Run.from_arrays(gradients, weights, steps=None if steps is None else steps.tolist())
    return run, {name: arrays[-1] for name, arrays in weights.items()} or None


def _arrays(file: Path) -> dict[str, Any]:
    """The arrays of an npz file, read by the reader of checkpoints, which trusts nothing in it."""
    arrays = arrays_of(open_index(file))
    if arrays is None:
        raise GradwatchError(
            f"Expected arrays that fit into memory in {plain(str(file))}, got more. Hand fewer "
            "steps or fewer names.",
            Exit.USAGE,
        )
    return dict(arrays)


def _last_norms(run: Run) -> dict[str, Any]:
    """Each layer's norm on the last recorded step, as the explosion analysis takes gradients."""
    series = LayerSeries.of(run)
    if not len(series.steps):
        return {}
    return {name: np.array([n]) for name, n in zip(series.names, series.norms[-1], strict=True)}


# -- tables ----------------------------------------------------------------------------------------


def gradient_tables(analysis: Any) -> Iterator[RenderableType]:
    """What to look at first, the layers (the sick ones first), groups, layers that interact."""
    for place, item in enumerate(_targets(analysis.optimization_priorities), start=1):
        why = f"({item.urgency_level.value}: {', '.join(map(str, item.reasons[:3]))})"
        name = fitted(item.target_name, prose_width() - len(why) - 4)
        yield f"{place}. [bold]{escape(name)}[/bold] {escape(why)}"
        for action in item.recommended_actions[:1]:
            yield _indented(action.action_name, 3)
    details, rows = sorted(analysis.layer_details.values(), key=_sickness), []
    for detail in details[:MOST_ROWS]:
        health, flow = detail.health_metrics, detail.flow_characteristics
        cells = (
            detail.layer_name,
            _level(health.overall_health),
            _number(detail.gradient_statistics.mean),
            _number(flow and flow.trend_strength),
            _number(health.gradient_stability),
            ", ".join([*map(str, health.risk_factors), *map(str, health.traits)]),
        )
        rows.append(cells)
    yield FittedTable(
        ("layer", "health", "mean norm", "trend", "stability", "why"),
        rows,
        words=("health",),
        prose="why",
        spare=("stability", "trend"),
    )
    yield from _rest(details)
    yield from _group_table(analysis.gradient_hierarchy)
    yield from _interaction_table(analysis.network_level_analysis)


def _targets(priorities: Sequence[Any]) -> list[Any]:
    """The first few that ask for something the ones before do not ask for."""
    asked: dict[str, Any] = {}
    for item in priorities:
        if item.reasons and item.recommended_actions:
            asked.setdefault(item.recommended_actions[0].action_name, item)
        if len(asked) == MOST_TARGETS:
            break
    return list(asked.values())


def _group_table(hierarchy: Any) -> Iterator[RenderableType]:
    # a group of one layer would repeat a row of the table above
    groups = [g for g in hierarchy.layer_groups if len(g.layers) > 1] if hierarchy else []
    if not groups:
        return
    rows = []
    for group in groups[:MOST_ROWS]:
        traits = group.group_characteristics
        difficulty = traits.optimization_difficulty
        cells = (
            group.group_name,
            str(len(group.layers)),
            _number(traits.average_gradient_norm),
            _number(traits.importance),
            _number(traits.gradient_synchronization),
            "–" if difficulty is None else difficulty.value,
        )
        rows.append(cells)
    yield FittedTable(
        ("group", "layers", "mean norm", "share", "in step", "difficulty"),
        rows,
        words=("difficulty",),
        spare=("in step", "layers"),
    )
    yield from _rest(groups)


def _interaction_table(network: Any) -> Iterator[RenderableType]:
    pairs = network.layer_interactions or ()  # None where the depth leaves them out
    moving = [p for p in pairs if p.interaction_type is not InteractionType.NEUTRAL]
    if not moving:
        return
    moving.sort(key=lambda pair: -pair.interaction_strength)
    rows = [
        (pair.layer1, pair.layer2, _number(pair.interaction_strength), pair.interaction_type.value)
        for pair in moving[:MOST_PAIRS]
    ]
    titles = ("layer", "and", "strength", "they are")
    yield FittedTable(titles, rows, names=2, words=("they are",), spare=("strength",))
    yield from _rest(moving, MOST_PAIRS)


def flow_tables(analysis: Any) -> Iterator[RenderableType]:
    """The edges (of very many those farthest from 1), with what their first layer does."""
    network = analysis.flow_network
    edges = network.edges
    if len(edges) > MOST_ROWS:
        edges = sorted(edges, key=lambda edge: -_away(edge.flow_strength))
    kinds = {node.layer_name: node.node_type.value for node in network.nodes}
    rows = [
        (
            edge.from_layer,
            edge.to_layer,
            _number(edge.flow_strength),
            _number(edge.flow_consistency),
            edge.edge_type.value,
            kinds.get(edge.from_layer, ""),
        )
        for edge in edges[:MOST_ROWS]
    ]
    if any(edge.assumed for edge in network.edges):
        yield "[dim]Connections are assumed: the order of registration.[/dim]"
    yield FittedTable(
        ("from", "to", "transmits", "steady", "edge", "the first is a"),
        rows,
        names=2,
        words=("edge", "the first is a"),
        spare=("steady", "the first is a"),
    )
    yield from _rest(network.edges)


def weight_tables(analysis: Any) -> Iterator[RenderableType]:
    """One row per tensor, the worst score first; equals stay in order."""
    layers = sorted(
        analysis.layer_analyses.values(), key=lambda layer: _or_worst(layer.health_score)
    )
    rows = []
    for layer in layers[:MOST_ROWS]:
        s = layer.statistics
        cells = (
            layer.name,
            _number(layer.health_score),
            *(_number(value) for value in (s.mean, s.std_dev, s.min, s.max, s.zero_fraction)),
            ", ".join(str(issue.value) for issue in layer.issues),
        )
        rows.append(cells)
    yield FittedTable(
        ("tensor", "score", "mean", "std", "min", "max", "zeros", "issues"),
        rows,
        prose="issues",
        spare=("mean", "min", "max"),
    )
    yield from _rest(layers)


def explosion_tables(analysis: Any) -> Iterator[RenderableType]:
    """The layers above the limit."""
    if not analysis.exploding_layers:
        return
    rows = [
        (
            layer.name,
            _number(layer.gradient_norm),
            _number(layer.ratio_to_others),
            _number(layer.decades_above_threshold),
            layer.severity.value,
        )
        for layer in list(analysis.exploding_layers.values())[:MOST_ROWS]
    ]
    titles = ("layer", "norm", "× others", "decades", "how grave")
    yield FittedTable(titles, rows, words=("how grave",), spare=("decades",))


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


def _rest(rows: Sequence[Any], shown: int = MOST_ROWS) -> Iterator[str]:
    if len(rows) > shown:
        yield f"[dim]… and {len(rows) - shown} more: --json has them all[/dim]"


def _indented(text: str, columns: int) -> str:
    """A sentence in lines that start below each other (and without spaces at their ends)."""
    margin = " " * columns
    lines = fill(plain(text), prose_width(), initial_indent=margin, subsequent_indent=margin)
    return escape(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else number(float(value))


def _level(level: Any) -> Text:
    return Text(level.value, _COLOURS.get(level.value, ""))


# -- the command -----------------------------------------------------------------------------------

_TITLES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "weights": ("Weights", lambda result: result.distribution_health.status),
    "gradients": ("Gradients", lambda r: r.network_level_analysis.overall_gradient_health),
    "flow": ("Flow", lambda result: None),
    "animation": ("Animation", lambda result: result.overall_health),
    "explosion": ("Explosion", lambda result: result.overall_severity),
}
_TABLES: Mapping[str, Callable[[Any], Iterator[Any]]] = {
    "weights": weight_tables,
    "gradients": gradient_tables,
    "flow": flow_tables,
    "animation": lambda result: iter(()),
    "explosion": explosion_tables,
}
USUAL = {
    "gradients": Stat.GRAD_NORM,
    "flow": Stat.GRAD_NORM,
    "weights": Stat.WEIGHT_NORM,
    "animation": Stat.GRAD_NORM,
}
"""What is analysed unless something is asked for, where the run has what it needs."""


def _part(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", "parts", flag_value=name, multiple=True, help=text)


@click.command(
    "analyze",
    short_help="Say what weights, gradients and their flow show.",
    epilog=examples("gradwatch analyze", "gradwatch analyze my-run --flow --json"),
)
@run_argument
@_part("weights", "Only the weights.")
@_part("gradients", "Only the gradients.")
@_part("flow", "Only the flow.")
@_part("animation", "Only the summary of the animation.")
@click.option(
    "--depth",
    type=click.Choice([depth.value for depth in AnalysisDepth]),
    default=AnalysisDepth.STANDARD.value,
    show_default=True,
    help="How much is computed of the gradients.",
)
@click.option("--window", type=int, default=100, show_default=True, help='Steps that are "now".')
@click.option("--stability-threshold", type=float, default=0.8, show_default=True)
@click.option("--temporal-window", type=int, default=50, show_default=True, help="… of the flow.")
@click.option(
    "--flow-threshold", type=float, default=0.01, show_default=True, help="Blocked below."
)
@click.option("--no-temporal", is_flag=True, help="Leave out how each layer's flow moves.")
@click.option("--no-paths", is_flag=True, help="Leave out the critical paths.")
@click.option("--no-regions", is_flag=True, help="Leave out regions and dead zones.")
@click.option("--explosion", type=float, metavar="NORM", help="Layers above NORM on the last step.")
@click.option("--colours", default="viridis", show_default=True, help=f"Of the flow's JSON: {HELP}")
@click.option(
    "--rules",
    type=click.Choice([rules.value for rules in Rules]),
    default=Rules.GRADWATCH.value,
    help="Our rules, or what the original program would say (JSON only).",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as strict JSON.")
def command(
    run: Place,
    parts: tuple[str, ...],
    rules: str,
    as_json: bool,
    explosion: float | None,
    **options: Any,
) -> None:
    """Say what weights, gradients and their flow show, in sentences, tables or JSON.

    RUN is a recorded run, or a folder with gradients.npz and/or weights.npz: arrays by name whose
    first axis is the step, and optionally `steps`. Health is what `gradwatch diagnose` says.
    """
    if rules != Rules.GRADWATCH and not as_json:
        raise click.UsageError("The original rules have no tables: add --json.")
    with waiting("analysing the run"):
        source, elements = opened(run)
        results = analyses(source, elements, parts, rules, explosion, options)
        first = () if as_json else tuple(_first(source))
    if as_json:
        print_json({"format": FORMAT, **results})
        return
    out = console()
    for line in first:
        out.print(*Text.from_markup(line).wrap(out, prose_width()), sep="\n")
    for name, result in results.items():
        title, health = _TITLES[name]
        word = health(result)
        said = () if word is None else (": ", _level(word))
        out.print(Text.assemble("\n", (title, "bold"), *said))
        for sentence in sentences(result):
            out.print(_indented(sentence, 2), soft_wrap=True)
        for line in _TABLES[name](result):
            if isinstance(line, FittedTable):
                out.print()
            out.print(line)


def analyses(
    run: Run,
    elements: dict[str, Any] | None,
    parts: Sequence[str],
    rules: str,
    explosion: float | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What is asked for, or else what is usual and the run has numbers for, by name."""
    usual = [name for name, needed in USUAL.items() if needed in run.recorded]
    wanted = parts or (usual if explosion is None else [*usual, "explosion"])
    return {name: _result(name, run, elements, rules, explosion, options) for name in wanted}


def _result(
    name: str,
    run: Run,
    elements: dict[str, Any] | None,
    rules: str,
    explosion: float | None,
    options: Mapping[str, Any],
) -> Any:
    match name:
        case "weights":
            if rules != Rules.GRADWATCH:
                return analyze_weights(run if elements is None else elements, rules=rules)
            return analyze_weights(run, elements=elements)
        case "gradients":
            return analyze_gradients(
                run,
                depth=options["depth"],
                window=options["window"],
                stability_threshold=options["stability_threshold"],
                rules=rules,
            )
        case "flow":
            return analyze_flow(
                run,
                show_temporal_flows=not options["no_temporal"],
                show_critical_paths=not options["no_paths"],
                show_problem_regions=not options["no_regions"],
                color_scheme=ORIGINAL_NAMES[Scheme.named(options["colours"])],
                temporal_window=options["temporal_window"],
                flow_threshold=options["flow_threshold"],
                rules=rules,
            )
        case "animation":
            return GradientFlowAnimator.from_run(run).summary()
    assert explosion is not None
    return detect_gradient_explosion(_last_norms(run), explosion, rules=rules)


def _first(run: Run) -> Iterator[str]:
    """What the diagnosis names first, and up to where the run is described."""
    diagnosis = verdicts(run).diagnosis
    grave = [item for item in diagnosis.findings if item.severity > Severity.INFO]
    for finding in grave[:1]:
        where = several(finding.layers) if finding.layers else "the whole run"
        yield (
            f"[bold]Look first at {escape(plain(where))}[/bold] ({finding.check}, "
            f"{finding.severity.word}, from step {finding.first_step}): "
            f"{escape(plain(finding.message))}."
        )
    if not grave:
        reason = "" if "loss" in run.scalars else "; no loss was logged to tell whether it learns"
        yield f"Nothing at warning or above{': healthy' if diagnosis.healthy else reason}."
    yield from went_non_finite(context(run).non_finite_since)
