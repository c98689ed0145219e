"""The histories that the original's rules take from a run."""

import math
from dataclasses import replace

import numpy as np

from gradwatch.analysis.layers import histories
from gradwatch.run import Run


def test_a_run_becomes_one_history_per_layer() -> None:
    big, bad = np.full((2, 2), 3.0), np.array([np.nan, 1.0])
    run = Run.from_arrays(
        {
            "a.weight": [big, big, None, big * np.inf],
            "a.bias": [np.full(1, 8.0), np.full(1, 8.0), None, np.full(1, 8.0)],
            "b.weight": [bad, np.ones(2), np.ones(2), np.ones(2)],
        },
        steps=[0, 2, 4, 6],
    )
    subjects = [replace(subject, layer=subject.name[0]) for subject in run.subjects]
    found = histories(Run(replace(run.source, subjects=subjects)))
    assert list(found) == ["a", "b"]
    assert list(found["a"].gradient_norms) == [10.0, 10.0, math.inf]
    assert list(found["a"].step_numbers) == [0, 2, 6]
    assert math.isnan(found["b"].gradient_norms[0])


def test_a_long_run_keeps_the_last_thousand() -> None:
    found = histories(Run.from_norms({"a": range(1, 1501)}))
    assert (len(found["a"].gradient_norms), found["a"].gradient_norms[0]) == (1000, 501.0)
