"""Starts a module of these tests under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(ranks: int, module: str, *arguments: str, check: bool = True) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=280)
    assert done.returncode == 0 or not check, done.stderr.decode()[-4000:]
