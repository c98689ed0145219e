import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
model.append(nn.Sigmoid())  # fix:
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="output-range") as watcher:
    for _ in range(150):
        x = torch.randn(64, 10)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True) * 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
