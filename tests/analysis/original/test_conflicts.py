"""Conflicts between layers against every golden case."""

import pytest
from tests.analysis.original.histories import histories
from tests.golden.reading import Sentences, cases, differences

from gradwatch.analysis.original.conflicts import analyze_conflicts, report_conflicts

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("conflict_analysis"), ids=lambda case: case["name"])
def test_conflicts_are_the_original_ones(case) -> None:
    given = case["input"]
    analysis = analyze_conflicts(histories(case), given["threshold"], given["window"])
    found = {"analysis": analysis.to_dict(), "report": report_conflicts(analysis).to_dict()}
    assert not list(differences(case["output"], found, SENTENCES))
