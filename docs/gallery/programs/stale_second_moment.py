import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with gradwatch.watch(model, optimizer, run="stale-second-moment") as watcher:
    for step in range(200):
        x = torch.randn(64, 10) * (1 if step < 120 else 3)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        # fix: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        watcher.log(loss=loss)
