import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
x = torch.randn(200, 64, 20)
y = (x[..., :4].sum(-1) + torch.randn(200, 64) > 4.6).long()
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
weight = None  # fix: weight = y.numel() / (2 * y.flatten().bincount())
with gradwatch.watch(model, optimizer, run="class-imbalance") as watcher:
    for inputs, targets in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(inputs), targets, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
