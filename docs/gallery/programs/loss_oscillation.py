import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # fix:
# fix: optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
with gradwatch.watch(model, optimizer, run="loss-oscillation") as watcher:
    for _ in range(150):
        x = 1 + torch.randn(64, 20)
        loss = nn.functional.l1_loss(model(x), x[:, :2].sum(1, True) - 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
