import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.ModuleDict({name: nn.Linear(64, 64) for name in ("query", "key", "out")})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with gradwatch.watch(model, optimizer, run="saturation") as watcher:
    for _ in range(150):
        x = 3 * torch.randn(16, 16, 64)
        scores = model["query"](x) @ model["key"](x).mT
        # fix: scores = scores / 64**0.5
        loss = (model["out"](scores.softmax(-1) @ x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
