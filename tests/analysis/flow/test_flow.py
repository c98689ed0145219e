"""Flow: edges of the real graph, paths by exhaustive search, regions, dead zones, options."""

import itertools
import math

import numpy as np
import pytest
from tests.making import make_run

from gradwatch.analysis.flow import ColorScheme, FlowDirection, analyze_flow
from gradwatch.analysis.flow.network import EdgeType, NodeType
from gradwatch.analysis.flow.regions import RecoveryPotential, RegionSeverity
from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph, Node
from gradwatch.result import dumps
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind, State


def noise(seed: int, size: int = 80, spread: float = 0.05) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).normal(size=size))


def run_of(norms: dict, edges=None, extra_nodes=(), counts=None, **more) -> Run:
    """A run with one weight for each layer; RMS equals the given series."""
    counts = counts or dict.fromkeys(norms, 1)
    subjects = [
        Subject(Kind.PARAMETER, f"{n}.weight", n, (counts[n],), "float32", counts[n], order=i)
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


@pytest.fixture(scope="module")
def residual() -> Run:
    levels = {"a": 0.2, "b": 0.02, "c": 1.0, "d": 1.1}
    return run_of({n: v * noise(i) for i, (n, v) in enumerate(levels.items())}, RESIDUAL)


def test_edges_are_those_of_the_graph_with_their_transmission(residual: Run) -> None:
    edges = {(e.from_layer, e.to_layer): e for e in analyze_flow(residual).flow_network.edges}
    assert set(edges) == set(RESIDUAL)
    for (a, b), edge in edges.items():
        ratios = sorted(
            x / y
            for x, y in zip(
                residual.column("grad_norm", f"{a}.weight"),
                residual.column("grad_norm", f"{b}.weight"),
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


def all_paths(edges: dict, start: str, ends: set) -> list[list[tuple[str, str]]]:
    if start in ends:
        return [[]]
    return [
        [edge, *rest]
        for edge in edges
        if edge[0] == start
        for rest in all_paths(edges, edge[1], ends)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_paths_are_those_of_an_exhaustive_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(7)]
    pairs = [(a, b) for a, b in itertools.combinations(names, 2) if rng.random() < 0.5]
    pairs = sorted({*pairs, *itertools.pairwise(names)})
    run = run_of({n: 10 ** rng.normal() * noise(i) for i, n in enumerate(names)}, pairs)
    flow = analyze_flow(run)
    logs = {(e.from_layer, e.to_layer): math.log(e.flow_strength) for e in flow.flow_network.edges}
    every = all_paths(logs, "n0", {"n6"})
    worst = sorted(sum(logs[e] for e in path) for path in every)[:3]
    widest = sorted(max(-logs[e] for e in path) for path in every)[:3]
    found = {path.path_id: path for path in flow.critical_paths}
    for rank, total in enumerate(worst):
        path = found[f"attenuating-{rank + 1}"]
        assert path.total_flow_strength == pytest.approx(math.exp(total), rel=1e-9)
        assert path.criticality_score == pytest.approx(-total / math.log(10), abs=1e-9)
        assert path.layers[0] == "n0"
        assert path.layers[-1] == "n6"
    for rank, narrowest in enumerate(widest):
        got = found[f"widest-{rank + 1}"].narrowest_flow
        assert got == pytest.approx(math.exp(-narrowest), rel=1e-9)


def test_metrics_by_hand(residual: Run) -> None:
    flow = analyze_flow(residual)
    got = flow.flow_network.network_metrics
    strengths = [e.flow_strength for e in flow.flow_network.edges]
    mean = math.exp(math.fsum(map(math.log, strengths)) / 4)
    assert got.overall_flow_efficiency == pytest.approx(mean)
    assert got.network_connectivity == 1.0  # every one of the six pairs is connected
    first, last = (residual.column("grad_norm", f"{n}.weight") for n in "ad")
    speed = float(np.median(np.log(first / last)))
    assert got.information_propagation_speed == pytest.approx(math.exp(speed / 3))
    empty = analyze_flow(Run.from_norms({})).flow_network.network_metrics
    assert empty.overall_flow_efficiency is None
    assert empty.bottleneck_density is None


# -- regions --------------------------------------------------------------------------------------


def fading(decades_under: float) -> Run:
    """Two neighbours fade at step 40 to 10^−decades under the limit of 1e-4."""
    low = np.where(np.arange(80) < 40, 1.0, 1e-4 * 10**-decades_under)
    norms = {"in": noise(0), "f1": low * noise(1, spread=0), "f2": low, "out": np.ones(80)}
    counts = {"in": 3, "f1": 10, "f2": 32, "out": 5}
    return run_of(norms, list(itertools.pairwise(norms)), counts=counts)


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.3, RegionSeverity.MILD),
        (0.9, RegionSeverity.MODERATE),
        (1.7, RegionSeverity.SEVERE),
        (3.0, RegionSeverity.CRITICAL),
    ],
)
def test_a_vanishing_region_spans_its_layers(decades: float, severity: RegionSeverity) -> None:
    (region,) = analyze_flow(fading(decades)).vanishing_regions
    assert region.affected_layers == ("f1", "f2")
    assert region.severity_level is severity
    assert region.extent.affected_parameters == 42
    assert region.extent.start_step == 40
    assert region.extent.duration_steps == 40
    assert region.current


