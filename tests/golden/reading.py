"""Reading the golden cases, and comparing a plain result with them field by field."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

SENTENCES = frozenset(
    {
        "description",
        "issues",
        "mitigation_recommendations",
        "mitigation_suggestions",
        "prerequisites",
        "rationale",
        "recommendations",
        "recommended_action",
        "recommended_monitoring",
        "risk_factors",
        "side_effects",
        "suggested_actions",
    }
)
"""Fields that hold prose: ours says the same in other words, one sentence for one sentence."""


def cases(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))
    return found


def case(file: str, name: str) -> dict[str, Any]:
    return next(item for item in cases(file) if item["name"] == name)


def numbers(tree: Any) -> Any:
    """Non-finite words become floats."""
    if isinstance(tree, str):
        return WORDS.get(tree, tree)
    if isinstance(tree, dict):
        return {key: numbers(item) for key, item in tree.items()}
    return [numbers(item) for item in tree] if isinstance(tree, list) else tree


class Sentences:
    """Checks that every sentence of the original has exactly one of ours, and the reverse."""

    def __init__(self) -> None:
        self.ours: dict[str, str] = {}
        self.theirs: dict[str, str] = {}

    def same(self, theirs: str, ours: str) -> bool:
        a, b = _template(theirs), _template(ours)
        return self.ours.setdefault(a, b) == b and self.theirs.setdefault(b, a) == a


def _template(sentence: str) -> str:
    """Without the names of layers and without numbers."""
    for where in (r"(?<= in layer ).*$", r"(?<= in: ).*?(?=\. )", r"(?<= of ').*(?=' )"):
        sentence = re.sub(where, "<name>", sentence)
    return re.sub(r"\d+(\.\d+)?", "#", sentence)


def differences(
    expected: Any,
    actual: Any,
    sentences: Sentences,
    *,
    relative: float = 1e-9,
    path: str = "",
) -> Iterator[str]:
    """Every place where the two differ, as `path: expected … got …`."""
    key = re.sub(r"\[\d+\]$", "", path).rpartition(".")[2]
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or set(expected) != set(actual):
            yield f"{path}: fields {sorted(expected)}, got {list(actual or ())}"
            return
        for field in expected:
            yield from differences(
                expected[field], actual[field], sentences, relative=relative, path=f"{path}.{field}"
            )
    elif isinstance(expected, list):
        if not isinstance(actual, list) or len(expected) != len(actual):
            yield f"{path}: {len(expected)} items, got {actual!r}"
            return
        for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(a, b, sentences, path=f"{path}[{i}]", relative=relative)
    elif isinstance(expected, str) and expected not in WORDS and key in SENTENCES:
        if not isinstance(actual, str) or not sentences.same(expected, actual):
            yield f"{path}: another sentence, {actual!r} for {expected!r}"
    elif not _equal(expected, actual, relative):
        yield f"{path}: expected {expected!r}, got {actual!r}"


def _equal(expected: Any, actual: Any, relative: float) -> bool:
    expected = WORDS.get(expected, expected) if isinstance(expected, str) else expected
    if isinstance(expected, float) and isinstance(actual, float | int):
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        if math.copysign(1, expected) != math.copysign(1, actual):
            return False
        return math.isclose(expected, actual, rel_tol=relative, abs_tol=0.0)
    return type(expected) is type(actual) and expected == actual
