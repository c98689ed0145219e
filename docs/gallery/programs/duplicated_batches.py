import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
data = torch.randn(150, 64, 20)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="duplicated-batches") as watcher:
    for step in range(150):
        x = data[step // 4]  # fix: x = data[step]
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