def test_a_past_episode_is_told_apart_and_a_short_one_is_none() -> None:
    low = np.ones(80)
    low[20:40] = 1e-7
    run = run_of({"a": low, "b": np.ones(80)}, [("a", "b")])
    (region,) = analyze_flow(run).vanishing_regions
    assert not region.current
    assert (region.extent.start_step, region.extent.end_step) == (20, 39)
    low[20:40] = 1.0
    low[20:23] = 1e-7
    run = run_of({"a": low, "b": np.ones(80)}, [("a", "b")])
    assert analyze_flow(run).vanishing_regions == ()


@pytest.mark.parametrize(
    ("decades", "severity"),
    [
        (0.2, RegionSeverity.MILD),
        (0.5, RegionSeverity.MODERATE),
        (0.9, RegionSeverity.SEVERE),
        (2.0, RegionSeverity.CRITICAL),
    ],
)
def test_an_exploding_region(decades: float, severity: RegionSeverity) -> None:
    high = np.where(np.arange(80) < 50, 1.0, 1e3 * 10**decades)
    run = run_of({"a": np.ones(80), "b": high, "c": np.ones(80)})
    (region,) = analyze_flow(run).exploding_regions
    assert region.affected_layers == ("b",)
    assert region.severity_level is severity
    assert region.extent.start_step == 50


def test_a_nan_is_an_explosion_of_the_worst_kind() -> None:
    run = Run.from_norms({"a": [1.0] * 9 + [math.nan] + [1.0] * 10, "b": [1.0] * 20})
    (region,) = analyze_flow(run).exploding_regions
    assert region.severity_level is RegionSeverity.CRITICAL
    assert region.extent.start_step == 9


def silent(before: int, dead: int) -> np.ndarray:
    return np.concatenate([np.ones(before), np.zeros(dead)])


def test_every_recovery_potential() -> None:
    ok = np.ones(80)
    revived = np.concatenate([silent(10, 25), silent(20, 25)])
    (zone,) = analyze_flow(run_of({"a": revived, "b": ok})).dead_zones
    assert (zone.recovery_potential, zone.start_step) == (RecoveryPotential.HIGH, 55)
    (zone,) = analyze_flow(run_of({"a": silent(60, 20), "b": ok})).dead_zones
    assert zone.recovery_potential is RecoveryPotential.LOW
    assert not zone.intervention_required
    subjects = [
        Subject(Kind.PARAMETER, "a.weight", "a", (4,), "float32", 4),
        Subject(Kind.PARAMETER, "b.weight", "b", (4,), "float32", 4),
        Subject(Kind.LAYER, "a", "a"),
    ]
    table = np.stack([silent(20, 60), ok], axis=1)
    alive = {"grad_norm": table, "act_std": np.ones((80, 1))}
    (zone,) = analyze_flow(make_run(alive, subjects=subjects)).dead_zones
    assert zone.recovery_potential is RecoveryPotential.MEDIUM
    assert zone.intervention_required
    absent = np.stack([np.full(80, np.nan), ok], axis=1)
    states = np.where(np.isnan(absent), State.NO_GRADIENT, State.MEASURED)
    run = make_run({"grad_norm": absent}, subjects=subjects[:2], states={"grad_norm": states})
    (zone,) = analyze_flow(run).dead_zones
    assert zone.recovery_potential is RecoveryPotential.NONE


# -- time and directions --------------------------------------------------------------------------

