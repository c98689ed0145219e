"""The gradient analysis against every golden case."""

import pytest
from tests.golden.reading import Sentences, cases, differences, stops
from tests.original.histories import histories

from gradwatch.errors import GradwatchError
from gradwatch.original.gradients import analyze_gradients

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("enhanced_analysis"), ids=lambda case: case["name"])
def test_gradients_are_analysed_as_the_original_does(case) -> None:
    given, settings = histories(case), case["input"]["analyzer"]
    window, threshold = settings["window"], settings["threshold"]
    if stops("enhanced_analysis", case):
        with pytest.raises(GradwatchError, match="NaN: the original stops here"):
            analyze_gradients(given, window=window, stability_threshold=threshold)
        return
    found = analyze_gradients(given, window=window, stability_threshold=threshold).to_dict()
    assert not list(differences(case["output"], found, SENTENCES))
