"""Every level the original's rules have is produced by a golden case, or by hand here."""

from enum import StrEnum
from typing import Any

import numpy as np
import pytest
from tests.analysis import both_books
from tests.golden.reading import cases

from gradwatch.analysis.original import levels
from gradwatch.analysis.original.conflicts import analyze_conflicts
from gradwatch.analysis.original.drift import analyze_drift
from gradwatch.analysis.original.gradients import analyze_gradients
from gradwatch.analysis.original.history import record
from gradwatch.analysis.original.weights import analyze_weight_distribution
from gradwatch.analysis.result import Result
from gradwatch.errors import GradwatchError

ENUMS = [
    e for e in vars(levels).values() if isinstance(e, type) and e.__module__ == levels.__name__
]


def _members(value: Any) -> set[tuple[type, str]]:
    """All levels inside a result (levels of the same word are equal as strings: keep the type)."""
    if isinstance(value, StrEnum):
        return {(type(value), value.value)}
    if isinstance(value, Result):
        return set().union(*(_members(item) for item in vars(value).values()))
    if isinstance(value, dict):
        return set().union(*(_members(item) for pair in value.items() for item in pair))
    if isinstance(value, list | tuple):
        return set().union(*(_members(item) for item in value))
    return set()


@pytest.fixture(scope="module")
def produced() -> set[tuple[type, str]]:
    found: set[tuple[type, str]] = set()
    for file, rule in both_books._ORIGINAL.items():
        if file in ("history", "monitoring"):
            continue
        for case in cases(file):
            try:
                found |= _members(rule(case))
            except GradwatchError:
                assert case["panic"]
    for moved in (0.0, 0.02, 0.07, 0.3):
        found |= _members(analyze_drift({"a": [1.0]}, {"a": [1.0 + moved]}))
    swinging = record("a", [1e-12, 1e-9, 1e-12, 9e-6] * 10, range(40))
    found |= _members(analyze_gradients({"a": swinging}))
    rare = np.array([0.0] * 60 + [0.1] * 39 + [9.0], np.float32)
    found |= _members(analyze_weight_distribution([rare]))
    steady = record("a", [1.0] * 10, range(10))
    other = record("b", [1.0] * 8 + [3.0, 3.0], range(10))
    found |= _members(analyze_conflicts({"a": steady, "b": other}, threshold=0.05))
    return found


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_every_level_is_produced(enum: type[StrEnum], produced) -> None:
    missing = {level.value for level in enum if (enum, level.value) not in produced}
    assert not missing
