"""Every level the original's rules have is produced by a golden case, or by hand here."""

import dataclasses
import typing
from typing import Any, Literal

import numpy as np
import pytest
from tests.golden.reading import cases
from tests.original import both_books
from tests.original.inputs import stops

from gradwatch.original import animation, flow, gradients, weights
from gradwatch.original.arithmetic import GradientHistory

LEVELS = [
    (module.__name__, name, kind)
    for module in (animation, flow, gradients, weights)
    for name, kind in vars(module).items()
    if typing.get_origin(kind) is Literal
]


def _levels(value: Any) -> set[tuple[str, Any, str]]:
    """All levels inside a result: module, kind and word, since kinds share words."""
    if dataclasses.is_dataclass(value):
        module, kinds = type(value).__module__, typing.get_type_hints(type(value))
        return set().union(
            *(
                {(module, kinds[field.name], getattr(value, field.name))}
                if typing.get_origin(kinds[field.name]) is Literal
                else _levels(getattr(value, field.name))
                for field in dataclasses.fields(value)
            )
        )
    if isinstance(value, dict):
        return set().union(*map(_levels, value.values()))
    return set().union(*map(_levels, value)) if isinstance(value, list | tuple) else set()


@pytest.fixture(scope="module")
def produced() -> set[tuple[str, Any, str]]:
    found: set[tuple[str, Any, str]] = set()
    for file, rule in both_books.ORIGINAL.items():
        for case in cases(file):
            if file != "enhanced_analysis" or not stops(case):
                found |= _levels(rule(case))
    for moved in (0.0, 0.02, 0.07, 0.3):
        found |= _levels(weights.analyze_drift({"a": [1.0]}, {"a": [1.0 + moved]}))
    swinging = GradientHistory([1e-12, 1e-9, 1e-12, 9e-6] * 10, range(40))
    found |= _levels(gradients.EnhancedGradientAnalyzer().analyze_gradients({"a": swinging}))
    rare = np.array([0.0] * 60 + [0.1] * 39 + [9.0], np.float32)
    return found | _levels(weights.analyze_weight_distribution([rare]))


@pytest.mark.parametrize(("module", "name", "kind"), LEVELS, ids=lambda value: str(value))
def test_every_level_is_produced(module: str, name: str, kind: Any, produced) -> None:
    assert len(LEVELS) == 26
    missing = {level for level in typing.get_args(kind) if (module, kind, level) not in produced}
    assert not missing
