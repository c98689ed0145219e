import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
rate = 2e-3  # fix: rate = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
with gradwatch.watch(model, optimizer, run="slow-convergence") as watcher:
    for _ in range(300):
        x = torch.randn(512, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
