"""Short ways to make runs that checks can judge."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tests.making import make_run

from gradwatch.checks import CHECKS
from gradwatch.finding import Finding, Severity, Skipped
from gradwatch.graph import Graph, Node
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind


def said(name: str, run: Run) -> list[Finding]:
    """What one check finds."""
    (check,) = [item for item in CHECKS if name == item.NAME]
    return [item for item in check.check(run) if isinstance(item, Finding)]


def skipped(name: str, run: Run) -> list[Skipped]:
    (check,) = [item for item in CHECKS if name == item.NAME]
    return [item for item in check.check(run) if isinstance(item, Skipped)]


def only(name: str, run: Run) -> Finding:
    (finding,) = said(name, run)
    assert finding.check == name
    return finding


def quiet(name: str, run: Run) -> bool:
    """Nothing above an information."""
    return all(item.severity is Severity.INFO for item in said(name, run))


def weight(layer: str, shape: tuple[int, ...] = (8, 8), **options: Any) -> Subject:
    options.setdefault("module", "Linear")
    options.setdefault("group", 0)
    count = int(np.prod(shape))
    name = f"{layer}.weight"
    return Subject(
        Kind.PARAMETER, name, layer, shape, options.pop("dtype", "float32"), count, **options
    )


def layer(name: str) -> Subject:
    return Subject(Kind.LAYER, name, name)


def net(*names: str, kinds: Sequence[str] = ()) -> Graph:
    """A chain that was seen, not assumed."""
    told = [*kinds, *["Linear"] * len(names)]
    nodes = tuple(Node(name, kind) for name, kind in zip(names, told, strict=False))
    return Graph(nodes, tuple(pairwise(names)))


def table(columns: Sequence[Any], steps: int) -> np.ndarray:
    """Columns of constants or series, [step, column]."""
    return np.column_stack([np.broadcast_to(np.asarray(c, float), (steps,)) for c in columns])


__all__ = [
    "Severity",
    "layer",
    "make_run",
    "net",
    "only",
    "quiet",
    "said",
    "skipped",
    "table",
    "weight",
]
