"""Drift as the uncompiled copy of the original intended it: every level by hand."""

import numpy as np
import pytest

from gradwatch.errors import GradwatchError
from gradwatch.original.weights import analyze_drift


@pytest.mark.parametrize(
    ("moved", "severity"),
    [
        (0.2, "High"),
        (0.06, "Medium"),
        (0.02, "Low"),
        (0.001, "Minimal"),
    ],
)
def test_severity_follows_the_mean_change(moved: float, severity: str) -> None:
    found = analyze_drift({"a": np.zeros(4)}, {"a": np.full(4, moved)})
    assert found.severity == severity
    assert found.mean_drift == found.max_drift == pytest.approx(moved)
    assert found.affected_layers == ()


def test_affected_layers_moved_more_than_twice_the_mean() -> None:
    still = {name: np.zeros(3) for name in "abcd"}
    found = analyze_drift(still, still | {"b": np.ones(3)})
    assert found.affected_layers == ("b",)
    assert found.mean_drift == 0.25


def test_other_tensors_are_refused() -> None:
    with pytest.raises(GradwatchError, match="same tensors"):
        analyze_drift({"a": np.zeros(3)}, {"a": np.zeros(4)})
