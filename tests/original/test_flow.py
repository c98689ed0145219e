"""The flow analysis against every golden case."""

import pytest
from tests.golden.reading import Sentences, cases, differences
from tests.original.inputs import histories

from gradwatch.original.flow import analyze_flow

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("visualization"), ids=lambda case: case["name"])
def test_flow_is_the_original_one(case) -> None:
    found = analyze_flow(histories(case), case["input"]["current_step"]).to_dict()
    assert not list(differences(case["output"], found, SENTENCES))
