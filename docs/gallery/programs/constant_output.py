import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with gradwatch.watch(model, optimizer, run="constant-output") as watcher:
    for _ in range(150):
        pixels = torch.randint(1, 256, (64, 20))
        x = (pixels > 0).float()  # fix: x = (pixels > 127).float()
        loss = nn.functional.cross_entropy(model(x), (pixels[:, 0] > 127).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
