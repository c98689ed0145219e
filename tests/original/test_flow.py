"""The flow analysis against every golden case."""

import math

import pytest
from tests.golden.reading import Sentences, cases, differences
from tests.original.inputs import histories

import gradwatch
from gradwatch.original import (
    GradientFlowVisualizer,
    GradientHistory,
    GradientVisualizationConfig,
)

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("visualization"), ids=lambda case: case["name"])
def test_flow_is_the_original_one(case) -> None:
    step = case["input"]["current_step"]
    found = GradientFlowVisualizer().generate_visualization(histories(case), step)
    assert not list(differences(case["output"], found.to_dict(), SENTENCES))


def test_the_visualizer_is_called_as_in_the_original() -> None:
    histories = {"a": GradientHistory([1.0, math.inf], [0, 7])}
    config = GradientVisualizationConfig(color_scheme="Monochrome", temporal_window=3)
    found = GradientFlowVisualizer(config).generate_visualization(histories, 9)
    assert found.visualization_config == config
    assert found.temporal_flows[0].step == 9
    assert found.layer_flows["a"].gradient_magnitudes == (1.0, math.inf)
    again = GradientFlowVisualizer().create_visualization(histories)
    assert again.temporal_flows[0].step == 0
    assert again.visualization_config == GradientVisualizationConfig()


def test_options_and_infinite_norms_come_back_from_our_door() -> None:
    found = gradwatch.analyze_flow(
        {"a": [1.0, math.inf, 2.0]},
        rules="original",
        current_step=9,
        color_scheme="Monochrome",
        temporal_window=3,
        show_critical_paths=False,
    )
    assert found.layer_flows["a"].gradient_magnitudes == (1.0, math.inf, 2.0)
    assert found.temporal_flows[0].step == 9
    assert found.visualization_config == GradientVisualizationConfig(
        show_critical_paths=False, color_scheme="Monochrome", temporal_window=3
    )
