"""Flow: edges of the real graph, paths by exhaustive search, regions, dead zones, options."""

import numpy as np
import pytest
from tests.analysis.flow.runs import noise, residual, run_of

from gradwatch.analysis.flow import ColorScheme, analyze_flow
from gradwatch.analysis.flow.network import EdgeType
from gradwatch.errors import GradwatchError
from gradwatch.result import dumps
from gradwatch.run import Run

# -- options and invariances ----------------------------------------------------------------------


def test_every_option_changes_the_answer() -> None:
    run = residual()
    plain = analyze_flow(run)
    assert plain.temporal_flows
    assert not analyze_flow(run, show_temporal_flows=False).temporal_flows
    assert not analyze_flow(run, show_critical_paths=False).critical_paths
    sick = run_of({"a": np.full(80, 1e-9), "b": np.ones(80)})
    assert analyze_flow(sick).vanishing_regions
    assert not analyze_flow(sick, show_problem_regions=False).vanishing_regions
    assert len(analyze_flow(run, temporal_window=7).temporal_flows[0].steps) == 7
    palettes = {
        analyze_flow(residual(), color_scheme=scheme).visualization_config.palette
        for scheme in ColorScheme
    }
    assert len(palettes) == len(ColorScheme)
    types = [
        {(e.from_layer, e.to_layer): e.edge_type for e in flow.flow_network.edges}
        for flow in (analyze_flow(residual()), analyze_flow(residual(), flow_threshold=0.05))
    ]
    assert types[0]["b", "c"] is EdgeType.WEAK
    assert types[1]["b", "c"] is EdgeType.BLOCKED


def test_wrong_options_are_refused() -> None:
    with pytest.raises(GradwatchError, match="flow_threshold between 0 and 1"):
        analyze_flow(residual(), flow_threshold=2.0)


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


def test_the_original_rules_give_the_originals_answer() -> None:
    theirs = analyze_flow(residual(), rules="original")
    assert [edge.edge_type for edge in theirs.flow_network.edges] == ["Weak"] * 3  # a chain, always
    assert [path.path_id for path in theirs.critical_paths] == ["main_path"]
