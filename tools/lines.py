"""Code lines per package beside their limits: `make lines` prints them, `make lint` checks them.

Blank lines, comments and docstrings are free. The limits are in `pyproject.toml`.
"""

import argparse
import ast
import collections
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP, C, TOTAL = "top-level modules", "C", "all Python"
TABLE = "[tool.gradwatch.lines] of pyproject.toml"
LONG = 60
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines of Python that hold code; a text that stands alone is a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT and token.start[0] not in docstrings:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def c_lines(text: str) -> int:
    """Lines of C that are neither blank nor begin as a comment does."""
    stripped = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(("//", "/*", "*")) for line in stripped)


def count(package: Path) -> dict[str, int]:
    """Code lines of each folder of the package, of its modules, of C, and of all Python."""
    lines: collections.Counter[str] = collections.Counter()
    for path in package.rglob("*"):
        parts = path.relative_to(package).parts
        if path.suffix == ".py":
            number = code_lines(path.read_text("utf-8"))
            lines[parts[0] if len(parts) > 1 else TOP] += number
            lines[TOTAL] += number
        elif path.suffix in (".c", ".h"):
            lines[C] += c_lines(path.read_text("utf-8"))
    return dict(sorted(lines.items(), key=lambda item: (item[0] == TOTAL, item[0].lower())))


def complaints(lines: dict[str, int], limits: dict[str, int]) -> list[str]:
    """A sentence for each package that has passed its limit or has none."""
    said = []
    for name, number in lines.items():
        if name not in limits:
            said.append(
                f"Expected a limit for {name!r} in {TABLE}, found none; it has {number:,} code "
                f"lines. Add it: {name if name.isidentifier() else repr(name)} = {number}."
            )
        elif number > limits[name]:
            said.append(
                f"Expected at most {limits[name]:,} code lines in {name!r}, counted {number:,}. "
                f"Make it smaller; if it must grow, raise its limit in {TABLE} and say why in the "
                "commit."
            )
    return said


def long_functions(package: Path) -> list[str]:
    """Functions of more than LONG lines, docstrings included: module and name."""
    return [
        f"{path.relative_to(package)}: {node.name}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= LONG
    ]


def table(package: Path, lines: dict[str, int], limits: dict[str, int]) -> str:
    """What `make lines` prints."""
    rows = [f"{'code lines of':20} {'now':>7} {'limit':>7}"]
    for name, number in lines.items():
        limit = limits.get(name)
        mark = "  no limit" if limit is None else "  over" if number > limit else ""
        rows.append(f"{name:20} {number:7,} {'–' if limit is None else f'{limit:,}':>7}{mark}")
    rows += ["", f"{len([*package.rglob('*.py')])} files of Python"]
    rows += [f"over {LONG} lines: {name}" for name in long_functions(package)]
    return "\n".join(rows)


def main(arguments: list[str], project: Path = ROOT) -> int:
    """Print the table, or with --check complain and give 1 where a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.lines", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a limit is passed")
    check = parser.parse_args(arguments).check
    package = project / "src" / "gradwatch"
    settings = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    limits = settings.get("tool", {}).get("gradwatch", {}).get("lines", {})
    lines = count(package)
    if not check:
        print(table(package, lines, limits))
        return 0
    said = complaints(lines, limits)
    print("\n".join(said) if said else "Every package is within its limit of code lines.")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
