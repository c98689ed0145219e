"""Whether the default budget is held: small networks, whose steps are short, are the hard case.

Each trains for a while with the loss logged on every step; what was spent beyond the free allowance
is held against the wall clock. The last one logs nothing, which shows what logging costs.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.record import Watcher, watch
from gradwatch.record.schedule import ALLOWANCE

SECONDS = float(os.environ.get("GRADWATCH_BENCH_SECONDS", "30"))
BUDGET = 0.01


@dataclass(frozen=True)
class Spent:
    """What one training spent on us."""

    step: float
    every: int
    share: float
    """Of the wall time, beyond the allowance."""
    background: float
    """Processor time of the writing thread, of the wall time."""


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{SECONDS:.0f} s each, budget {BUDGET:.0%} beyond {ALLOWANCE:.0f} s, one thread")
    print(f"{'':34s}{'step':>10s}{'every':>8s}{'spent':>9s}{'thread':>9s}")
    for width, batch, logs in ((32, 16, True), (128, 64, True), (512, 256, True), (32, 16, False)):
        found = train(width, batch, logs)
        name = f"MLP of width {width}, {batch} rows{'' if logs else ', no log'}"
        late = "  MISSED" if found.share > 1.2 * BUDGET else ""
        print(
            f"{name:34s}{found.step * 1e3:7.2f} ms{found.every:8d}{found.share:9.2%}"
            f"{found.background:9.2%}{late}",
            flush=True,
        )


def train(width: int, batch: int, logs: bool) -> Spent:
    model = nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(batch, 32), torch.randint(0, 10, (batch,))
    with tempfile.TemporaryDirectory() as folder:
        watcher = watch(model, optimizer, run=Path(folder) / "run")
        assert isinstance(watcher, Watcher)
        timer, steps = watcher.guard.timer, 0
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if logs:
                watcher.log(loss=loss)
            steps += 1
        found = Spent(
            timer.wall / steps,
            watcher.controller.pace.k,
            (timer.spent - ALLOWANCE) / timer.wall,
            watcher.background,
        )
        watcher.close()
    return found


if __name__ == "__main__":
    main()
