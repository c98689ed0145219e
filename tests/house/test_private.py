"""Tests, tools, benchmarks and examples use the names that are meant for others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    p
    for folder in ("tests", "tools", "benchmarks", "examples")
    for p in (ROOT / folder).rglob("*.py")
]
PLANTED = {
    "gradwatch.record.clipping.GradientSampler._after": "a hook of ours fails within a backward",
}
"""Private functions that are made to fail on purpose, and what their failure stands for."""
TORCHS = {"_schema"}
"""Private names that torch has too: a device of the tests' own must read them."""


def private(name: str) -> bool:
    return bool(re.fullmatch(r"_[a-z]\w*(?<!_)", name)) and name != "_native"


def own() -> set[str]:
    """Private names that the source defines: functions, methods, attributes, constants."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if private(name)} - TORCHS


def reached(path: Path, names: set[str]) -> Iterator[str]:
    """Private names of the source that a file reads, imports or replaces."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradwatch"):
            yield from (alias.name for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in names:
            inside = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not inside:
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split(".")
            if words[0] == "gradwatch" and any(map(private, words)) and node.value not in PLANTED:
                yield node.value


def test_nothing_private_is_reached_from_outside() -> None:
    names = own()
    found = {str(path.relative_to(ROOT)): list(reached(path, names)) for path in FILES}
    assert not {path: places for path, places in found.items() if places}