MOVES = {
    FlowDirection.GROWING: np.exp(np.arange(60) / 20),
    FlowDirection.SHRINKING: np.exp(-np.arange(60) / 20),
    FlowDirection.OSCILLATING: 1 + 0.4 * (-1.0) ** np.arange(60),
    FlowDirection.STAGNANT: noise(3, 60),
    FlowDirection.UNKNOWN: np.ones(3),
}


@pytest.mark.parametrize("direction", FlowDirection)
def test_every_direction(direction: FlowDirection) -> None:
    (flow,) = analyze_flow(Run.from_norms({"a": MOVES[direction]})).temporal_flows
    assert flow.flow_direction is direction


def test_directions_come_from_the_recorded_sketch() -> None:
    rng = np.random.default_rng(0)
    sketch = rng.normal(size=(6, 2, 32))
    run = make_run(
        {"grad_norm": np.ones((6, 2)), "grad_sketch": sketch}, names=("a.weight", "a.bias")
    )
    flow = analyze_flow(run).layer_flows["a"]
    merged = sketch.sum(axis=1)
    for i, found in enumerate(flow.gradient_directions):
        size = math.sqrt(math.fsum(float(v) ** 2 for v in merged[i]))
        expected = [float(v) / size for v in merged[i]]
        assert list(found.direction_vector) == pytest.approx(expected)
        if i:
            before = flow.gradient_directions[i - 1].direction_vector
            dot = math.fsum(a * b for a, b in zip(found.direction_vector, before, strict=True))
            assert found.direction_cosine == pytest.approx(dot)
    assert flow.gradient_directions[0].direction_cosine is None
    without = analyze_flow(Run.from_norms({"a": [1.0, 2.0]})).layer_flows["a"]
    assert without.gradient_directions[1].direction_vector is None
    assert without.gradient_directions[1].consistency_score == pytest.approx(1 - 1 / 3)


# -- options and invariances ----------------------------------------------------------------------


def test_every_option_changes_the_answer(residual: Run) -> None:
    run = fading(3.0)
    plain = analyze_flow(run)
    assert plain.temporal_flows
    assert not analyze_flow(run, show_temporal_flows=False).temporal_flows
    assert not analyze_flow(run, show_critical_paths=False).critical_paths
    assert not analyze_flow(run, show_problem_regions=False).vanishing_regions
    assert len(analyze_flow(run, temporal_window=7).temporal_flows[0].steps) == 7
    palettes = {
        analyze_flow(residual, color_scheme=scheme).visualization_config.palette
        for scheme in ColorScheme
    }
    assert len(palettes) == len(ColorScheme)
    types = [
        {(e.from_layer, e.to_layer): e.edge_type for e in flow.flow_network.edges}
        for flow in (analyze_flow(residual), analyze_flow(residual, flow_threshold=0.05))
    ]
    assert types[0]["b", "c"] is EdgeType.WEAK
    assert types[1]["b", "c"] is EdgeType.BLOCKED


def test_wrong_options_are_refused(residual: Run) -> None:
    with pytest.raises(GradwatchError, match="flow_threshold between 0 and 1"):
        analyze_flow(residual, flow_threshold=2.0)


def test_the_scale_of_the_loss_does_not_matter() -> None:
    norms = {f"l{i}": 10.0 ** -(i % 6) * noise(i) for i in range(9)}
    plain = analyze_flow(Run.from_norms(norms))
    scaled = analyze_flow(Run.from_norms({n: 65536 * x for n, x in norms.items()}))
    assert dumps(plain.flow_network.network_metrics)[:200]
    assert [e.edge_type for e in plain.flow_network.edges] == [
        e.edge_type for e in scaled.flow_network.edges
    ]
    assert [n.node_type for n in plain.flow_network.nodes] == [
        n.node_type for n in scaled.flow_network.nodes
    ]
    assert [r.region_id for r in plain.vanishing_regions] == [
        r.region_id for r in scaled.vanishing_regions
    ]
    assert dumps(plain) == dumps(analyze_flow(Run.from_norms(norms)))


def test_the_original_rules_give_the_originals_answer(residual: Run) -> None:
    theirs = analyze_flow(residual, rules="original")
    assert [edge.edge_type for edge in theirs.flow_network.edges] == ["Weak"] * 3  # a chain, always
    assert [path.path_id for path in theirs.critical_paths] == ["main_path"]
