"""The tables of `gradwatch analyze`: what is sick is never among the rows that are left out."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console
from tests.making import make_run

from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.cli.analyze import MOST_ROWS, flow_tables, gradient_tables, weight_tables

LAYERS = 2 * MOST_ROWS


def drawn(lines: Iterable[Any]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=80, no_color=True, highlight=False)
    for line in lines:
        console.print(line)
    return out.getvalue().splitlines()


def below(lines: list[str], head: str) -> list[str]:
    """The rows of the table whose first heading this is."""
    (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{head} ")]
    return lines[at + 1 :]


def gradients() -> Any:
    norms = np.ones((40, LAYERS)) * np.random.default_rng(0).normal(1, 0.02, (40, LAYERS))
    norms[:, -1] *= 1e-9
    return make_run({"grad_norm": norms}, names=[f"layer{i}.weight" for i in range(LAYERS)])


def test_a_sick_last_layer_leads_the_gradients() -> None:
    lines = drawn(gradient_tables(analyze_gradients(gradients())))
    assert lines[0] == f"1. layer{LAYERS - 1} (High: Vanishing)"
    assert below(lines, "layer")[0].split()[0] == f"layer{LAYERS - 1}"
    assert f"… and {LAYERS - MOST_ROWS} more: --json has them all" in lines


def test_a_blocked_edge_is_among_the_edges() -> None:
    lines = drawn(flow_tables(analyze_flow(gradients())))
    assert f"layer{LAYERS - 1}" in " ".join(below(lines, "from")[:MOST_ROWS])


def test_a_broken_last_tensor_leads_the_weights() -> None:
    random = np.random.default_rng(0)
    tensors = {f"layer{i}.weight": random.normal(0, 0.1, (16, 16)) for i in range(LAYERS)}
    tensors[f"layer{LAYERS - 1}.weight"][3, 3] = np.nan
    lines = drawn(weight_tables(analyze_weights(tensors)))
    assert below(lines, "tensor")[0].split()[0] == f"layer{LAYERS - 1}.weight"
    assert all(len(line) <= 80 for line in lines)
