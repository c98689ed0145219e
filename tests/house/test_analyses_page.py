"""The page of the analyses names every field of every result, every word and every option."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import gradwatch
from gradwatch.analysis.animator import GradientFlowAnimator, Recording
from gradwatch.analysis.drift import WeightDriftAnalysis
from gradwatch.analysis.explosion import GradientExplosionAnalysis
from gradwatch.analysis.flow import GradientFlow, analyze_flow
from gradwatch.analysis.gradients import AnalysisDepth, GradientAnalysis, analyze_gradients
from gradwatch.analysis.weights import WeightDistributionAnalysis, analyze_weights
from gradwatch.cli.analyze import command
from gradwatch.result import Result

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "analyses.md").read_text("utf-8")
RESULTS = (
    WeightDistributionAnalysis,
    GradientAnalysis,
    GradientFlow,
    Recording,
    WeightDriftAnalysis,
    GradientExplosionAnalysis,
)


def inside(hint: Any) -> Iterator[type]:
    """The classes a type is made of."""
    if isinstance(hint, type):
        yield hint
    for item in get_args(hint):
        yield from inside(item)


def reached() -> dict[type, dict[str, Any]]:
    """Every class that the results lead to, with the types of its fields; enums have none."""
    found: dict[type, dict[str, Any]] = {}
    waiting: list[type] = list(RESULTS)
    while waiting:
        kind = waiting.pop()
        if kind in found or not issubclass(kind, Result | StrEnum):
            continue
        hints = get_type_hints(kind)
        own: tuple[Any, ...] = fields(kind) if is_dataclass(kind) else ()
        found[kind] = {field.name: hints[field.name] for field in own}
        waiting += [item for hint in found[kind].values() for item in inside(hint)]
    return found


def documented() -> dict[str, list[str]]:
    """Result type → the fields in the first column of its rows, its own row included."""
    rows: dict[str, list[str]] = {}
    own: list[str] | None = None
    for line in PAGE.splitlines():
        if not line.startswith("| "):
            own = None  # the table ends
            continue
        first = line.split(" | ")[0]
        if title := re.match(r"\| \*\*(\w+)\*\*", first):
            own = rows.setdefault(title[1], [])
        if own is not None:
            own += re.findall(r"`(\w+)`", first)
    return rows


REACHED = reached()
DOCUMENTED = documented()
KINDS = [kind for kind in REACHED if issubclass(kind, Result)]
WORDS = [kind for kind in REACHED if issubclass(kind, StrEnum)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_has_its_row(kind: type) -> None:
    assert sorted(DOCUMENTED[kind.__name__]) == sorted(REACHED[kind])


def test_no_type_is_described_that_is_not_there() -> None:
    assert set(DOCUMENTED) == {kind.__name__ for kind in KINDS}
    assert len(KINDS) > 40


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_every_word_a_field_may_say_is_there(kind: type[StrEnum]) -> None:
    assert [word for word in kind if f"`{word.value}`" not in PAGE] == []


@pytest.mark.parametrize(
    "function", [analyze_gradients, analyze_flow, analyze_weights, GradientFlowAnimator.__init__]
)
def test_every_option_in_python_is_there(function: Callable[..., Any]) -> None:
    options = [
        name
        for name, option in inspect.signature(function).parameters.items()
        # The step of the original's rules is for whoever compares with them.
        if option.default is not inspect.Parameter.empty and name != "current_step"
    ]
    assert options
    assert [name for name in options if f"`{name}`" not in PAGE] == []


def test_every_option_of_the_command_is_there() -> None:
    options = [option.opts[0] for option in command.params if option.opts[0].startswith("-")]
    assert len(options) > 10
    assert [name for name in options if f"`{name}" not in PAGE] == []


def test_the_depths_are_those_of_the_function() -> None:
    described = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)
    rows = {name: text.strip() for name, text in described if name in set(AnalysisDepth)}
    said = re.findall(r"\| `(\w+)` +\| (.+?) +\|\n", inspect.getdoc(analyze_gradients) or "")
    assert rows == dict(said)
    assert list(rows) == list(AnalysisDepth)


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["again"] == names["gradients"]
    assert isinstance(names["flow"], GradientFlow)
    assert "Healthy" in capsys.readouterr().out
    assert names["gradwatch"] is gradwatch


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", PAGE))))
def test_the_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
