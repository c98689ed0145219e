"""The bounded queue and its slope against every golden case."""

import math

import numpy as np
import pytest
from tests.analysis.original.histories import histories
from tests.golden.reading import Sentences, cases, differences

from gradwatch.analysis.original.history import from_run
from gradwatch.run import Run

CASES = cases("history")


def found_history(case):
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
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_history_is_the_original_one(case) -> None:
    assert not list(differences(case["output"], found_history(case), Sentences()))


def test_a_run_becomes_one_queue_per_layer() -> None:
    big, bad = np.full((2, 2), 3.0), np.array([np.nan, 1.0])
    run = Run.from_arrays(
        {
            "a.weight": [big, big, None, big * np.inf],
            "a.bias": [np.full(1, 8.0), np.full(1, 8.0), None, np.full(1, 8.0)],
            "b.weight": [bad, np.ones(2), np.ones(2), np.ones(2)],
        },
        steps=[0, 2, 4, 6],
    )
    found = from_run(run)
    assert list(found) == ["a", "b"]
    assert list(found["a"].gradient_norms) == [10.0, 10.0, math.inf]
    assert list(found["a"].step_numbers) == [0, 2, 6]
    assert math.isnan(found["b"].gradient_norms[0])


def test_a_long_run_keeps_the_last_thousand() -> None:
    found = from_run(Run.from_norms({"a": range(1, 1501)}))
    assert (len(found["a"].gradient_norms), found["a"].gradient_norms[0]) == (1000, 501.0)
