"""The flow network against hand-made graphs and naive arithmetic."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis.flow.runs import RESIDUAL, noise, residual, run_of
from tests.making import make_run

from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.flow.network import EdgeType, FlowEdge, NodeType
from gradwatch.graph import Graph, Node
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind, State


def test_edges_are_those_of_the_graph_with_their_transmission() -> None:
    run = residual()
    edges = {(e.from_layer, e.to_layer): e for e in analyze_flow(run).flow_network.edges}
    assert set(edges) == set(RESIDUAL)
    for (a, b), edge in edges.items():
        ratios = sorted(
            x / y
            for x, y in zip(
                run.column("grad_norm", f"{a}.weight"),
                run.column("grad_norm", f"{b}.weight"),
                strict=True,
            )
        )
        median = math.sqrt(ratios[39] * ratios[40])  # of logs
        assert edge.flow_strength == pytest.approx(median, rel=1e-9)
        assert not edge.assumed


def test_layers_without_parameters_are_stepped_over() -> None:
    run = run_of(
        {"a": noise(1), "b": noise(2)},
        [("a", "relu"), ("relu", "drop"), ("drop", "b")],
        ("relu", "drop"),
    )
    (edge,) = analyze_flow(run).flow_network.edges
    assert (edge.from_layer, edge.to_layer) == ("a", "b")


def test_without_a_graph_the_order_is_assumed_and_says_so() -> None:
    (edge,) = analyze_flow(run_of({"a": noise(1), "b": noise(2)})).flow_network.edges
    assert edge.assumed


STRENGTHS = {
    EdgeType.STRONG: np.ones(80),
    EdgeType.MODERATE: np.full(80, 0.2),
    EdgeType.WEAK: np.full(80, 0.05),
    EdgeType.BLOCKED: np.full(80, 1e-3),
    EdgeType.INTERMITTENT: np.where(np.arange(80) % 4 == 0, 1e-3, 1.0),
    EdgeType.UNKNOWN: np.full(80, np.nan),
}


@pytest.mark.parametrize("type_", EdgeType)
def test_every_type_of_edge(type_: EdgeType) -> None:
    run = run_of({"a": STRENGTHS[type_] * noise(1), "b": np.ones(80)}, [("a", "b")])
    (edge,) = analyze_flow(run).flow_network.edges
    assert edge.edge_type is type_


def test_a_zero_gradient_blocks_its_edge() -> None:
    (edge,) = analyze_flow(run_of({"a": np.zeros(80), "b": np.ones(80)})).flow_network.edges
    assert edge.edge_type is EdgeType.BLOCKED
    assert edge.flow_strength == 0.0


def test_every_type_of_node() -> None:
    levels = {"in": 0.5, "amp": 5.0, "n1": 1.0, "n2": 1.0, "att": 0.3, "n3": 1.0, "n4": 1.0}
    names = [*levels, "out"]
    norms = {n: v * noise(i) for i, (n, v) in enumerate({**levels, "out": 1.0}.items())}
    nodes = analyze_flow(run_of(norms, list(itertools.pairwise(names)))).flow_network.nodes
    types = {node.layer_name: node.node_type for node in nodes}
    assert types["in"] is NodeType.SINK
    assert types["out"] is NodeType.SOURCE
    assert types["amp"] is NodeType.AMPLIFIER
    assert types["att"] is NodeType.ATTENUATOR
    assert types["n1"] is NodeType.NORMAL
    assert {n.layer_name: n.connectivity for n in nodes}["n1"] == 2
    assert sum(node.influence_score for node in nodes) == pytest.approx(1.0)
    squeezed = {f"l{i}": (1e-3 if i < 3 else 1.0) * noise(i) for i in range(8)}
    run = run_of(squeezed, list(itertools.pairwise(squeezed)))
    found = [
        n.layer_name
        for n in analyze_flow(run).flow_network.nodes
        if n.node_type is NodeType.BOTTLENECK
    ]
    assert found == ["l2", "l3"]


def test_metrics_by_hand() -> None:
    run = residual()
    flow = analyze_flow(run)
    got = flow.flow_network.network_metrics
    strengths = [e.flow_strength for e in flow.flow_network.edges]
    mean = math.exp(math.fsum(map(math.log, strengths)) / 4)
    assert got.overall_flow_efficiency == pytest.approx(mean)
    assert got.network_connectivity == 1.0  # every one of the six pairs is connected
    first, last = (run.column("grad_norm", f"{n}.weight") for n in "ad")
    speed = float(np.median(np.log(first / last)))
    assert got.information_propagation_speed == pytest.approx(math.exp(speed / 3))
    empty = analyze_flow(Run.from_norms({})).flow_network.network_metrics
    assert empty.overall_flow_efficiency is None
    assert empty.bottleneck_density is None


# -- near misses: one change away from a type ------------------------------------------------------

NEAR = {
    EdgeType.STRONG: np.full(80, 0.45),
    EdgeType.MODERATE: np.full(80, 0.55),
    EdgeType.WEAK: np.full(80, 0.12),
    EdgeType.BLOCKED: np.full(80, 0.012),
    EdgeType.INTERMITTENT: np.where(np.arange(80) % 20 == 0, 1e-3, 1.0),
    EdgeType.UNKNOWN: np.where(np.arange(80) == 7, 1.0, np.nan),
}


@pytest.mark.parametrize("type_", EdgeType)
def test_no_type_of_edge_without_its_reason(type_: EdgeType) -> None:
    run = run_of({"a": NEAR[type_] * noise(1, spread=0.01), "b": np.ones(80)}, [("a", "b")])
    (edge,) = analyze_flow(run).flow_network.edges
    assert edge.edge_type is not type_


def types(norms: dict, edges: list | None = None) -> dict[str, NodeType]:
    edges = list(itertools.pairwise(norms)) if edges is None else edges
    nodes = analyze_flow(run_of(norms, edges)).flow_network.nodes
    return {node.layer_name: node.node_type for node in nodes}


def test_no_type_of_node_without_its_reason() -> None:
    middle = {n: noise(i) for i, n in enumerate(("in", "amp", "x", "att", "out"))}
    assert set(list(types(middle).values())[1:4]) == {NodeType.NORMAL}
    assert types({**middle, "amp": 1.9 * noise(1)})["amp"] is NodeType.NORMAL
    assert types({**middle, "amp": 2.1 * noise(1)})["amp"] is NodeType.AMPLIFIER
    assert types({**middle, "att": 0.55 * noise(3)})["att"] is NodeType.NORMAL
    assert types({**middle, "att": 0.45 * noise(3)})["att"] is NodeType.ATTENUATOR
    apart = types(middle, [("amp", "x"), ("x", "att")])
    assert apart["in"] is apart["out"] is NodeType.NORMAL  # no edge: neither source nor sink
    assert apart["amp"] is NodeType.SINK
    assert apart["att"] is NodeType.SOURCE
    squeezed = {f"l{i}": (0.12 if i < 3 else 1.0) * noise(i) for i in range(8)}
    assert NodeType.BOTTLENECK not in types(squeezed).values()


# -- layers without a gradient ---------------------------------------------------------------------


def dead(names: str, *dead_ones: str, steps: int = 20) -> dict[str, np.ndarray]:
    return {name: np.zeros(steps) if name in dead_ones else np.ones(steps) for name in names}


def edges_by_name(run: Run) -> dict[str, FlowEdge]:
    return {e.from_layer + e.to_layer: e for e in analyze_flow(run).flow_network.edges}


def test_both_edges_of_a_dead_layer_are_blocked() -> None:
    edges = edges_by_name(Run.from_norms(dead("abcd", "b")))
    assert [edges[name].flow_strength for name in ("ab", "bc", "cd")] == [0.0, 0.0, 1.0]
    assert [edges[name].edge_type for name in ("ab", "bc")] == [EdgeType.BLOCKED] * 2
    assert edges["ab"].flow_consistency is None
    assert edges["ab"].missing == {"flow_consistency": "nothing passes on any step"}
    assert edges["cd"].edge_type is EdgeType.STRONG
    two = edges_by_name(Run.from_norms(dead("abcd", "b", "c")))
    assert [two[name].flow_strength for name in ("ab", "bc", "cd")] == [0.0, 0.0, 0.0]


def test_a_layer_whose_gradient_is_none_blocks_like_one_of_zeros() -> None:
    norms = np.ones((20, 3))
    norms[:, 1] = np.nan
    states = np.where(np.isnan(norms), State.NO_GRADIENT, State.MEASURED)
    names = ("a.weight", "b.weight", "c.weight")
    run = make_run({"grad_norm": norms}, names=names, states={"grad_norm": states})
    assert {e.edge_type for e in edges_by_name(run).values()} == {EdgeType.BLOCKED}
    frozen = [
        Subject(Kind.PARAMETER, name, name[0], frozen=name[0] == "b", order=i)
        for i, name in enumerate(names)
    ]
    run = make_run({"grad_norm": norms}, subjects=frozen, states={"grad_norm": states})
    assert {e.edge_type for e in edges_by_name(run).values()} == {EdgeType.UNKNOWN}


def test_each_dead_layer_lowers_the_efficiency_by_as_much_as_a_millionth() -> None:
    def efficiency(*dead_ones: str) -> float:
        run = Run.from_norms(dead("abcdefgh", *dead_ones))
        return analyze_flow(run).flow_network.network_metrics.overall_flow_efficiency

    assert efficiency() == 1.0
    assert efficiency("a") == pytest.approx(1e-6 ** (1 / 7))
    assert efficiency("b") == pytest.approx(1e-6 ** (2 / 7))
    assert efficiency("b", "c") == pytest.approx(1e-6 ** (3 / 7))
    faint = {**dead("abcdefgh"), "a": np.full(20, 1e-300)}
    got = analyze_flow(Run.from_norms(faint)).flow_network.network_metrics
    assert got.overall_flow_efficiency == pytest.approx(1e-6 ** (1 / 7))
    dip = {**dead("abc"), "b": np.full(20, 1e-9)}  # what is lost behind it comes back before it
    got = analyze_flow(Run.from_norms(dip)).flow_network.network_metrics
    assert got.overall_flow_efficiency == pytest.approx(1.0)
    three = Run.from_norms({"b": np.zeros(20), "c": np.ones(20), "d": np.ones(20)})
    got = analyze_flow(three).flow_network.network_metrics
    assert got.overall_flow_efficiency == pytest.approx(1e-3)
    assert got.flow_stability == 1.0  # of the one edge that lets anything through


def test_a_dead_layer_is_a_bottleneck_and_its_neighbours_are_not_blamed() -> None:
    chain = dead("abcdefg", "d")
    found = types(chain)
    assert found["d"] is NodeType.BOTTLENECK
    assert [found[name] for name in "bcef"] == [NodeType.NORMAL] * 4
    flows = analyze_flow(Run.from_norms(chain)).layer_flows
    assert flows["d"].bottleneck_score == 1.0
    assert flows["b"].bottleneck_score == 0.0
    assert flows["a"].bottleneck_score is None
    assert types(dead("abc", "a"))["a"] is NodeType.SINK


def finite(tree) -> bool:
    if isinstance(tree, dict):
        return all(map(finite, tree.values()))
    if isinstance(tree, list):
        return all(map(finite, tree))
    return not isinstance(tree, float) or math.isfinite(tree)


@pytest.mark.parametrize("seed", range(30))
def test_every_number_of_every_result_is_finite(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(1, 40))
    kinds = [
        np.zeros(steps),
        np.full(steps, 1e306),
        np.full(steps, 5e-324),
        np.where(rng.random(steps) < 0.5, 0.0, 1.0),
        np.full(steps, np.nan),
        np.exp(rng.uniform(-700, 700, steps)),
        np.concatenate([np.ones(steps - 1), [np.inf]]),
    ]
    chosen = rng.integers(0, len(kinds) - (seed % 3 > 0), 6)
    run = Run.from_norms({f"l{i}": kinds[k] for i, k in enumerate(chosen)})
    assert finite(analyze_flow(run).to_dict())


@pytest.mark.parametrize("seed", range(4))
def test_connected_pairs_are_those_of_a_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.analysis.flow.network.CHUNK_BITS", 3)
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(11)]
    pairs = [(a, b) for a, b in itertools.combinations(names, 2) if rng.random() < 0.15]
    graph = Graph(tuple(map(Node, names)), tuple(pairs))
    metrics = analyze_flow(run_of(dict.fromkeys(names, np.ones(9)), pairs)).flow_network
    reached = sum(len(graph.downstream(name)) for name in names)
    assert metrics.network_metrics.network_connectivity == pytest.approx(reached / 55)


def naive_edge(a: list[float], b: list[float]) -> tuple[float | None, float | None, float]:
    """Median transmission, 1/(1 + spread of ln), share of steps under 0.01; in plain Python."""
    ratios = [
        0.0 if x == 0 or y == 0 else x / y
        for x, y in zip(a, b, strict=True)
        if not (math.isnan(x) or math.isnan(y))
    ]
    if not ratios:
        return None, None, 0.0
    ratios.sort()
    low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    spread = None
    if logs:
        mean = math.fsum(logs) / len(logs)
        spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / len(logs))
    blocked = sum(ratio < 0.01 for ratio in ratios) / len(ratios)
    consistency = None if spread is None else 1 / (1 + spread)
    return math.sqrt(low) * math.sqrt(high), consistency, blocked


@pytest.mark.parametrize("seed", range(20))
def test_edges_of_ragged_series_by_plain_arithmetic(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwatch.analysis.flow.network.CHUNK", 100)  # several chunks
    rng = np.random.default_rng(seed)
    table = 10.0 ** rng.normal(-2, 2, (int(rng.integers(2, 40)), 6))
    table[rng.random(table.shape) < 0.2 * (seed % 3)] = 0.0
    table[rng.random(table.shape) < 0.3 * (seed % 2)] = np.nan
    norms = {f"n{i}": column for i, column in enumerate(table.T)}
    for edge in analyze_flow(run_of(norms)).flow_network.edges:
        a, b = norms[edge.from_layer].tolist(), norms[edge.to_layer].tolist()
        strength, consistency, blocked = naive_edge(a, b)
        assert (edge.flow_strength is None) == (strength is None)
        assert (edge.flow_consistency is None) == (consistency is None)
        if strength is not None:
            assert edge.flow_strength == pytest.approx(strength, rel=1e-9)
        if consistency is not None:
            assert edge.flow_consistency == pytest.approx(consistency, rel=1e-9)
        assert (edge.edge_type is EdgeType.INTERMITTENT) == (0.1 <= blocked <= 0.9)


def test_strength_and_influence_by_plain_arithmetic() -> None:
    norms = {f"n{i}": (i + 1) * noise(i) for i in range(5)}
    nodes = analyze_flow(run_of(norms)).flow_network.nodes
    means = [math.fsum(column) / len(column) for column in norms.values()]
    total = math.fsum(mean**2 for mean in means)
    assert [node.gradient_strength for node in nodes] == pytest.approx(means)
    assert [node.influence_score for node in nodes] == pytest.approx([m**2 / total for m in means])


@pytest.mark.parametrize("seed", range(6))
def test_bottlenecks_by_plain_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(9)]
    pairs = sorted({*itertools.pairwise(names), ("n0", "n3"), ("n2", "n6"), ("n4", "n8")})
    norms = {name: 10.0 ** rng.normal(0, 2) * noise(i) for i, name in enumerate(names)}
    level = {name: math.log10(float(np.median(column))) for name, column in norms.items()}
    lost = {}
    for name in names[1:-1]:
        after = [level[b] for a, b in pairs if a == name]
        before = [level[a] for a, b in pairs if b == name]
        lost[name] = sum(after) / len(after) - sum(before) / len(before)
    usual = float(np.median(list(lost.values())))
    flows = analyze_flow(run_of(norms, pairs)).layer_flows
    for name, value in lost.items():
        expected = min(max(value - usual, 0.0) / 2, 1.0)
        assert flows[name].bottleneck_score == pytest.approx(expected, abs=1e-3)
