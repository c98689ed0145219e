"""Tests stand where their subject stands: src/gradwatch/X/Y.py is tested by tests/X/test_Y.py.

Several files for one module are named test_Y_aspect.py. What concerns a whole package is named
after the package, tests/X/test_X_aspect.py. Benchmarks, examples and tools are tested in the same
way.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
ACROSS = {
    "browser": "the page and the live server together, in a real browser",
    "distributed": "trainings under torchrun",
    "faults": "kills, full disks and damaged bytes",
    "frameworks": "trainings by Trainer, Lightning and Accelerate, and their services",
    "golden_output": "the output of every command",
    "house": "rules for the whole source",
    "record/harm": "that a watched training is the same training",
}
"""Suites whose subject is no module of ours, with what it is."""
FILES = sorted(
    path
    for path in TESTS.rglob("test_*.py")
    if not any(path.is_relative_to(TESTS / suite) for suite in ACROSS)
)


def subjects(folder: Path) -> set[str]:
    """What a test file in this folder may be named after."""
    package = folder.relative_to(TESTS)
    source = ROOT / "src/gradwatch" / package
    if not source.is_dir():  # benchmarks, examples, tools
        source = ROOT / package
    entries = [path for path in source.iterdir() if path.suffix == ".py" or path.is_dir()]
    sources_in_c = (source / "native").glob("*.[ch]")  # a function of the kernel is named after one
    return {source.name, *(path.stem for path in [*entries, *sources_in_c])} - {"__pycache__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_file_is_named_after_what_it_tests(path: Path) -> None:
    name = path.stem.removeprefix("test_")
    named = [s for s in subjects(path.parent) if name == s or name.startswith(f"{s}_")]
    assert named, f"{name} is no module of {path.parent.relative_to(TESTS)}"


def test_every_suite_that_goes_across_exists() -> None:
    assert all(any((TESTS / suite).glob("test_*.py")) for suite in ACROSS)
