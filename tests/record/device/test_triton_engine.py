"""The Triton engine through Triton's interpreter, which needs a process of its own.

The tests are in triton_measuring.py (statistics), triton_stepping.py (steps and outputs),
triton_costs.py (launches, bytes, addresses) and triton_faults.py (planted faults).
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUITES = ("measuring", "stepping", "costs", "faults")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def interpreted(selection: str) -> None:
    files = [str(Path(__file__).with_name(f"triton_{suite}.py")) for suite in SUITES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-m", selection, *files],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout


@needs_triton
@pytest.mark.timeout(900)  # some 30 s of a quiet core
def test_quick_cases_through_the_interpreter() -> None:
    interpreted("not long")


@needs_triton
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_wide_cases_through_the_interpreter() -> None:
    interpreted("long")


def test_nobody_imports_the_engine_with_the_recorder() -> None:
    """Triton itself may be there: torch imports it for its own needs."""
    code = "import sys, gradwatch.record.watch; print([m for m in sys.modules if 'triton_' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [name for name in done.stdout.split("'") if name.startswith("gradwatch")]
    assert names == []
