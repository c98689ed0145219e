import torch
from torch import nn

import gradwatch

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with gradwatch.watch(model, optimizer, run="divergence") as watcher:
    for _ in range(150):
        x = torch.randn(64, 20)
        chosen = model(x).log_softmax(1)[range(64), x[:, :5].argmax(1)]
        loss = chosen.mean()  # fix: loss = -chosen.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
