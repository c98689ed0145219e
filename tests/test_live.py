"""A training that is watched and judged while it runs."""

from pathlib import Path

import torch
from torch import nn

from gradwatch.live import watch


def test_findings_reach_the_callback_while_training(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told: list[str] = []
    stopped_at = -1
    watcher = watch(
        model,
        optimizer,
        run=tmp_path / "live",
        on_finding=lambda finding: told.append(finding.check),
    )
    with watcher:
        for step in range(60):
            inputs = torch.randn(8, 4) * (float("nan") if step >= 20 else 1.0)
            loss = model(inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
            if watcher.should_stop:
                stopped_at = step
                break
    assert told.count("nonfinite") == 1
    assert 20 <= stopped_at <= 30
