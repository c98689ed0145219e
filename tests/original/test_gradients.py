"""The gradient analysis against every golden case."""

import math
from typing import Any

import pytest
from tests.golden.reading import Sentences, cases, differences
from tests.original.inputs import histories, stops

from gradwatch.errors import GradwatchError
from gradwatch.original import EnhancedGradientAnalyzer, GradientHistory
from gradwatch.original.gradients import GradientAnalysis, analyze_gradients

SENTENCES = Sentences()


def analysed(case: dict[str, Any]) -> GradientAnalysis:
    settings = case["input"]["analyzer"]
    return analyze_gradients(
        histories(case), window=settings["window"], stability_threshold=settings["threshold"]
    )


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
        analyze_gradients(layers)
    alone = {"l0": layers["l0"], "nan": layers["nan"]}
    assert analyze_gradients(alone).layer_details["nan"].gradient_statistics.samples == 1


def test_the_analyzer_is_called_as_in_the_original() -> None:
    histories = {"a": GradientHistory([float(i) for i in range(9)], range(9))}
    analyzer = EnhancedGradientAnalyzer("Expert", 2, 0.5)
    found = analyzer.generate_enhanced_analysis(histories)
    assert found == analyze_gradients(histories, window=2, stability_threshold=0.5)
    assert analyzer.analyze_gradients(histories) == found
    assert EnhancedGradientAnalyzer().analyze_gradients(histories) == analyze_gradients(histories)
