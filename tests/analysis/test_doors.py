"""What `gradwatch.analysis` offers exists, needs no torch, and is loaded only when asked for."""

import subprocess
import sys

import pytest

import gradwatch.analysis as analysis


def test_every_door_opens() -> None:
    for name in dir(analysis):
        assert getattr(analysis, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'invented'"):
        _ = analysis.invented


def test_no_analysis_imports_torch() -> None:
    code = (
        "import sys, gradwatch.analysis as a; lazy = 'numpy' not in sys.modules; "
        "[getattr(a, n) for n in dir(a)]; print(lazy, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
