import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2000, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="heavy-tailed-gradients") as watcher:
    for _ in range(150):
        x = torch.randn(256, 2000)
        x[:, 0] *= 300  # in cents, the others in thousands  # fix:
        loss = nn.functional.cross_entropy(model(x), x[:, 1:6].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
