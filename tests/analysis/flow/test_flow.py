"""Flow: edges of the real graph, paths by exhaustive search, regions, dead zones, options."""

import math

import numpy as np
import pytest
from tests.analysis.flow.runs import noise, residual, run_of

from gradwatch.analysis.flow import ColorScheme, GradientFlow, analyze_flow
from gradwatch.analysis.flow.network import EdgeType
from gradwatch.errors import GradwatchError
from gradwatch.jsonio import dumps
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
    short = analyze_flow(run, temporal_window=7)
    assert {len(layer.gradient_directions) for layer in short.layer_flows.values()} == {7}
    assert short.temporal_flows[0].stability_score != plain.temporal_flows[0].stability_score
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


WRONG = {
    "flow_threshold": [2.0, 1, 0, -0.1, math.nan, "much", None, True],
    "temporal_window": [1, 0, -3, 2.5, "all", None],
    "color_scheme": ["red", None, 3],
    "rules": ["mine", None],
    "show_temporal_flows": ["yes", None, 2],
    "show_critical_paths": ["no"],
    "show_problem_regions": [0],
    "current_step": [-1, "last", 2.5, 3],
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in WRONG.items() for value in values]
)
def test_wrong_options_are_refused_in_one_sentence(option: str, value: object) -> None:
    with pytest.raises(GradwatchError, match=option) as caught:
        analyze_flow({"a": [1.0, 2.0]}, **{option: value})
    assert str(caught.value).startswith("Expected ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["HighContrast", "highcontrast", "high-contrast", "HIGH_CONTRAST"])
def test_colour_schemes_in_any_letters(word: str) -> None:
    config = analyze_flow({"a": [1.0, 2.0]}, color_scheme=word).visualization_config
    assert config.color_scheme is ColorScheme.HIGH_CONTRAST


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


def test_the_original_rules_echo_the_options_and_the_step() -> None:
    options = {"temporal_window": 7, "flow_threshold": 0.2, "show_critical_paths": False}
    theirs = analyze_flow(
        residual(), rules="original", current_step=41, color_scheme="monochrome", **options
    )
    assert {flow.step for flow in theirs.temporal_flows} == {41}
    config = theirs.visualization_config
    assert (config.color_scheme, config.temporal_window) == ("Monochrome", 7)
    assert (config.flow_threshold, config.show_critical_paths) == (0.2, False)
    assert theirs.critical_paths  # the original reads none of them
    last = analyze_flow(residual(), rules="original")
    assert {flow.step for flow in last.temporal_flows} == {79}


def test_plain_data_is_taken_as_it_is() -> None:
    rng = np.random.default_rng(0)
    arrays = {"x.weight": [rng.normal(size=(4, 3)) for _ in range(12)], "x.bias": [None] * 12}
    flow = analyze_flow(arrays)
    assert list(flow.layer_flows) == ["x.weight", "x.bias"]
    cosines = Run.from_arrays(arrays).series["grad_cosine"][1:, 0]
    agreement = flow.layer_flows["x.weight"].direction_consistency
    assert agreement == pytest.approx(cosines.mean(), rel=1e-6)
    assert analyze_flow(Run.from_norms({})).layer_flows == {}
    with pytest.raises(GradwatchError):
        analyze_flow([1.0, 2.0])


def test_a_run_that_went_nan_is_described_up_to_there() -> None:
    norms = {
        "a": [*np.ones(20), math.nan, *np.ones(9)],
        "b": [*np.full(20, 2.0), *np.full(10, 9.0)],
    }
    flow = analyze_flow(norms)
    assert flow.non_finite_since == 20
    assert flow.temporal_flows[1].step == 19
    assert set(flow.layer_flows["b"].gradient_magnitudes) == {2.0}
    assert not flow.exploding_regions
    assert analyze_flow({"a": np.ones(20)}).non_finite_since is None


def test_layers_without_elements_have_no_flow() -> None:
    flow = analyze_flow({"a": [np.ones(0)] * 3, "b": [np.ones(0)] * 3})
    assert [edge.flow_strength for edge in flow.flow_network.edges] == [None]
    assert GradientFlow.from_json(flow.to_json()) == flow
