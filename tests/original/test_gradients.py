"""The gradient analysis against every golden case."""

import math
from typing import Any

import pytest
from tests.golden.reading import Sentences, case, cases, differences
from tests.original.inputs import ORDERED, UNORDERED, histories

from gradwatch.original.arithmetic import NAN_STOPS, History
from gradwatch.original.gradients import GradientAnalysis, analyze_gradients

SENTENCES = Sentences()


def analysed(case: dict[str, Any]) -> GradientAnalysis:
    settings = case["input"]["analyzer"]
    return analyze_gradients(
        histories(case), window=settings["window"], stability_threshold=settings["threshold"]
    )


def expected(case: dict[str, Any]) -> Any:
    if case["name"] in UNORDERED:
        statistics = case["output"]["layer_details"]["has_nan"]["gradient_statistics"]
        statistics |= dict.fromkeys(ORDERED)
        statistics["missing"] = dict.fromkeys(ORDERED, NAN_STOPS)
    return case["output"]


@pytest.mark.parametrize(
    "case",
    [case for case in cases("enhanced_analysis") if not case.get("panic")],
    ids=lambda case: case["name"],
)
def test_gradients_are_analysed_as_the_original_does(case) -> None:
    assert not list(differences(expected(case), analysed(case).to_dict(), SENTENCES))


def test_where_the_original_panics_nothing_is_said_that_needs_an_order() -> None:
    details = analysed(case("enhanced_analysis", "nan_five_len50")).layer_details
    assert details["has_nan"].gradient_statistics.median is None
    assert details["has_nan"].gradient_statistics.missing == dict.fromkeys(ORDERED, NAN_STOPS)
    assert not any(
        layer.gradient_statistics.missing for name, layer in details.items() if name != "has_nan"
    )


def test_more_than_twenty_other_layers_with_nan_have_no_ranks() -> None:
    layers = {f"l{i}": History([float(i)], [0]) for i in range(21)}
    layers["nan"] = History([math.nan], [0])
    details = analyze_gradients(layers).layer_details
    assert details["nan"].comparative_analysis.rank_among_layers == 22
    ranks = [details[f"l{i}"].comparative_analysis for i in range(21)]
    assert {rank.rank_among_layers for rank in ranks} == {None}
    assert {rank.missing["rank_among_layers"] for rank in ranks} == {NAN_STOPS}
