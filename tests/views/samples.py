"""Runs and diagnoses made by hand that the tests of all views share."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gradwatch.diagnosis import Diagnosis
from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.graph import Graph, Node
from gradwatch.run import Event, EventKind, Histogram, MemorySource, Run, Subject
from gradwatch.stats import Family, Kind, Stat, State

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "{{7*7}} ${7*7}",
    "__proto__",
    "constructor",
    "line\u2028separator\u2029",
    "\x1b[2J\x1b]0;title\x07",
    "a\rb\x9bc\x7f",
    "right\u202eleft\u200bzero",
    "\ud800lone",
    "x" * 5000,
    "<svg onload=alert(1)>",
    "&amp;&lt;",
]


@dataclass(frozen=True)
class Told(Diagnosis):
    """A diagnosis by hand."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    checked: tuple[str, ...] = ()
    healthy: bool | None = True


def network(
    layers: int = 6,
    steps: int = 60,
    *,
    names: Sequence[str] | None = None,
    fading: bool = False,
    broken_from: int | None = None,
    seed: int = 0,
) -> Run:
    """A chain of layers with weight and bias; `fading` gradients, or NaN from a step on."""
    random = np.random.default_rng(seed)
    named = list(names) if names is not None else [f"net.{i}" for i in range(layers)]
    layers = len(named)
    subjects: list[Subject] = []
    for order, layer in enumerate(named):
        for part, shape in (("weight", (8, 8)), ("bias", (8,))):
            subjects.append(
                Subject(
                    Kind.PARAMETER,
                    f"{layer}.{part}",
                    layer,
                    shape,
                    "float32",
                    int(np.prod(shape)),
                    0,
                    order=order,
                    module="Linear",
                )
            )
    subjects += [Subject(Kind.LAYER, layer, layer, order=i) for i, layer in enumerate(named)]
    subjects.append(Subject(Kind.GROUP, "0"))
    depth = np.repeat(np.arange(layers), 2)
    decades = np.power(10.0, -(layers - 1.0 - depth)) if fading else np.ones(2 * layers)
    norm = decades * np.exp(random.normal(0, 0.2, (steps, 2 * layers)))
    nan = np.zeros_like(norm)
    if broken_from is not None:
        nan[broken_from:, 4] = 3
        norm[broken_from:, 4] = np.nan
    slowness = 120 if fading else 30  # where the loss is gone, faint gradients are none the worse
    loss = 2.3 * np.exp(-np.arange(steps) / slowness) + 0.05 * random.random(steps)
    if broken_from is not None:
        loss[broken_from:] = np.nan
    ratio = 1e-3 * np.exp(random.normal(0, 0.3, norm.shape))
    ratio[np.arange(steps) % 4 != 0] = np.nan
    spread = 1 + 0.1 * random.random((steps, layers))
    spread[np.arange(steps) % 16 != 0] = np.nan
    states = {
        stat: np.where(np.isnan(table), State.NOT_SAMPLED, State.MEASURED).astype(np.uint8)
        for stat, table in ((Stat.UPDATE_RATIO, ratio), (Stat.ACT_STD, spread))
    }
    bins = {
        (Family.WEIGHT, f"{layer}.weight"): {
            step: Histogram(
                -8,
                np.array([1, 2, 4, 8, 8, 5, 2, 1], np.uint64),
                np.array([1, 2, 4, 8, 8, 5, 3, 1], np.uint64),
                zeros=1,
            )
            for step in range(0, steps, 16)
        }
        for layer in named
    }
    nodes = tuple(Node(layer, "Linear") for layer in named)
    edges = list(pairwise(named))
    if layers > 3:
        edges.append((named[0], named[3]))
    return Run(
        MemorySource(
            np.arange(steps),
            tuple(subjects),
            {
                Stat.GRAD_NORM: norm,
                Stat.GRAD_NAN: nan,
                Stat.UPDATE_RATIO: ratio,
                Stat.ACT_STD: spread,
                Stat.LR: np.full((steps, 1), 1e-3),
            },
            states,
            scalars={"loss": loss},
            events=(
                Event(0, EventKind.STARTED, "started"),
                Event(steps - 1, EventKind.COST, "0.4 % of the run's time was spent recording"),
            ),
            graph=Graph(nodes, tuple(edges)),
            info={"name": "sample", "complete": True},
            bins=bins,
        )
    )


def together(steps: int = 200) -> Run:
    """Layers 0 to 3 move together, 4 and 5 against them, the others for themselves."""
    random = np.random.default_rng(1)
    common = np.cumsum(random.normal(0, 0.3, steps))
    signs = [1, 1, 1, 1, -1, -1, 0, 0]
    norms = {
        f"blocks.{i}.weight": np.exp(
            sign * common + np.cumsum(random.normal(0, 0.1, steps))
        ).tolist()
        for i, sign in enumerate(signs)
    }
    return Run.from_norms(norms)


def sick_diagnosis(run: Run) -> Told:
    """Two findings that fit `network(fading=True)` and a check that could not look."""
    first = run.names[0]
    layer = run.layers[0]
    return Told(
        (
            Finding(
                "vanishing-gradient",
                Severity.CRITICAL,
                (layer,),
                7,
                int(run.steps[-1]),
                "gradient RMS 1.2e-06; the strongest layer has 1.2e-01",
                (Evidence(Stat.GRAD_NORM, first, 7, 1.0e-5, 1.0e-4),),
                "the gradient fades on the way back",
                ("Add normalisation or residual connections before this layer.",),
                (),
            ),
            Finding(
                "slow-convergence",
                Severity.WARNING,
                (),
                20,
                int(run.steps[-1]),
                "the loss gains less than 1 % in the last quarter",
                (Evidence("loss", None, 20, 1.2, 1.0),),
            ),
        ),
        (Skipped("overfitting", "not recorded: validation loss"),),
        healthy=False,
    )
