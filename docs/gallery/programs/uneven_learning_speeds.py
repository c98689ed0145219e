import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
rate = 1e-6  # fix: rate = 1e-3
groups = [{"params": model[0].parameters(), "lr": rate}, {"params": model[2].parameters()}]
optimizer = torch.optim.Adam(groups, lr=2e-3)
with gradwatch.watch(model, optimizer, run="uneven-learning-speeds") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
