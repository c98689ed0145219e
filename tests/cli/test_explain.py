"""`gradwatch explain` knows the checks of trainings and of checkpoints."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from gradwatch.checks import CHECKS
from gradwatch.cli.main import gradwatch

NAMES = sorted(check.NAME for check in CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_has_a_page(name: str) -> None:
    done = CliRunner().invoke(gradwatch, ["explain", name])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{name}\n")
    for part in ("What is seen", "Why it hurts", "What helps"):
        assert part in done.stdout


def test_the_list_has_each_once() -> None:
    lines = CliRunner().invoke(gradwatch, ["explain"]).stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == NAMES


def test_a_wrong_name_is_guessed() -> None:
    words = [sys.executable, "-m", "gradwatch", "explain", "dead-unit"]
    wrong = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert wrong.returncode == 2
    assert "dead-units" in wrong.stderr
