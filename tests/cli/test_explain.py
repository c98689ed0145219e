"""`gradwatch explain` knows the checks of trainings and of checkpoints."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from gradwatch.checks import CHECKS
from gradwatch.checks.explain import blocks
from gradwatch.cli.main import gradwatch

NAMES = sorted(check.NAME for check in CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_has_a_page(name: str) -> None:
    done = CliRunner().invoke(gradwatch, ["explain", name])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{name}\n")
    for part in ("What is seen", "Why it hurts", "What helps"):
        assert part in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_a_program_what_is_said_and_the_fix(name: str) -> None:
    said = CliRunner().invoke(gradwatch, ["explain", name]).stdout
    shown = [f"\n{block.heading}\n\n{block.lines}\n" for block in blocks(name)]
    assert [block.heading for block in blocks(name)] == [
        "A program that has it:", "What gradwatch says:", "The fix:",
    ]  # fmt: skip
    places = [said.index(part) for part in shown]
    assert places == sorted(places)
    assert said.rpartition("\n\n")[2].startswith("Mended: ")


def test_the_list_has_each_once() -> None:
    lines = CliRunner().invoke(gradwatch, ["explain"]).stdout.splitlines()
    assert sorted(line.split()[0] for line in lines if not line.startswith(" ")) == NAMES
    assert max(map(len, lines)) <= 80


def test_a_wrong_name_is_guessed() -> None:
    words = [sys.executable, "-m", "gradwatch", "explain", "dead-unit"]
    wrong = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert wrong.returncode == 2
    assert "Did you mean dead-units, " in wrong.stderr
    assert wrong.stderr.count("-") < 12  # three names, not all
    assert "`gradwatch explain` lists them all" in wrong.stderr
