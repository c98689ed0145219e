"""The size and the shape of the source: `make lines`. Prints figures, judges nothing.

The zoo's families are data and counted apart. A catalogue (one file an entry, read by its index
alone) is not counted among the small files and the modules with one importer: that is its form.
"""

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
CATALOGUES = {"checks", "cli", "readers", "signals", "families", "integrations", "original"}
SMALL = 40
LONG = 60


def main() -> None:
    """One line a figure, then lines and files by package."""
    texts = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    modules = {module_of(path): path for path in texts}
    importers = collections.defaultdict(set)
    for module, path in modules.items():
        for other in imports_of(trees[path], modules) - {module}:
            importers[other].add(module)
    plain = [m for m, p in modules.items() if p.name != "__init__.py" and not in_catalogue(m)]
    families = [p for m, p in modules.items() if ".zoo.families." in m]
    figures = {
        "lines of Python": f"{sum(lines.values()) - sum(lines[p] for p in families):,}",
        "lines of the zoo's families": f"{sum(lines[p] for p in families):,}",
        "files": len(lines),
        f"files under {SMALL} lines": sum(lines[modules[m]] < SMALL for m in plain),
        "modules with one importer": sum(len(importers[m]) == 1 for m in plain),
        "class names defined twice": len(defined_twice(modules, trees)),
        f"functions over {LONG} lines": sum(length > LONG for length in lengths(trees)),
        "lines of comments": f"{100 * comments(texts) / sum(lines.values()):.1f} %",
    }
    for name, value in figures.items():
        print(f"{name:28} {value:>8}")
    print()
    for package, paths in by_package(texts).items():
        print(f"{package:28} {sum(lines[p] for p in paths):>8,} {len(paths):>5} files")


def module_of(path: Path) -> str:
    """The dotted name."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def in_catalogue(module: str) -> bool:
    """Whether the module is an entry of a catalogue."""
    return bool(CATALOGUES & set(module.split(".")))


def imports_of(tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that are imported anywhere in this one."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            names.update(name if name in modules else node.module for name in inner)
    return names & set(modules)


def defined_twice(modules: dict[str, Path], trees: dict[Path, ast.Module]) -> set[str]:
    """Class names that mean two things; `original` keeps the names of another program."""
    places = collections.Counter(
        name
        for module, path in modules.items()
        if "original" not in module.split(".")
        for name in {n.name for n in ast.walk(trees[path]) if isinstance(n, ast.ClassDef)}
    )
    return {name for name, count in places.items() if count > 1}


def lengths(trees: dict[Path, ast.Module]) -> list[int]:
    """Lines of every function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, kinds)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


def comments(texts: dict[Path, str]) -> int:
    """Lines that hold a comment, alone or behind code."""
    return sum(" # " in line or line.lstrip().startswith("# ") for text in texts.values()
               for line in text.splitlines())  # fmt: skip


def by_package(texts: dict[Path, str]) -> dict[str, list[Path]]:
    """The files of each room of the house; single modules together."""
    rooms: dict[str, list[Path]] = collections.defaultdict(list)
    for path in texts:
        parts = path.relative_to(SOURCE / "gradwatch").parts
        rooms[f"{parts[0]}/" if len(parts) > 1 else "modules on the ground"].append(path)
    return dict(sorted(rooms.items()))


if __name__ == "__main__":
    main()
