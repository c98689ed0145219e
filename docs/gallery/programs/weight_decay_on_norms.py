import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)  # fix:
# fix: groups = [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in model.parameters()]
# fix: optimizer = torch.optim.AdamW(groups, lr=3e-3)
with gradwatch.watch(model, optimizer, run="weight-decay-on-norms") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
