import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
decay = 0.5  # fix: decay = 1e-4
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
with gradwatch.watch(model, optimizer, run="weight-collapse") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
