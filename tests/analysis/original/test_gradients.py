"""The gradient analysis against every golden case."""

import pytest
from tests.analysis.original.histories import histories
from tests.golden.reading import Sentences, cases, differences

from gradwatch.analysis.original.gradients import analyze_gradients
from gradwatch.errors import GradwatchError

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("enhanced_analysis"), ids=lambda case: case["name"])
def test_gradients_are_analysed_as_the_original_does(case) -> None:
    given, settings = histories(case), case["input"]["analyzer"]
    window, threshold = settings["window"], settings["threshold"]
    if case.get("panic"):
        with pytest.raises(GradwatchError, match="The original panics here"):
            analyze_gradients(given, window=window, stability_threshold=threshold)
        return
    found = analyze_gradients(given, window=window, stability_threshold=threshold).to_dict()
    assert not list(differences(case["output"], found, SENTENCES))
