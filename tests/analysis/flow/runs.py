"""Runs made for the tests of the flow."""

import math
from typing import Any

import numpy as np
from tests.making import make_run

from gradwatch.graph import Graph, Node
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind


def noise(seed: int, size: int = 80, spread: float = 0.05) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).normal(size=size))


def run_of(
    norms: dict[str, Any],
    edges: Any = None,
    extra_nodes: Any = (),
    counts: Any = None,
    **more: Any,
) -> Run:
    """A run with one weight for each layer; RMS equals the given series."""
    counts = counts or dict.fromkeys(norms, 1)
    subjects = [
        Subject(Kind.PARAMETER, f"{n}.weight", n, (1, counts[n]), "float32", counts[n], order=i)
        for i, n in enumerate(norms)
    ]
    table = np.stack([np.asarray(x) * math.sqrt(counts[n]) for n, x in norms.items()], axis=1)
    graph = None
    if edges is not None:
        graph = Graph(tuple(Node(n) for n in (*norms, *extra_nodes)), tuple(edges))
    return make_run(
        {"grad_norm": table, **more.pop("series", {})}, subjects=subjects, graph=graph, **more
    )


RESIDUAL = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")]


def residual() -> Run:
    """Four layers, one of them beside a skip connection."""
    levels = {"a": 0.2, "b": 0.02, "c": 1.0, "d": 1.1}
    return run_of({n: v * noise(i) for i, (n, v) in enumerate(levels.items())}, RESIDUAL)
