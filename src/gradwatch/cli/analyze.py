"""`gradwatch analyze`: the analyses of a run, as tables or as JSON."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gradwatch.analysis import Rules
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.result import dumps
from gradwatch.store import open_run
from gradwatch.views.analyses import flow_tables, gradient_tables, weight_tables

FORMAT = 1
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
