import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
with gradwatch.watch(model, optimizer, run="update-leads-loss") as watcher:
    for _ in range(130):
        x = torch.randn(64, 10)
        loss = nn.functional.mse_loss(model(x), x[:, :1].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 1.03  # fix: optimizer.param_groups[0]["lr"] *= 0.99
        watcher.log(loss=loss)
