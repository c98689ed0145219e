import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
dtype = torch.bfloat16  # fix: dtype = torch.float32
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).to(dtype)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
with gradwatch.watch(model, optimizer, run="update-lost-to-rounding") as watcher:
    for _ in range(300):
        x = torch.randn(64, 20, dtype=dtype)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
