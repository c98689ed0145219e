import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with gradwatch.watch(model, optimizer, run="nonfinite") as watcher:
    for _ in range(150):
        x = 5 * torch.randn(64, 20)
        p, y = model(x)[:, 0].sigmoid(), (x[:, 0] > 0).float()
        loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()  # fix:
        # fix: loss = nn.functional.binary_cross_entropy(p, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
