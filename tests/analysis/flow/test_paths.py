"""Critical paths against an exhaustive search."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis.flow.runs import noise, run_of

from gradwatch.analysis.flow import analyze_flow


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


def test_a_path_through_a_dead_layer_is_the_most_critical() -> None:
    edges = [("a", "b"), ("b", "d"), ("a", "c"), ("c", "d")]
    norms = {"a": np.ones(20), "b": np.zeros(20), "c": np.full(20, 1e-9), "d": np.ones(20)}
    first, second, widest, narrow = analyze_flow(run_of(norms, edges)).critical_paths
    assert (first.path_id, first.layers) == ("attenuating-1", ("a", "b", "d"))
    assert first.bottleneck_layers == ("b",)
    assert first.total_flow_strength == first.narrowest_flow == 0.0
    assert first.criticality_score == pytest.approx(600)
    assert first.optimization_potential is None
    assert "not known" in first.missing["optimization_potential"]
    assert second.layers == widest.layers == ("a", "c", "d")
    assert second.criticality_score == pytest.approx(0.0)
    assert second.bottleneck_layers == ("c",)
    assert second.optimization_potential == pytest.approx(9.0)
    assert narrow.layers == ("a", "b", "d")


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_nothing_comes_through_a_path_with_a_dead_layer(dead: str) -> None:
    norms = {name: np.full(20, float(name != dead)) for name in "abc"}
    for path in analyze_flow(run_of(norms, [("a", "b"), ("b", "c")])).critical_paths:
        assert path.total_flow_strength == path.narrowest_flow == 0.0
        assert path.bottleneck_layers == (dead,)


def test_the_potential_of_a_path_is_what_its_bottlenecks_lose() -> None:
    levels = {"a": 1e-3, "b": 1e-3, "c": 0.5, "d": 1.0}
    run = run_of({n: v * noise(1) for n, v in levels.items()}, list(itertools.pairwise(levels)))
    path, _ = analyze_flow(run).critical_paths
    assert path.bottleneck_layers == ("b",)
    assert path.optimization_potential == pytest.approx(math.log10(500))
    assert path.criticality_score == pytest.approx(3)
    even = run_of(dict.fromkeys(levels, noise(1)), list(itertools.pairwise(levels)))
    path, _ = analyze_flow(even).critical_paths
    assert path.optimization_potential is None
    assert path.missing == {"optimization_potential": "no edge loses any"}


def test_a_very_long_chain_is_one_path() -> None:
    norms = dict.fromkeys((f"l{i}" for i in range(3000)), np.array([1.0, 1.0]))
    path, _ = analyze_flow(run_of(norms)).critical_paths
    assert path.path_length == 3000
    assert path.layers == tuple(norms)
