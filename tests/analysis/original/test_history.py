"""The bounded queue and its slope against every golden case."""

import pytest
from tests.analysis.original.histories import histories
from tests.golden.reading import Sentences, cases, differences

CASES = cases("history")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_history_is_the_original_one(case) -> None:
    found = []
    for history in histories(case).values():
        norms, steps = history.gradient_norms, history.step_numbers
        found.append(
            {
                "layer_name": history.layer_name,
                "length": len(norms),
                "first": norms[0] if norms else None,
                "last": norms[-1] if norms else None,
                "first_step": steps[0] if steps else None,
                "last_step": steps[-1] if steps else None,
                "trend_slope": history.trend_slope,
            }
        )
    assert not list(differences(case["output"], found, Sentences()))
