import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
x = torch.randn(8192, 20)
y = x[:, :5].argmax(1)
x = x[torch.randperm(8192)]  # fix:
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="not-learning") as watcher:
    for inputs, targets in zip(x.split(64), y.split(64), strict=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
