import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
x = torch.randn(1000, 20)
y = (x[:, :5] + torch.randn(1000, 5)).argmax(1)
model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="overfitting") as watcher:
    for _ in range(200):
        rows = torch.randint(40, (20,))  # fix: rows = torch.randint(900, (20,))
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss, val_loss=nn.functional.cross_entropy(model(x[900:]), y[900:]))
