import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="target-scale") as watcher:
    for _ in range(150):
        x = torch.randn(64, 10)
        price = 300_000 + 100_000 * x[:, :3].mean(1, keepdim=True)
        # fix: price = (price - 300_000) / 60_000
        loss = nn.functional.mse_loss(model(x), price)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
