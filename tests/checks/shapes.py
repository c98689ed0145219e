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


# -- runs that the tests of several checks share ---------------------------------------------------

NAMES = ["in.weight", "mid.weight", "out.weight"]
STUCK = np.full(60, 1.6)
FALLING = np.linspace(1.6, 0.05, 60)


def gradients(*columns: Any, steps: int = 60, **options: Any) -> Run:
    """Gradient norms of three layers."""
    return make_run({"grad_norm": table(columns, steps)}, names=NAMES, **options)


def norms(*columns: Any, steps: int = 40) -> Run:
    """Weight norms of three layers, or of some more."""
    names = [*NAMES, "more.weight", "last.weight"][: len(columns)]
    return make_run({"weight_norm": table(columns, steps)}, names=names)


def updates(*columns: Any, loss: np.ndarray = STUCK) -> Run:
    """Update ratios of three layers."""
    return make_run({"update_ratio": table(columns, 60)}, names=NAMES, scalars={"loss": loss})


def flat(first: Any, last: float = 0.0, entropy: float = 0.8) -> Run:
    """A hidden layer and an output, and how much of each lies where its function is flat."""
    return make_run(
        {
            "act_flat_fraction": table([first, last], 40),
            "act_entropy": table([entropy, np.nan], 40),
        },
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
    )


def run_of(loss: np.ndarray, chance: float | None = None, **series: Any) -> Run:
    """A loss, with series that two layers share."""
    values = {name: table([column, column], len(loss)) for name, column in series.items()}
    return make_run(
        values,
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
        info={} if chance is None else {"chance": chance},
    )


def falling(random: np.random.Generator, steps: int = 200, noise: float = 0.02) -> np.ndarray:
    """The loss of a training that learns."""
    return np.geomspace(1.6, 0.1, steps) * (1 + noise * random.normal(size=steps))


__all__ = [
    "FALLING",
    "NAMES",
    "STUCK",
    "Severity",
    "falling",
    "flat",
    "gradients",
    "layer",
    "make_run",
    "net",
    "norms",
    "only",
    "quiet",
    "run_of",
    "said",
    "skipped",
    "table",
    "updates",
    "weight",
]
