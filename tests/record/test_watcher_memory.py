"""A recording takes no more memory the longer it lasts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import sys
import torch
from torch import nn
from gradwatch import watch

torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for parameter in model.parameters():
    parameter.grad = torch.randn_like(parameter)
folder, settled, last, most = sys.argv[1], *map(int, sys.argv[2:])
watcher = watch(model, optimizer, run=folder, every=1, record=("gradients",))
held = []
kept = []
for step in range(last):
    optimizer.step()
    watcher.log(loss=0.5)
    if most:
        kept.append(bytearray(most))
    if step % (last // 100) == 0:
        watcher.flush()
        with open("/proc/self/statm") as file:
            held.append((step, int(file.read().split()[1]) * 4096))
watcher.close()
assert watcher.guard.error is None
# The least of each time: sealing takes memory and gives it back.
early = min(size for step, size in held if settled <= step < 2 * settled)
late = min(size for step, size in held if step >= last - settled)
print(late - early)
"""


def growth(folder: Path, settled: int, last: int, leak: int = 0) -> int:
    """Bytes that a process holds more at the end of a training than after its beginning."""
    arguments = [sys.executable, "-c", TRAINING, str(folder), *map(str, (settled, last, leak))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_over_thousands_of_steps(tmp_path: Path) -> None:
    assert growth(tmp_path / "run", 1000, 4000) < 12_000_000
    assert growth(tmp_path / "leaking", 1000, 4000, leak=12_000) > 12_000_000


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_over_a_hundred_thousand_steps(tmp_path: Path) -> None:
    assert growth(tmp_path / "run", 20_000, 100_000) < 16_000_000
