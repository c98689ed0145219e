import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gradwatch.watch(model, optimizer, run="clipped-to-nothing") as watcher:
    for _ in range(200):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # fix:
        # fix: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watcher.log(loss=loss)
