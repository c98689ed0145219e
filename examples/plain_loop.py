"""A hand-written training loop under gradwatch, and what the run then holds.

    python examples/plain_loop.py

Added for gradwatch: the line with `gradwatch.watch` and the one with `watcher.log`.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gradwatch

STEPS = 300


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model.append(nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with gradwatch.watch(model, optimizer) as watcher:
        for _ in range(STEPS):
            x = torch.randn(128, 2)
            y = (x.norm(dim=1) > 1.18).long()  # inside or outside a circle
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            watcher.log(loss)

    run = gradwatch.open_run(watcher.run_dir)
    print(run)
    print(f"loss {run.scalars['loss'][0]:.3f} → {run.scalars['loss'][STEPS - 1]:.3f}")
    print(f"clipped on {(run.scalars['clip_factor'] < 1).sum()} of {STEPS} steps")
    print(f"overhead: {watcher.overhead}")
    norms = np.nanmedian(run.series["grad_norm"], axis=0)
    ratios = np.nanmedian(run.series["update_ratio"], axis=0)
    for name, norm, ratio in zip(run.names, norms, ratios, strict=True):
        print(f"{name:12s} gradient norm {norm:.1e}, update ÷ weight {ratio:.1e}")


if __name__ == "__main__":
    main()
