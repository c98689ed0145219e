"""The examples of the docs run, and leave a run that can be opened."""

import subprocess
import sys
from pathlib import Path

import pytest

import gradwatch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("file", "run"),
    [
        ("trainer.py", "trainer-example"),
        ("with_lightning.py", "lightning-example"),
        ("with_accelerate.py", "accelerate-example"),
    ],
)
def test_the_example_runs(file: str, run: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / file)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    opened = gradwatch.open_run(tmp_path / "runs" / run)
    assert len(opened.steps) >= 40
    assert "loss" in opened.scalars
    # the budget may stretch the cadence, never to nothing
    assert opened.measured("grad_norm").any(axis=1).sum() >= 10
