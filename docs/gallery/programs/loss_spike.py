import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
x = torch.randn(150, 64, 20)
y = x[..., :5].argmax(-1)
y[100] = (y[100] + 1) % 5  # one file counts its classes from 1  # fix:
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
with gradwatch.watch(model, optimizer, run="loss-spike") as watcher:
    for inputs, targets in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
