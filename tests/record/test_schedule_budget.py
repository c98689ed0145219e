"""The budget on a real training, held against the clock."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.record import Watcher, watch
from gradwatch.record.schedule import ALLOWANCE

SECONDS = 60.0


@pytest.mark.timing
@pytest.mark.timeout(400)
def test_the_budget_is_held_on_a_real_training(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
    watcher = watch(model, optimizer, run=tmp_path / "r")
    assert isinstance(watcher, Watcher)
    timer = watcher.guard.timer
    spent_at, wall_at = 0.0, 0.0
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
        if not spent_at and timer.spent > ALLOWANCE + 0.01 * timer.wall:
            spent_at, wall_at = timer.spent, timer.wall
    watcher.close()
    assert spent_at, "the allowance was never spent: train longer"
    share = (timer.spent - ALLOWANCE) / timer.wall
    later = (timer.spent - spent_at) / (timer.wall - wall_at)
    print(f"k = {watcher.controller.pace.k}, {share:.2%} of the run, {later:.2%} since it bound")
    assert share <= 1.2 * 0.01
