"""One root, not a list of alarms."""

from collections.abc import Sequence

import numpy as np
from tests.making import make_run

from gradwatch.diagnosis import folding
from gradwatch.finding import Finding, Severity
from gradwatch.graph import Graph, Node


def finding(
    check: str, step: int = 0, *layers: str, severity: Severity = Severity.WARNING
) -> Finding:
    return Finding(check, severity, layers, step, 100, f"{check} happens")


def fold(findings: Sequence[Finding], graph: Graph, steps: int) -> tuple[Finding, ...]:
    """In a network with a weight for each layer of the graph."""
    names = [f"{node.layer}.weight" for node in graph.nodes]
    run = make_run({"grad_norm": np.ones((steps, len(names)))}, names=names, graph=graph)
    return folding.fold(findings, run)


CHAIN = Graph.chain(["a", "b", "c"])
FORK = Graph(
    tuple(Node(name) for name in ("stem", "left", "right")), (("stem", "left"), ("stem", "right"))
)


def test_what_follows_is_put_under_its_root() -> None:
    folded = fold(
        [
            finding("nonfinite", 40, "c", severity=Severity.CRITICAL),
            finding("divergence", 30, severity=Severity.CRITICAL),
            finding("update-ratio-too-large", 12, "a"),
        ],
        CHAIN,
        200,
    )
    (root,) = folded
    assert root.check == "update-ratio-too-large"
    assert [item.check for item in root.consequences] == ["divergence", "nonfinite"]
    assert root.severity is Severity.CRITICAL, "as grave as what follows from it"


def test_a_cause_that_comes_much_later_explains_nothing() -> None:
    folded = fold(
        [finding("divergence", 20), finding("update-ratio-too-large", 150, "a")], CHAIN, 200
    )
    assert len(folded) == 2


def test_faults_of_unrelated_branches_stay_apart() -> None:
    findings = [finding("vanishing-gradient", 0, "left"), finding("saturation", 0, "right")]
    assert len(fold(findings, FORK, 100)) == 2
    findings = [finding("vanishing-gradient", 0, "stem"), finding("saturation", 0, "right")]
    assert len(fold(findings, FORK, 100)) == 1


def test_circles_are_cut_by_time() -> None:
    early = [finding("exploding-gradient", 1, "a"), finding("update-ratio-too-large", 50, "a")]
    (root,) = fold(early, CHAIN, 100)
    assert root.check == "exploding-gradient"
    late = [finding("exploding-gradient", 60, "a"), finding("update-ratio-too-large", 11, "a")]
    (root,) = fold(late, CHAIN, 100)
    assert root.check == "update-ratio-too-large"


def test_an_information_explains_nothing() -> None:
    findings = [
        finding("exploding-gradient", 1, "a", severity=Severity.INFO),
        finding("divergence", 9),
    ]
    assert len(fold(findings, CHAIN, 100)) == 2


def test_a_doubtful_symptom_counts_once_its_cause_is_there() -> None:
    doubtful = finding("slow-convergence", severity=Severity.INFO)
    (alone,) = fold([doubtful], CHAIN, 100)
    assert alone.severity is Severity.INFO
    (root,) = fold([doubtful, finding("dead-units", 30, "b")], CHAIN, 100)
    assert root.consequences[0].severity is Severity.WARNING


def test_the_gravest_comes_first() -> None:
    folded = fold(
        [
            finding("overfitting", 50),
            finding("stale-gradients", 1, severity=Severity.CRITICAL),
            finding("uneven-learning-speeds", 0, severity=Severity.INFO),
        ],
        CHAIN,
        100,
    )
    assert [item.check for item in folded] == [
        "stale-gradients",
        "overfitting",
        "uneven-learning-speeds",
    ]


def test_one_fault_seen_from_two_sides_is_one_finding() -> None:
    (root,) = fold([finding("bad-init", 0, "a"), finding("bad-init", 0, "c")], CHAIN, 100)
    assert [item.layers for item in (root, *root.consequences)] == [("a",), ("c",)]
    assert (
        len(fold([finding("not-updated", 0, "a"), finding("not-updated", 0, "c")], CHAIN, 9)) == 2
    )


def test_the_same_fault_seen_twice_explains_no_more() -> None:
    grave = Severity.CRITICAL
    findings = [
        finding("nonfinite", 40, "c", severity=grave),
        finding("nonfinite", 41, "a", "b", severity=grave),
        finding("not-updated", 0, "b", severity=grave),
    ]
    assert [item.check for item in fold(findings, CHAIN, 200)] == ["not-updated", "nonfinite"]


def test_steps_that_are_small_beside_exploded_weights_are_part_of_it() -> None:
    small = finding("update-ratio-too-small", 3)
    (root,) = fold([finding("weight-explosion", 2), small], CHAIN, 200)
    assert [item.severity for item in root.consequences] == [Severity.INFO]
    (alone,) = fold([small], CHAIN, 200)
    assert alone.severity is Severity.WARNING


def test_what_a_working_training_bears_counts_in_full_under_a_fault() -> None:
    borne = finding("weight-explosion", 5, "a", severity=Severity.INFO)
    degrees = {borne.message: Severity.WARNING}
    names = [f"{node.layer}.weight" for node in CHAIN.nodes]
    run = make_run({"grad_norm": np.ones((200, 3))}, names=names, graph=CHAIN)
    (root,) = folding.fold([finding("input-scale"), borne], run, degrees)
    assert [item.severity for item in root.consequences] == [Severity.WARNING]
    (alone,) = folding.fold([borne], run, degrees)
    assert alone.severity is Severity.INFO
