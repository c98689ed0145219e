import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", growth_interval=1)  # fix:
# fix: scaler = torch.amp.GradScaler("cpu", growth_interval=2000)
with gradwatch.watch(model, optimizer, run="loss-scale-overflow", scaler=scaler) as watcher:
    for x in torch.randn(150, 64, 20):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), x[:, :5].argmax(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log(loss=loss)
