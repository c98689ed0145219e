"""The gradient analysis against every golden case."""

import math
from typing import Any

import pytest
from tests.golden.reading import Sentences, cases, differences
from tests.original.inputs import histories, stops

from gradwatch.errors import GradwatchError
from gradwatch.original import EnhancedGradientAnalyzer, GradientHistory
from gradwatch.original.gradients import GradientAnalysis

SENTENCES = Sentences()


def analysed(case: dict[str, Any]) -> GradientAnalysis:
    settings = case["input"]["analyzer"]
    analyzer = EnhancedGradientAnalyzer("Standard", settings["window"], settings["threshold"])
    return analyzer.generate_enhanced_analysis(histories(case))


@pytest.mark.parametrize(
    "case",
    [case for case in cases("enhanced_analysis") if not stops(case)],
    ids=lambda case: case["name"],
)
def test_gradients_are_analysed_as_the_original_does(case) -> None:
    assert not list(differences(case["output"], analysed(case).to_dict(), SENTENCES))


@pytest.mark.parametrize(
    "case",
    [case for case in cases("enhanced_analysis") if stops(case)],
    ids=lambda case: case["name"],
)
def test_nan_stops_it(case) -> None:
    with pytest.raises(GradwatchError, match="NaN: the original stops here"):
        analysed(case)


def test_one_nan_stops_it_where_the_layers_are_ranked() -> None:
    layers = {f"l{i}": GradientHistory([float(i)], [0]) for i in range(2)}
    layers["nan"] = GradientHistory([math.nan], [0])
    with pytest.raises(GradwatchError, match="sorts the means of the layers"):
        EnhancedGradientAnalyzer().analyze_gradients(layers)
    alone = {"l0": layers["l0"], "nan": layers["nan"]}
    found = EnhancedGradientAnalyzer().analyze_gradients(alone)
    assert found.layer_details["nan"].gradient_statistics.samples == 1


def test_the_analyzer_is_called_as_in_the_original() -> None:
    rising = {"a": GradientHistory([float(i) for i in range(9)], range(9))}
    found = EnhancedGradientAnalyzer("Expert", 5, 0.5).generate_enhanced_analysis(rising)
    assert found.layer_details["a"].health_metrics.convergence_indicator == 1.0
    assert EnhancedGradientAnalyzer("Basic", 5, 0.5).analyze_gradients(rising) == found
    usual = EnhancedGradientAnalyzer().analyze_gradients(rising)
    assert usual.layer_details["a"].health_metrics.convergence_indicator == 0.5  # too short
