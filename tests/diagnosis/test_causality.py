"""A cause comes first, lies on the path and is large enough; else both stand alone."""

import numpy as np
import pytest
from tests.checks.shapes import make_run, weight

from gradwatch.diagnosis.causality import Causality
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.graph import Graph, Node
from gradwatch.run import Run

STEPS = 200
BRANCHED = Graph(
    tuple(Node(name) for name in ("stem", "wide", "side", "head")),
    (("stem", "wide"), ("stem", "side"), ("wide", "head"), ("side", "head"), ("stem", "head")),
)


def network() -> Run:
    """A small branch beside a wide one; both can be gone round, stem and head cannot."""
    sizes = {"stem": (40, 40), "wide": (100, 100), "side": (4, 4), "head": (4, 40)}
    return make_run(
        {"grad_norm": np.ones((STEPS, 4))},
        subjects=[weight(name, shape) for name, shape in sizes.items()],
        graph=BRANCHED,
    )


def finding(check: str, step: int, *layers: str, evidence: tuple[Evidence, ...] = ()) -> Finding:
    return Finding(check, Severity.WARNING, layers, step, STEPS, check, evidence)


def tensor(name: str) -> Finding:
    layers = (name.rpartition(".")[0],)
    return Finding("no-gradient", Severity.WARNING, layers, 0, STEPS, "", tensors=(name,))


def dead(layer: str, rows: float, step: int = 0, stat: str = "grad_dead_rows") -> Finding:
    evidence = Evidence(stat, f"{layer}.weight", STEPS, rows, 0.0)
    return finding("dead-units", step, layer, evidence=(evidence,))


SLOW = finding("slow-convergence", 0)


def explains(cause: Finding, effect: Finding) -> bool:
    return Causality(network()).explains(cause, effect, earlier_in_order=True)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (finding("stale-gradients", 0), True),  # of the whole run
        (finding("stale-gradients", 150), False),  # in its last quarter
        (tensor("wide.weight"), True),  # most of the elements
        (tensor("side.weight"), False),  # a thousandth of them
        (tensor("head.weight"), False),  # one in a hundred, and data pass through
        (dead("stem", 30), True),  # nothing passes the stem
        (dead("stem", 8), False),  # a fifth of its units is missing
        (dead("side", 4), True),  # one of four layers
        (dead("wide", 90, stat="grad_untouched_rows"), False),  # rows the data never use
        (finding("saturation", 60, "head"), True),
        (finding("saturation", 160, "head"), False),
    ],
)
def test_what_holds_a_whole_run_back(cause: Finding, *, expected: bool) -> None:
    assert explains(cause, SLOW) is expected


def test_dead_units_explain_silence_only_where_all_are_dead_and_were_first() -> None:
    silence = finding("no-gradient", 0, "stem")
    assert explains(dead("stem", 40), silence)
    assert not explains(dead("stem", 24), silence)
    assert not explains(dead("stem", 40, step=91), silence)


def test_steps_that_are_small_everywhere_are_not_explained_by_one_layer() -> None:
    small = finding("update-ratio-too-small", 0)
    assert not explains(finding("vanishing-gradient", 0, "stem"), small)
    assert explains(finding("vanishing-gradient", 0, "stem", "wide", "head"), small)
    assert not explains(dead("wide", 100, step=91), small)


def test_an_unknown_graph_hides_no_cause() -> None:
    run = make_run({"grad_norm": np.ones((STEPS, 12))}, names=[f"l{i}.weight" for i in range(12)])
    assert Causality(run).explains(finding("saturation", 0, "l3"), SLOW, earlier_in_order=True)
