"""Examples are run as a reader runs them: a process of its own, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gradwatch

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE_AT_CLOSE = re.compile(r"gradwatch: (runs/[\w+-]+)(?:: [^\n]+)?\. Next: gradwatch diagnose \S+")
"""Where the run is; the verdict is left out where judging takes too long."""


def environment() -> dict[str, str]:
    """One thread, and the line at close, which the other tests do without."""
    kept = {name: value for name, value in os.environ.items() if name != "GRADWATCH_MODE"}
    return {**kept, "OMP_NUM_THREADS": "1"}


def run_example(file: str, folder: Path, ranks: int = 1) -> gradwatch.Run:
    """The run that the one line at close names."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / file)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (place,) = LINE_AT_CLOSE.findall(done.stderr)
    return gradwatch.open_run(folder / place)


def assert_well(run: gradwatch.Run, steps: int) -> None:
    """Nothing is wrong with a working example, and what it was fed was looked at."""
    diagnosis = gradwatch.diagnose(run)
    assert diagnosis.verdict in {"healthy", "notes"}, diagnosis.findings
    assert diagnosis.steps == steps
    fed = run.scalars.get("input_rms")
    if fed is None:  # Lightning calls another method than forward, and the run says so
        assert any("inputs are not recorded" in event.text for event in run.events)
    else:
        assert (fed > 0).any()
        assert "input-scale" in diagnosis.checked


def change(run: gradwatch.Run, scalar: str) -> float:
    """From the mean of the first tenth to that of the last."""
    values = run.scalars[scalar]
    values = values[values == values]
    tenth = len(values) // 10
    return float(values[-tenth:].mean() - values[:tenth].mean())
