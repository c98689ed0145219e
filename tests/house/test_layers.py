"""Imports point one way; heavy ones stay at the edge."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.layers import LAYERS, TORCH_MAY_BE_IMPORTED_IN

SOURCE = Path(__file__).parents[2] / "src" / "gradwatch"
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def test_every_part_has_a_row() -> None:
    assert {_part(path) for path in FILES} <= set(ROW)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    part = _part(path)
    for name in _imported(path):
        top, _, rest = name.partition(".")
        if top == "torch":
            assert part in TORCH_MAY_BE_IMPORTED_IN, f"{part} imports torch"
        if top != "gradwatch":
            continue
        assert rest, f"{path.name} imports from the package root"
        other = rest.split(".")[0]
        assert other == part or ROW[other] < ROW[part], f"{part} imports {name}"


@pytest.mark.parametrize("module", ["gradwatch", "gradwatch.store", "gradwatch.cli.main"])
def test_reading_needs_neither_torch_nor_the_web_server(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'starlette', 'uvicorn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
